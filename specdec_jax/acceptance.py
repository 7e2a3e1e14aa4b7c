"""alpha and beta (Definition 3.1, section 3), estimated with intervals.

beta of a prefix is the chance that the target accepts the draft's guess there, alpha its
expectation over prefixes. Two ways to estimate alpha:

* by counting: accepted over judged guesses of speculative decodes;
* teacher-forced: the mean of beta = sum_x min(p(x), q(x)) (Theorem 3.5) over the prefixes of
  given outputs, references or the target's own samples. Exact at each prefix, and without a
  loop; but the prefixes that a decode judges guesses at are those behind accepted guesses.

The tokens of a text depend on one another, texts do not: intervals are of resampled texts.

Shapes: R rows (texts), N tokens, V vocabulary, gamma guesses a round.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from specdec_jax.drafters.model import ModelDrafter, fit_vocabulary
from specdec_jax.sampling import Sampling, distribution
from specdec_jax.types import DecodeResult, Model, Params
from specdec_jax.vocabulary import PAD_ID

_RESAMPLES = 2000
_LEVEL = 0.95


class Estimate(NamedTuple):
    """A rate with its 95 % interval."""

    value: float  # NaN where nothing was counted
    low: float
    high: float
    total: int  # guesses or prefixes behind it


class Acceptance(NamedTuple):
    """How the guesses of some decodes fared."""

    alpha: Estimate
    by_position: tuple[Estimate, ...]  # by place in the round, of the guesses that were judged


def estimate(accepted: ArrayLike, examined: ArrayLike, *, seed: int = 0) -> Estimate:
    """A ratio of sums over rows, and the interval of a bootstrap of whole rows.

    Args:
      accepted: [R], each row's sum of what is averaged: accepted guesses, or betas.
      examined: [R], each row's number of them.
      seed: of the resampling.
    """
    sums = np.asarray([accepted, examined], np.float64)
    total, count = sums.sum(axis=1)
    if not count:
        return Estimate(float("nan"), float("nan"), float("nan"), 0)
    rows = np.random.default_rng(seed).integers(sums.shape[1], size=(_RESAMPLES, sums.shape[1]))
    over, under = sums[0][rows].sum(axis=1), sums[1][rows].sum(axis=1)
    ratios = over[under > 0] / under[under > 0]
    low, high = np.quantile(ratios, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return Estimate(float(total / count), float(low), float(high), int(count))


def of_decodes(results: Sequence[DecodeResult], *, seed: int = 0) -> Acceptance:
    """Alpha by counting, over the rows of speculative decodes of one gamma."""
    accepted, examined = (
        np.concatenate([np.asarray(getattr(result, name)) for result in results])
        for name in ("accepted", "examined")
    )
    return Acceptance(
        estimate(accepted.sum(axis=1), examined.sum(axis=1), seed=seed),
        tuple(
            estimate(accepted[:, i], examined[:, i], seed=seed) for i in range(accepted.shape[1])
        ),
    )


def teacher_forced(
    target: Model,
    target_params: Params,
    drafter: ModelDrafter,
    draft_params: Params,
    inputs: ArrayLike,
    outputs: ArrayLike,
    *,
    sampling: Sampling,
) -> Array:
    """Beta at every prefix of given outputs, by Theorem 3.5.

    Args:
      target: p.
      target_params: its parameters.
      drafter: q; one that guesses from a model.
      draft_params: its parameters.
      inputs: int32[R, T], sources.
      outputs: int32[R, N], their outputs, 0 behind the end of sequence.
      sampling: standardized sampling of p and q.

    Returns:
      float32[R, N], beta of the prefix before each token; NaN where there is no token.

    Raises:
      TypeError: the drafter has no distribution but where it guesses.
    """
    if not isinstance(drafter, ModelDrafter):
        raise TypeError(
            f"beta needs a draft's distribution at every prefix, which {type(drafter).__name__} "
            "has not: count accepted guesses (of_decodes)."
        )
    return _betas(
        target,
        target_params,
        drafter,
        draft_params,
        jnp.asarray(inputs),
        jnp.asarray(outputs),
        sampling,
    )


@partial(jax.jit, static_argnames=("target", "drafter", "sampling"))
def _betas(
    target: Model,
    target_params: Params,
    drafter: ModelDrafter,
    draft_params: Params,
    inputs: Array,
    outputs: Array,
    sampling: Sampling,
) -> Array:
    before = jnp.pad(outputs, [(0, 0), (1, 0)])[:, :-1]  # behind the start token, 0
    positions = jnp.broadcast_to(jnp.arange(outputs.shape[1]), outputs.shape)

    def logits(model: Model, params: Params) -> Array:
        cache = model.prefill(params, inputs, outputs.shape[1])
        return model.extend(params, cache, before, positions)[0]

    p = distribution(logits(target, target_params), sampling)
    q = fit_vocabulary(logits(drafter.model, draft_params), target.vocab_size)
    q = distribution(q, drafter.sampling or sampling)
    return jnp.where(outputs == PAD_ID, jnp.nan, jnp.minimum(p, q).sum(axis=-1))


def of_betas(betas: ArrayLike, *, seed: int = 0) -> Estimate:
    """Alpha from `teacher_forced`'s betas, float[R, N], NaN where there is no token."""
    betas = np.asarray(betas, np.float64)
    return estimate(np.nansum(betas, axis=1), np.isfinite(betas).sum(axis=1), seed=seed)


def by_position(betas: ArrayLike, *, seed: int = 0) -> tuple[Estimate, ...]:
    """The mean beta at each position of the output, from float[R, N]."""
    betas = np.asarray(betas, np.float64)
    return tuple(
        estimate(np.nan_to_num(column), np.isfinite(column), seed=seed) for column in betas.T
    )
