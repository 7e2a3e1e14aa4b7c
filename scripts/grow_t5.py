"""Makes a T5 wider without changing what it computes, to train a larger one from there.

    python scripts/grow_t5.py --weights specdec_jax/assets/debian/target --output runs/grown \
      --emb_dim 512 --num_heads 6 --mlp_dim 832

Units are doubled, and what reads a unit is shared out between it and its copy, at random so
that training tells them apart (Chen, Goodfellow and Shlens, "Net2Net", 2016). `emb_dim` must
be a whole multiple of the old one, since the layer norms average over it; heads and
feed-forward units may grow by any number. Train from it with --gin.INIT_FROM='"runs/grown"'.
"""

import argparse
import dataclasses
import sys
from pathlib import Path

import jax
import numpy as np

from specdec_jax.checkpoints import load_params, save_params
from specdec_jax.layers import Params
from specdec_jax.lm import Config
from specdec_jax.t5 import T5Config


def grow(
    config: Config, params: Params, *, emb_dim: int, num_heads: int, mlp_dim: int, seed: int = 0
) -> tuple[T5Config, Params]:
    """A wider T5 of the same function, for any sources and prefixes.

    Raises:
      ValueError: it is no T5, a size shrinks, emb_dim is no multiple, or the logits are tied
        to the embeddings (T5 1.0), which scales them by the width.
    """
    if not isinstance(config, T5Config):
        raise ValueError("Only a T5 can be made wider here.")
    if config.logits_via_embedding:
        raise ValueError("A T5 whose logits are tied to its embeddings can't be made wider.")
    if emb_dim % config.emb_dim:
        raise ValueError(f"emb_dim must be a multiple of {config.emb_dim}, not {emb_dim}.")
    if num_heads < config.num_heads or mlp_dim < config.mlp_dim:
        raise ValueError(
            f"num_heads and mlp_dim may only grow, from {config.num_heads} and {config.mlp_dim}."
        )
    rng = np.random.default_rng(seed)
    model = np.arange(emb_dim) % config.emb_dim
    heads = np.arange(num_heads) % config.num_heads
    joined = (heads[:, None] * config.head_dim + np.arange(config.head_dim)).reshape(-1)
    hidden = np.arange(mlp_dim) % config.mlp_dim
    reads = {"query": (model, joined), "key": (model, joined), "value": (model, joined)}
    reads |= {"out": (joined, model), "wo": (hidden, model)}
    reads |= dict.fromkeys(("wi", "wi_0", "wi_1"), (model, hidden))
    reads["logits_dense"] = (model, np.arange(config.vocab_size))

    def widen(path: tuple[jax.tree_util.DictKey, ...], leaf: np.ndarray) -> np.ndarray:
        names = [key.key for key in path]
        if names[-1] == "kernel":
            rows, columns = reads[names[-2]]
            return _shared(leaf[rows][:, columns], rows, rng)
        if names[-1] == "rel_embedding":
            return leaf[heads]
        return leaf[..., model]  # embeddings and the scales of norms

    params = jax.tree_util.tree_map_with_path(widen, jax.tree.map(np.asarray, params))
    grown = dataclasses.replace(config, emb_dim=emb_dim, num_heads=num_heads, mlp_dim=mlp_dim)
    return grown, params


def _shared(kernel: np.ndarray, copies_of: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Shares the rows of a kernel out among the copies of a unit: the shares sum to 1."""
    share = rng.uniform(0.5, 1.5, kernel.shape).astype(kernel.dtype)
    total = np.zeros((copies_of.max() + 1, kernel.shape[1]), kernel.dtype)
    np.add.at(total, copies_of, share)
    return kernel * share / total[copies_of]


def main() -> int:
    """Reads the flags; a mistake is one sentence and exit status 1."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--weights", type=Path, required=True, help="of the T5 to make wider")
    parser.add_argument("--output", type=Path, required=True, help="the directory to write")
    for name in ("emb_dim", "num_heads", "mlp_dim"):
        parser.add_argument(f"--{name}", type=int, required=True, help="of the wider one")
    parser.add_argument("--seed", type=int, default=0, help="of the shares (0)")
    flags = vars(parser.parse_args())
    weights, output = flags.pop("weights"), flags.pop("output")
    try:
        save_params(output, *grow(*load_params(weights), **flags), dtype="float32")
    except (OSError, ValueError) as error:
        print(f"grow_t5: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
