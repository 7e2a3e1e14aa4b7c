"""A random pair of a few thousand parameters, in the layout of a shipped one."""

import atexit
import functools
import io
import shutil
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import sentencepiece

from specdec_jax.checkpoints import save_params
from specdec_jax.ngram import count_ngrams, save_ngrams
from specdec_jax.t5 import T5, T5Config

TEXT = (
    "The quick brown fox jumps over the lazy dog.",
    "A package with the tools that build other packages.",
    "Klicken Sie auf die Schaltfläche, um die Datei zu öffnen.",
    "restore: summarize: translate English to German: 0123456789 äöüß,.;:!?",
)
CONFIG = T5Config(
    vocab_size=80,
    emb_dim=16,
    num_heads=2,
    num_encoder_layers=1,
    num_decoder_layers=1,
    head_dim=8,
    mlp_dim=32,
)


def save_vocabulary(path: Path) -> None:
    """Trains a vocabulary of `CONFIG.vocab_size` pieces with T5's ids."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT * 5),
        model_writer=model,
        vocab_size=CONFIG.vocab_size,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        num_threads=1,
        minloglevel=2,
    )
    path.write_bytes(model.getvalue())


def random_params(seed: int) -> dict:
    """A random model whose output varies, which T5's own initialization does not give."""
    zeros = jnp.zeros((1, 1), jnp.int32)
    shapes = jax.eval_shape(T5(CONFIG).init, jax.random.key(0), zeros, zeros)["params"]
    leaves, tree = jax.tree.flatten(shapes)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    drawn = [0.5 * jax.random.normal(k, x.shape) for k, x in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(tree, drawn)


@functools.cache
def tiny_pair() -> Path:
    """The directory of a pair whose draft is right about half of the time."""
    path = Path(tempfile.mkdtemp(prefix="specdec_jax-pair-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return save_pair(path)


def save_pair(path: Path, *, noise: float = 0.1) -> Path:
    """Saves a target, and a draft that is the target with some noise."""
    target = random_params(0)
    draft = jax.tree.map(lambda x, n: x + noise * n, target, random_params(1))
    path.mkdir(parents=True, exist_ok=True)
    save_params(path / "target", CONFIG, target)
    save_params(path / "draft", CONFIG, draft)
    save_vocabulary(path / "spiece.model")
    texts = np.random.default_rng(0).integers(2, CONFIG.vocab_size, (50, 6))
    counts = count_ngrams([[*row, 1] for row in texts], vocab_size=CONFIG.vocab_size, min_count=1)
    save_ngrams(path / "ngram", *counts)
    (path / "MODEL_CARD.md").write_text("# A random pair\n")
    return path
