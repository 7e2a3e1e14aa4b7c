"""What a draft is trained on when it is distilled: how far q is from p at every position.

Each objective takes a complete distribution p, the target's, and log q, the draft's, both
at temperature 1, and gives a number of nats, or a probability, per position.

Shapes: n outcomes: V tokens, or the target's k likeliest and one for all others; any
leading dimensions.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from specdec_jax.vocabulary import PAD_ID

FLOOR = 1e-7  # of probabilities in logarithms: what is left of float32 and of float16 there


class Teacher(NamedTuple):
    """The target's distribution at some positions.

    Attributes:
      ids: uint16 or int32[..., k], its likeliest tokens; where k = V, [..., 0]: `probs` are
        in the order of the vocabulary.
      probs: float16[..., k], theirs.
      rest: float16[...], the mass of all others.
    """

    ids: Array | np.ndarray
    probs: Array | np.ndarray
    rest: Array | np.ndarray


def forward_kl(p: Array, log_q: Array) -> Array:
    """KL(p || q) (Hinton et al. 2015, arXiv:1503.02531): q must cover all that p does.

    Its gradient is that of cross-entropy with p as the labels: the least noisy.
    """
    return jnp.sum(_plogp(p) - p * log_q, axis=-1)


def reverse_kl(p: Array, log_q: Array) -> Array:
    """KL(q || p) (Gu et al. 2024, arXiv:2306.08543): q must stay where p is.

    p counts as at least `FLOOR`: what float16 holds no more would weigh infinitely.
    """
    log_p = jnp.log(jnp.maximum(p, FLOOR))
    return jnp.sum(jnp.exp(log_q) * (log_q - log_p), axis=-1)


def total_variation(p: Array, log_q: Array) -> Array:
    """1 - sum min(p, q), the probability that a guess is rejected.

    Theorem 3.5 of Leviathan et al. (2023): beta = 1 - D_LK(p, q) with
    D_LK = 1 - sum min(p, q), which is the total variation distance. Where q guesses of
    no mass of p, the gradient vanishes: start from a draft that knows the task.
    """
    return 1.0 - jnp.sum(jnp.minimum(p, jnp.exp(log_q)), axis=-1)


def jensen_shannon(p: Array, log_q: Array) -> Array:
    """(KL(p || m) + KL(q || m)) / 2, m = (p + q) / 2 (Agarwal et al. 2024, arXiv:2306.13649)."""
    q = jnp.exp(log_q)
    log_m = jnp.log(jnp.maximum((p + q) / 2, FLOOR / 2))
    return 0.5 * jnp.sum(_plogp(p) - p * log_m + q * (log_q - log_m), axis=-1)


def _plogp(p: Array) -> Array:
    """Gives p log p, and 0 at 0; p needs no gradient."""
    return jnp.where(p > 0, p * jnp.log(jnp.where(p > 0, p, 1.0)), 0.0)


OBJECTIVES: dict[str, Callable[[Array, Array], Array]] = {
    "forward_kl": forward_kl,
    "reverse_kl": reverse_kl,
    "total_variation": total_variation,
    "jensen_shannon": jensen_shannon,
}


def mixed(weights: Mapping[str, float]) -> Callable[..., Array]:
    """A weighted sum of objectives, as `train_step.make_step` takes losses.

    Raises:
      ValueError: there is no such objective, or a weight is negative, or all are 0.
    """
    for name in weights:
        if name not in OBJECTIVES:
            raise ValueError(f"There is no objective {name!r}; there are {', '.join(OBJECTIVES)}.")
    if not weights or min(weights.values()) < 0 or not sum(weights.values()):
        raise ValueError(f"An objective needs weights, 0 or above and not all 0: {dict(weights)}.")

    def losses(logits: Array, targets: Array, *teacher: Array) -> Array:
        p, log_q = distributions(Teacher(*teacher), logits)
        parts = [weight * OBJECTIVES[name](p, log_q) for name, weight in weights.items() if weight]
        return jnp.where(targets == PAD_ID, 0.0, sum(parts[1:], parts[0]))

    return losses


def distributions(teacher: Teacher, logits: Array) -> tuple[Array, Array]:
    """The target's p and the draft's log q over the same outcomes.

    With k below V, all tokens that the teacher does not name are one outcome. Merging
    outcomes never drives distributions apart (the data processing inequality): each
    divergence is a lower bound of that over V tokens, and the acceptance sum min(p, q) an
    upper one, by at most the smaller of the two rests. Within the rest q is free.

    Args:
      teacher: of k tokens.
      logits: float32[..., V], the draft's.

    Returns:
      float32[..., n] each: n is k + 1, or V where k = V.
    """
    log_z = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    p = jnp.asarray(teacher.probs, jnp.float32)
    if p.shape[-1] == logits.shape[-1]:
        log_q = logits - log_z
    else:
        p = jnp.concatenate([p, jnp.asarray(teacher.rest, jnp.float32)[..., None]], axis=-1)
        log_q = jnp.take_along_axis(logits, jnp.asarray(teacher.ids, jnp.int32), axis=-1) - log_z
        rest = 1.0 - jnp.sum(jnp.exp(log_q), axis=-1, keepdims=True)
        log_q = jnp.concatenate([log_q, jnp.log(jnp.maximum(rest, FLOOR))], axis=-1)
    # Rounding to float16 takes or adds some; padding has no distribution at all.
    return p / jnp.maximum(jnp.sum(p, axis=-1, keepdims=True), FLOOR), log_q


def acceptance(logits: Array, targets: Array, *teacher: Array) -> tuple[Array, Array, Array]:
    """Sums over a batch: beta = sum min(p, q); equal argmaxes; positions.

    beta (Theorem 3.5) is the probability that a guess is accepted at temperature 1; the
    argmaxes' being equal, that at temperature 0.

    Args:
      logits: float32[B, K, V].
      targets: int32[B, K].
      teacher: the arrays of a `Teacher` with k = V.
    """
    p, log_q = distributions(Teacher(*teacher), logits)
    real = targets != PAD_ID
    beta = jnp.where(real, 1.0 - total_variation(p, log_q), 0.0)
    same = (logits.argmax(-1) == p.argmax(-1)) & real
    return beta.sum(), same.sum(), real.sum()
