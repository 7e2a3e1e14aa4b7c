"""Ways to decode the same batches, raced, and the line of the paper's Table 2 that comes of it.

Every way is timed in turn on each batch, in another order each time. A time is of a whole
decode, the encoder and the draft in it, until its result is ready. What has not run before
runs once untimed: compilation is outside, and reported apart.
"""

import dataclasses
import functools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from specdec_jax import acceptance
from specdec_jax.analysis import break_even_alpha, decode_cost, walltime_improvement
from specdec_jax.benchmark_table import BenchmarkRow, Speedup
from specdec_jax.costs import Costs
from specdec_jax.generate import Batch, with_text
from specdec_jax.speed import timed
from specdec_jax.types import DecodeResult

SPECULATIVE, OURS = "speculative", "the target alone"
FAR_OFF = 0.15  # EXP against measured, beyond which a row explains itself

Way = Callable[[Batch], Any]  # a `DecodeResult`, or another's result with tokens and lengths

_RESAMPLES = 1000  # of the batches, for the intervals


@dataclasses.dataclass(frozen=True)
class Race:
    """What was seen of every way, by batch.

    Attributes:
      seconds: the median time of each batch.
      results: the first run's, on the host, of the rows that have text.
      compile_seconds: of compilation and first runs.
    """

    seconds: dict[str, list[float]]
    results: dict[str, list[DecodeResult]]
    compile_seconds: dict[str, float]

    def tokens(self, way: str) -> list[int]:
        """Emitted tokens of each batch."""
        return [int(result.lengths.sum()) for result in self.results[way]]

    @property
    def agreement(self) -> dict[str, int]:
        """By way, the rows whose tokens are those of the speculative decode."""
        return {
            name: sum(
                np.array_equal(a, b)
                for here, there in zip(self.results[SPECULATIVE], results, strict=True)
                for a, b in zip(here.tokens, there.tokens, strict=True)
            )
            for name, results in self.results.items()
            if name != SPECULATIVE
        }


def race(ways: Mapping[str, Way], batches: Sequence[Batch], *, repeats: int, seed: int) -> Race:
    """Times every way on every batch, interleaved.

    Args:
      ways: by name.
      batches: what to decode.
      repeats: timed runs of each batch, each way; their median counts.
      seed: of the order.
    """
    shuffle = random.Random(seed)
    found = Race({name: [] for name in ways}, {name: [] for name in ways}, dict.fromkeys(ways, 0.0))
    shapes = set()
    for batch in batches:
        runs = {name: functools.partial(way, batch) for name, way in ways.items()}
        first = {name: timed(run) for name, run in runs.items()}
        for name, (result, took) in first.items():
            found.results[name].append(with_text(batch, result))
            if batch.inputs.shape not in shapes:
                found.compile_seconds[name] += took
        shapes.add(batch.inputs.shape)
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(repeats):
            for name in shuffle.sample(list(ways), len(ways)):
                times[name].append(timed(runs[name])[1])
        for name, each in times.items():
            found.seconds[name].append(float(np.median(each)))
    return found


def as_row(
    found: Race,
    costs: Costs,
    *,
    task: str,
    draft: str,
    temperature: float,
    gamma: int,
    batch_size: int,
    seed: int,
    same_tokens: bool | None = None,
) -> BenchmarkRow:
    """A race as a line of Table 2, with what section 3 says beside what was measured.

    Args:
      found: the race.
      costs: measured of the same batches, of `gamma`.
      task: what was decoded.
      draft: its name.
      temperature: of the decodes.
      gamma: guesses a round.
      batch_size: rows decoded together.
      seed: of the resampling behind intervals.
      same_tokens: whether every way should give the same; None: at temperature 0.
    """
    if same_tokens is None:
        same_tokens = temperature == 0
    speculative = found.results[SPECULATIVE]
    alpha = acceptance.of_decodes(speculative, seed=seed).alpha
    verification = costs.verification[gamma]
    rounds = sum(int(result.rounds.sum()) for result in speculative)
    speedups = {
        name: speedup(found, name, seed=seed) for name in found.seconds if name != SPECULATIVE
    }
    row = BenchmarkRow(
        task=task,
        draft=draft,
        temperature=temperature,
        gamma=gamma,
        batch_size=batch_size,
        alpha=alpha.value,
        alpha_low=alpha.low,
        alpha_high=alpha.high,
        c=costs.draft,
        verification=verification,
        prefill=costs.prefill,
        draft_prefill=costs.draft_prefill,
        theorem=float(walltime_improvement(alpha.value, gamma, costs.draft)),
        generalised=float(walltime_improvement(alpha.value, gamma, costs.draft, verification)),
        expected=_expected(found, costs, alpha.value, gamma),
        tokens_per_call=sum(found.tokens(SPECULATIVE)) / max(rounds, 1),
        speedups=speedups,
        tokens_per_second={
            name: float(np.median(np.divide(found.tokens(name), found.seconds[name])))
            for name in found.seconds
        },
        compile_seconds=found.compile_seconds,
        identical=found.agreement[OURS] if same_tokens else None,
        agreement=found.agreement if same_tokens else {},
        rows=sum(len(result.lengths) for result in speculative),
        reason="",
    )
    why = [] if speedups[OURS].ratio >= 1 else [_why_it_does_not_pay(row)]
    if abs(row.expected / speedups[OURS].ratio - 1) > FAR_OFF:
        why.append(_why_far_off(row, found, costs))
    return dataclasses.replace(row, reason="; ".join(why))


def speedup(found: Race, baseline: str, *, seed: int) -> Speedup:
    """Tokens/s over the baseline's, of all batches together; batches are resampled."""
    of, over = (
        np.asarray([found.tokens(name), found.seconds[name]], np.float64)
        for name in (SPECULATIVE, baseline)
    )

    def ratio(chosen: np.ndarray) -> np.ndarray:
        """int[..., M] places of batches -> [...]."""
        here, there = (sums[:, chosen].sum(axis=-1) for sums in (of, over))
        return (here[0] / here[1]) / (there[0] / there[1])

    places = np.arange(of.shape[1])
    resampled = np.random.default_rng(seed).choice(places, (_RESAMPLES, len(places)))
    low, high = np.quantile(ratio(resampled), (0.025, 0.975))
    return Speedup(float(ratio(places)), float(low), float(high))


def _expected(found: Race, costs: Costs, alpha: float, gamma: int, calls: bool = False) -> float:
    """The speed-up of just these decodes: their lengths, their sources; alpha by Eq. 1's process.

    With `calls`, of the rounds that they took, in place of those that alpha would lead to.
    """
    if np.isnan(alpha):
        return float("nan")
    alone, speculative = found.results[OURS], found.results[SPECULATIVE]
    plain = sum(costs.prefill + int(result.lengths.max()) for result in alone)
    reading, verification = costs.prefill + costs.draft_prefill, costs.verification[gamma]
    guessed = 0.0
    for result in speculative:
        if calls:
            guessed += reading + int(result.target_calls) * (gamma * costs.draft + verification)
        else:
            guessed += decode_cost(
                alpha, gamma, costs.draft, verification, tokens=result.lengths, prefill=reading
            )
    return (sum(found.tokens(SPECULATIVE)) / guessed) / (sum(found.tokens(OURS)) / plain)


def _why_it_does_not_pay(row: BenchmarkRow) -> str:
    """What a round costs, and the alpha that would pay."""
    guesses = row.gamma * row.c
    cost = (
        f"a round costs {guesses + row.verification:.1f} calls of one token, the guesses "
        f"{guesses:.1f} and their verification {row.verification:.1f}"
    )
    needed = break_even_alpha(row.gamma, row.c, row.verification)
    if np.isnan(needed):
        return f"{cost}, more than the {row.gamma + 1} tokens that it can give: no draft would pay"
    if row.alpha >= needed:
        return (
            f"{cost}: at alpha {row.alpha:.2f} that should pay, if barely; so short a decode also "
            "pays for the draft's reading of the source"
        )
    return f"{cost}: alpha would have to be {needed:.2f}, and is {row.alpha:.2f}"


def _why_far_off(row: BenchmarkRow, found: Race, costs: Costs) -> str:
    """Whether the tokens a call were others than Eq. 1's, or the calls cost something else."""
    measured = row.speedups[OURS].ratio
    with_calls = _expected(found, costs, row.alpha, row.gamma, calls=True)
    off = f"EXP is {100 * (row.expected / measured - 1):+.0f} % off"
    if abs(with_calls / measured - 1) < FAR_OFF:
        return (
            f"{off}: guesses don't stand independently of one another as Eq. 1 has it; with the "
            f"{row.tokens_per_call:.2f} tokens a call that were measured it is {with_calls:.2f}X"
        )
    return (
        f"{off}, and {100 * (with_calls / measured - 1):+.0f} % with the tokens a call that were "
        "measured: the rest is the timing's own, costs and decodes being measured one after the "
        "other"
    )
