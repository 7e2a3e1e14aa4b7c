"""Optimizers and learning rates for training a T5, on optax."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from specdec_jax.layers import Params


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Warm-up, a constant, a decay (WSD): a factor from 0 to 1 of the step.

    A cosine over the whole run is `decay_steps = total_steps`. A run stopped in its
    constant part can be resumed with a `total_steps` of the present step plus
    `decay_steps`: it decays from there.

    Attributes:
      total_steps: where the run ends.
      warmup_steps: steps of linear warm-up.
      decay_steps: steps of decay at the end; 0 for none, total_steps for all.
      shape: "linear" or "cosine", of the decay; or "inverse_sqrt", T5's: the square
        root of warmup_steps / step after the warm-up, times a linear decay.
      final: what the decay ends at.
    """

    total_steps: int
    warmup_steps: int = 100
    decay_steps: int = 0
    shape: str = "linear"
    final: float = 0.0

    def __post_init__(self) -> None:
        if self.shape not in ("linear", "cosine", "inverse_sqrt"):
            raise ValueError(f"Unknown shape of the decay: {self.shape!r}.")

    def __call__(self, step: Array | int) -> Array:
        """int32[] -> float32[], the factor at a step (counted from 0)."""
        step = jnp.asarray(step, jnp.float32)
        factor = jnp.minimum(1.0, (step + 1.0) / max(self.warmup_steps, 1))
        if self.shape == "inverse_sqrt":
            warmup = max(self.warmup_steps, 1)
            factor *= jnp.sqrt(warmup / jnp.maximum(step + 1.0, warmup))
        if self.decay_steps:
            left = jnp.clip((self.total_steps - step) / self.decay_steps, 0.0, 1.0)
            if self.shape == "cosine":
                left = 0.5 - 0.5 * jnp.cos(jnp.pi * left)
            factor *= self.final + (1.0 - self.final) * left
        return factor


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """Which optimizer, and its numbers.

    Attributes:
      name: "muon" orthogonalizes the updates of the encoder's and the decoder's
        matrices (Jordan 2024), scaled to the size that Adam's have (Liu et al. 2025,
        arXiv:2502.16982), and gives the rest to Adam; "adamw"; "adafactor", which
        T5 was trained with.
      learning_rate: of the matrices, at the schedule's top; of everything for
        adamw and adafactor.
      embedding_rate: of the embedding, with muon.
      other_rate: of the logits' matrix, norms and position biases, with muon.
      query_factor: times learning_rate, of the queries' matrices, with muon. T5 does not
        divide scores by sqrt(head_dim): its query matrices are that much smaller from
        the start, and so must their updates be. At 1, attention saturates within a
        hundred steps and the loss stays where it is. This default is for head_dim 64.
      weight_decay: decoupled, on matrices.
      clip: the gradient's largest global norm; 0 for no clipping.
      b1, b2: Adam's decay rates.
      momentum: Muon's.
      iterations: Newton-Schulz steps of Muon; 4 with its first step rescaled
        ("aol", arXiv:2512.04632) are as good as 5 without.
    """

    name: str = "muon"
    learning_rate: float = 3e-3
    embedding_rate: float = 1e-2
    other_rate: float = 3e-3
    query_factor: float = 0.125
    weight_decay: float = 0.0
    clip: float = 1.0
    b1: float = 0.9
    b2: float = 0.98
    momentum: float = 0.95
    iterations: int = 4

    def __post_init__(self) -> None:
        if self.name not in ("muon", "adamw", "adafactor"):
            raise ValueError(
                f'The optimizer is one of "muon", "adamw", "adafactor"; got {self.name!r}.'
            )


def _group(path: tuple[Any, ...], leaf: Any) -> str:
    names = [k.key for k in path]
    if "token_embedder" in names:
        return "embedding"
    if names[-1] == "kernel" and names[-2] != "logits_dense":
        return "query" if names[-2] == "query" else "matrix"
    return "other"


def make_optimizer(optimizer: Optimizer, schedule: Schedule) -> optax.GradientTransformation:
    """The optax transformation of an `Optimizer` under a `Schedule`."""
    o = optimizer

    def rate(top: float) -> Callable[[Any], Any]:
        return lambda step: top * schedule(step)

    def groups(params: Params) -> Any:
        return jax.tree_util.tree_map_with_path(_group, params)

    def matrices(params: Params) -> Any:
        return jax.tree.map(lambda group: group in ("matrix", "query"), groups(params))

    def muon(top: float) -> optax.GradientTransformation:
        return optax.contrib.muon(
            rate(top),
            ns_steps=o.iterations,
            preconditioning="aol" if o.iterations < 5 else "frobenius",
            beta=o.momentum,
            weight_decay=o.weight_decay,
            consistent_rms=0.2,
        )

    if o.name == "muon":
        update = optax.partition(
            {
                "matrix": muon(o.learning_rate),
                "query": muon(o.learning_rate * o.query_factor),
                "embedding": optax.adam(rate(o.embedding_rate), b1=o.b1, b2=o.b2),
                "other": optax.adam(rate(o.other_rate), b1=o.b1, b2=o.b2),
            },
            groups,
        )
    elif o.name == "adamw":
        update = optax.adamw(
            rate(o.learning_rate), b1=o.b1, b2=o.b2, weight_decay=o.weight_decay, mask=matrices
        )
    else:
        update = optax.adafactor(
            rate(o.learning_rate),
            weight_decay_rate=o.weight_decay or None,
            weight_decay_mask=matrices,
        )
    clip = optax.clip_by_global_norm(o.clip) if o.clip else optax.identity()
    return optax.chain(clip, update)
