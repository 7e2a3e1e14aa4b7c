"""Drafts side by side: how well each guesses, what it costs, and what that comes to."""

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from specdec_jax.analysis import walltime_improvement
from specdec_jax.costs import Costs, measure_costs
from specdec_jax.generate import Settings, batches, check_lengths, decode, decoders
from specdec_jax.pretrained import Pair
from specdec_jax.sampling import Sampling
from specdec_jax.speed import Comparison

GAMMAS = (1, 3, 7)  # to choose from
_ALPHA_AT = 3  # the gamma at which alpha is measured


class DraftRow(NamedTuple):
    """One draft on one task."""

    draft: str
    task: str
    alpha: float  # accepted / judged guesses, at temperature 0
    alpha_sampled: float  # at temperature 1
    c: float  # a guess, in calls of the target on one token
    gamma: int  # the best of `GAMMAS` by Theorem 3.8, with T(gamma + 1) measured
    expected: float  # the speed-up there, at temperature 0
    measured: float


class _Guesses(NamedTuple):
    alpha: float
    per_place: float  # as alpha, a guess that was not made counted as rejected


def compare_drafts(
    load: Callable[[str], Pair],
    drafts: Sequence[str],
    rows: Sequence[dict[str, Any]],
    settings: Settings,
    *,
    repeats: int = 3,
    progress: Callable[[int], None] = lambda done: None,
) -> list[DraftRow]:
    """Measures every draft on every task, at batch 1.

    Args:
      load: gives the pair with a draft, by its name.
      drafts: names, of `pretrained.DRAFTS`.
      rows: sources with their prefix and their task, as `pretrained.held_out` gives them.
      settings: lengths and seed; the rest is set here.
      repeats: timed runs of each sentence, each way.
      progress: is told of each draft and task that is done.
    """
    pairs = {draft: load(draft) for draft in drafts}  # a wrong name is told before the work
    check_lengths(pairs[drafts[0]], [row["inputs"] for row in rows], settings)
    found = []
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    for draft, pair in pairs.items():
        costs = None
        for task in tasks:
            sources = [row["inputs"] for row in rows if row["task"] == task]
            greedy, sampled = (
                _guesses(pair, sources, dataclasses.replace(settings, sampling=Sampling(t)))
                for t in (0.0, 1.0)
            )
            costs = costs or _costs(pair, sources[0], settings)
            expected = {
                gamma: walltime_improvement(
                    greedy.per_place, gamma, costs.draft, costs.verification[gamma]
                )
                for gamma in GAMMAS
            }
            best = max(GAMMAS, key=expected.__getitem__)
            comparison = Comparison(pair, dataclasses.replace(settings, gamma=best), repeats)
            for batch in batches(pair, sources, settings):
                comparison.add(batch)
            if comparison.differences:
                raise ValueError(f"{draft} on {task}: {comparison.differences[0]}.")
            found.append(
                DraftRow(
                    draft,
                    task,
                    greedy.alpha,
                    sampled.alpha,
                    costs.draft,
                    best,
                    expected[best],
                    comparison.speedup,
                )
            )
            progress(1)
    return found


def _guesses(pair: Pair, sources: Sequence[str], settings: Settings) -> _Guesses:
    accepted = examined = ended = 0
    settings = dataclasses.replace(settings, gamma=_ALPHA_AT)
    for batch in batches(pair, sources, settings):
        result = decode(pair, batch, settings)
        accepted += int(result.accepted.sum())
        examined += int(result.examined.sum())
        ended += int(result.rounds.sum()) - int(result.accepted[:, -1].sum())
    return _Guesses(
        accepted / examined if examined else float("nan"), accepted / max(accepted + ended, 1)
    )


def _costs(pair: Pair, source: str, settings: Settings) -> Costs:
    [batch] = batches(pair, [source], settings)
    return measure_costs(
        decoders(pair),
        batch.inputs,
        batch.keys,
        gammas=GAMMAS,
        max_new_tokens=settings.max_new_tokens,
        sampling=settings.sampling,
    )


def table(rows: Sequence[DraftRow]) -> str:
    """The rows as a Markdown table."""
    lines = [
        "| draft | task | α, T = 0 | α, T = 1 | c | best γ | expected | measured |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.draft} | {row.task} | {row.alpha:.2f} | {row.alpha_sampled:.2f} | {row.c:.2f} "
        f"| {row.gamma} | {row.expected:.2f}X | {row.measured:.2f}X |"
        for row in rows
    ]
    return "\n".join(lines)


def summary(rows: Sequence[DraftRow]) -> str:
    """How far the prediction was off."""
    errors = [abs(row.expected / row.measured - 1) for row in rows]
    return f"expected and measured differ by {100 * statistics.median(errors):.0f} % in the median"
