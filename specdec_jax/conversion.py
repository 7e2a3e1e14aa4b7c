"""`specdec convert`: any checkpoint that can be read, as a directory of `save_params`."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from specdec_jax.checkpoints import open_checkpoint, parse_config, save_params
from specdec_jax.errors import UserError
from specdec_jax.lm import Config, LMConfig
from specdec_jax.stored import place
from specdec_jax.vocabulary import Vocabulary

VOCABULARY = "spiece.model"


def convert(
    source: str,
    output: Path,
    *,
    dtype: str = "float32",
    config: Path | None = None,
    vocabulary: Path | None = None,
    overwrite: bool = False,
    say: Callable[[str], object] = print,
) -> None:
    """Writes a checkpoint as Orbax, with its vocabulary where it has one.

    Args:
      source: what `checkpoints.load_params` takes.
      output: the directory to write; whole, or not at all.
      dtype: "float32" or "bfloat16", what the weights are stored in.
      config: a `config.json`, of ours or of Hugging Face; for checkpoints without one.
      vocabulary: a SentencePiece model; left out, the source's `spiece.model`.
      overwrite: replace an `output` that holds weights already.
      say: takes the two lines about what was read and what was written.

    Raises:
      UserError: `output` is there already.
      FileNotFoundError, ValueError: as `load_params`; or the vocabulary is not the model's.
    """
    _check_output(output, overwrite)
    found = open_checkpoint(source, config=parse_config(config) if config else None)
    shapes = [array.shape for array in found.arrays.values()]
    parameters = sum(int(np.prod(shape)) for shape in shapes)
    say(f"Read {source}: {found.kind}, {describe(found.config)}, {parameters:,} parameters.")
    files = _vocabulary(source, vocabulary, found.config)
    params = place(found.arrays, dtype, None)
    save_params(output, found.config, params, dtype=dtype, files=files)
    size = sum(file.stat().st_size for file in output.rglob("*") if file.is_file())
    beside = f", with {VOCABULARY}" if files else ", without a vocabulary"
    say(f"Wrote {output}: {dtype}, {size / 1e6:.1f} MB{beside}.")


def describe(config: Config) -> str:
    """A network in a few words: a T5's version by its feed-forward layer and logits; sizes."""
    if isinstance(config, LMConfig):
        return (
            f"a language model, {config.num_layers} layers of {config.emb_dim}, "
            f"{config.vocab_size} ids"
        )
    kind = (config.mlp_activations, config.logits_via_embedding)
    versions = {(("relu",), True): "T5 1.0", (("gelu", "linear"), False): "T5 1.1"}
    return (
        f"{versions.get(kind, 'a T5 of its own kind')}, {config.num_encoder_layers} + "
        f"{config.num_decoder_layers} layers of {config.emb_dim}, {config.vocab_size} ids"
    )


def _check_output(output: Path, overwrite: bool) -> None:
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return
    if not (output / "config.json").is_file() or not (output / "params").is_dir():
        raise UserError(f"{output} is there and holds no weights of specdec_jax: choose another.")
    if not overwrite:
        raise UserError(f"{output} is there already: choose another, or give --overwrite.")


def _vocabulary(source: str, given: Path | None, config: Config) -> dict[str, Path]:
    """The vocabulary to copy, checked against the model; none where there is none."""
    file = given or Path(source, VOCABULARY)
    if not given and not os.path.isfile(file):
        return {}
    size = Vocabulary(file).size
    if size > config.vocab_size:
        raise ValueError(
            f"The vocabulary {file} has {size} pieces, the model only {config.vocab_size} ids."
        )
    return {VOCABULARY: file}
