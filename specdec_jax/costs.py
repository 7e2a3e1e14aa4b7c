"""What decoding costs where it runs, measured in whole decodes: the c and T of section 3.

Theorem 3.8 takes the verification of gamma + 1 tokens to cost as much as one token. Where
it costs more, T(gamma + 1) > T(1), the improvement is

    (1 - alpha^(gamma + 1)) / (1 - alpha) / (gamma c + T(gamma + 1) / T(1)).

Rounds are timed where they happen, with the target's weights between two calls of the
draft: alone in a loop, a small draft stays in a CPU's cache and costs half as much.
"""

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from specdec_jax.decoding import autoregressive_decode, speculative_decode
from specdec_jax.gamma import AdaptiveGamma, Budget
from specdec_jax.sampling import Sampling
from specdec_jax.types import DecodeResult, Drafter, Model, Params, Partitioner, VerifyRule
from specdec_jax.verification import ExactRule

REPEATS = 7  # timed runs of each kind, in turn; their median counts


class Decoders(NamedTuple):
    """What is measured."""

    target: Model
    target_params: Params
    drafter: Drafter
    draft_params: Params


class Costs(NamedTuple):
    """What calls cost, in calls of the target on one token."""

    draft: float  # c, one guess
    verification: dict[int, float]  # by gamma, T(gamma + 1) / T(1)
    prefill: float = 0.0  # the target's reading of the sources
    draft_prefill: float = 0.0  # the draft's
    seconds: float = float("nan")  # of such a call


def median_costs(costs: Sequence[Costs]) -> Costs:
    """Each cost's median over several measurements, of the same gammas."""
    return Costs(
        statistics.median(each.draft for each in costs),
        {
            gamma: statistics.median(each.verification[gamma] for each in costs)
            for gamma in costs[0].verification
        },
        statistics.median(each.prefill for each in costs),
        statistics.median(each.draft_prefill for each in costs),
        statistics.median(each.seconds for each in costs),
    )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _AlwaysSo:
    """Always the same number of guesses, which is no part of what is compiled."""

    guesses: Any  # int32[]
    widths: tuple[int, ...] = dataclasses.field(metadata={"static": True})

    def init(self, rows: int) -> Array:
        return jnp.full((rows,), self.guesses, jnp.int32)

    def budget(self, state: Array) -> Budget:
        return Budget(state)

    def update(self, state: Array, examined: Array, accepted: Array) -> Array:
        return state


def measure_costs(
    models: Decoders,
    inputs: Array,
    key: Array,
    *,
    gammas: Sequence[int],
    max_new_tokens: int,
    sampling: Sampling,
    repeats: int = REPEATS,
) -> Costs:
    """What a guess and a verification cost, in calls of the target on one token.

    Rounds of one guess and of many, verified alike, differ by the guesses alone.

    Args:
      models: what decodes.
      inputs: int32[B, T], sources of the shape in question.
      key: of the sampling.
      gammas: the guesses of a verification, ascending; for one alone that is 1, c is not told
        apart and counts to the verification.
      max_new_tokens: N.
      sampling: temperature, top-k, top-p.
      repeats: timed runs of each kind; their median counts.
    """
    rest: dict[str, Any] = {"max_new_tokens": max_new_tokens, "sampling": sampling, "eos_id": -1}

    def plain() -> DecodeResult:
        return autoregressive_decode(models.target, models.target_params, inputs, key, **rest)

    def guessing(guesses: int, width: int) -> Callable[[], DecodeResult]:
        policy = _AlwaysSo(jnp.int32(guesses), (width,))
        return lambda: speculative_decode(*models, inputs, key, gamma=policy, **rest)

    most = gammas[-1]
    runs = [plain, guessing(1, most), *(guessing(gamma, gamma) for gamma in gammas)]
    reading, (alone, few, *full) = _time_rounds(
        models, inputs, max_new_tokens + most + 1, runs, repeats
    )
    more = full[-1].guesses - few.guesses
    guess = max(0.0, full[-1].seconds - few.seconds) / more if more > 0.5 else 0.0
    return Costs(
        draft=guess / alone.seconds,
        verification={
            # Of a model so small that only noise is left, something above 0 all the same.
            gamma: max(one.seconds - one.guesses * guess, 1e-9) / alone.seconds
            for gamma, one in zip(gammas, full, strict=True)
        },
        prefill=reading.target / alone.seconds,
        draft_prefill=max(0.0, reading.both - reading.target) / alone.seconds,
        seconds=alone.seconds,
    )


def measured_gamma(
    models: Decoders,
    inputs: Array,
    key: Array,
    *,
    choices: Sequence[int] = (0, 3, 7),
    max_new_tokens: int,
    sampling: Sampling,
    rule: VerifyRule = ExactRule(),
    partitioner: Partitioner | None = None,
) -> AdaptiveGamma:
    """The adaptive policy for where it runs, its costs measured in the program it will run.

    Args:
      models: what decodes.
      inputs: int32[B, T], sources of the shape in question.
      key: of the sampling.
      choices: the gammas to choose from.
      max_new_tokens: N.
      sampling: temperature, top-k, top-p.
      rule: what to accept.
      partitioner: where it runs; None: on one device.
    """
    decode = partitioner.speculative_decode if partitioner else speculative_decode

    def always(place: int) -> Callable[[], DecodeResult]:
        only = [1.0 if other == place else float("inf") for other in range(len(choices))]
        policy = AdaptiveGamma(jnp.asarray(only), tuple(choices))
        return lambda: decode(
            *models,
            inputs,
            key,
            gamma=policy,
            max_new_tokens=max_new_tokens,
            sampling=sampling,
            rule=rule,
        )

    runs = [always(place) for place in range(len(choices))]
    share = inputs[: -(-len(inputs) // (partitioner.groups if partitioner else 1))]  # of a device
    _, rounds = _time_rounds(models, share, max_new_tokens + choices[-1] + 1, runs)
    costs = [each.seconds / rounds[0].seconds for each in rounds]
    return AdaptiveGamma(jnp.asarray(costs), tuple(choices))


class _Round(NamedTuple):
    """A round of some decodes, on average."""

    seconds: float  # without prefill
    guesses: float


class _Reading(NamedTuple):
    """Prefill, in seconds."""

    target: float
    both: float  # the target's and the draft's


def _time_rounds(
    models: Decoders,
    inputs: Array,
    length: int,
    decodes: Sequence[Callable[[], DecodeResult]],
    repeats: int = REPEATS,
) -> tuple[_Reading, list[_Round]]:
    """Runs decodes in turn, compiled before; a round's time is the median."""

    @jax.jit
    def prefill(target_params: Params) -> Any:
        return models.target.prefill(target_params, inputs, length)

    @jax.jit
    def prefill_both(target_params: Params, draft_params: Params) -> Any:
        cache = models.target.prefill(target_params, inputs, length)
        state = models.drafter.init(draft_params, inputs, length, gamma=1, target_cache=cache)
        return cache, state

    def read() -> Any:
        return prefill(models.target_params)

    def read_both() -> Any:
        return prefill_both(models.target_params, models.draft_params)

    def seconds(run: Callable[[], Any]) -> float:
        start = time.perf_counter()
        jax.block_until_ready(run())
        return time.perf_counter() - start

    runs = [read, read_both, *decodes]
    results = [jax.device_get(decode()) for decode in decodes]
    jax.block_until_ready((read(), read_both()))
    times = zip(*([seconds(run) for run in runs] for _ in range(repeats)), strict=True)
    reading, both, *decoding = (statistics.median(each) for each in times)
    rounds = []
    for result, each in zip(results, decoding, strict=True):
        calls = int(result.target_calls)
        read_here = reading if result.drafted.shape[1] == 0 else both
        rounds.append(
            _Round(
                seconds=max(each - read_here, 1e-9) / calls,
                guesses=int(result.drafted.sum(axis=1).max(initial=0)) / calls,
            )
        )
    return _Reading(reading, both), rounds
