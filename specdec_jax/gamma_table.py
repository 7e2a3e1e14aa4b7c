"""Policies of gamma side by side: how fast each decodes, against the target alone."""

import collections
import dataclasses
import functools
import random
import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from specdec_jax.decoding import speculative_decode
from specdec_jax.gamma import AssistedGamma, ConfidentGamma
from specdec_jax.generate import (
    Batch,
    Settings,
    batches,
    check_lengths,
    decode_plain,
    decoders,
    learn,
    settle,
)
from specdec_jax.pretrained import Pair
from specdec_jax.speed import timed
from specdec_jax.types import DecodeResult

FIXED = (1, 2, 3, 5, 7)
ALONE, ADAPTIVE = "the target alone", "adaptive"


class GammaRow(NamedTuple):
    """One policy on one task."""

    policy: str
    task: str
    speedup: float  # over the target alone
    gamma: float  # guesses a round, rounds without any among them


@dataclasses.dataclass
class _Tally:
    """What a policy came to on the sentences so far."""

    seconds: float = 0.0
    tokens: int = 0
    guesses: int = 0
    rounds: int = 0

    def add(self, result: DecodeResult, seconds: float) -> None:
        self.seconds += seconds
        self.tokens += int(result.lengths.sum())
        self.guesses += int(result.drafted.sum())
        self.rounds += int(result.rounds.sum())


def compare_gammas(
    pair: Pair,
    rows: Sequence[dict[str, Any]],
    settings: Settings,
    *,
    repeats: int = 3,
    progress: Callable[[int], None] = lambda done: None,
) -> list[GammaRow]:
    """Decodes the sentences of each task by every policy in turn, at batch 1.

    The adaptive one measures its costs on a task's first sentence, and goes on from each
    sentence to the next with what it has seen.

    Args:
      pair: what decodes.
      rows: sources with their prefix and their task, as `pretrained.held_out` gives them.
      settings: sampling, lengths and seed; the rest is set here.
      repeats: timed runs of each sentence by each policy, of which the median counts.
      progress: is told of each sentence that is done.
    """
    check_lengths(pair, [row["inputs"] for row in rows], settings)
    found, shuffle = [], random.Random(settings.seed)
    for task in dict.fromkeys(row["task"] for row in rows):
        tallies: dict[str, _Tally] = collections.defaultdict(_Tally)
        adaptive = dataclasses.replace(settings, gamma="auto")
        sources = [row["inputs"] for row in rows if row["task"] == task]
        for batch in batches(pair, sources, settings):
            adaptive = settle(pair, batch, adaptive)
            ways = _ways(pair, batch, settings, adaptive.gamma)
            results = {name: way() for name, way in ways.items()}  # compiles, too
            # In another order each time: a run is faster after one of its own kind.
            orders = [shuffle.sample(list(ways), len(ways)) for _ in range(repeats)]
            runs = [{name: timed(ways[name])[1] for name in order} for order in orders]
            for name, result in results.items():
                tallies[name].add(result, statistics.median(run[name] for run in runs))
            adaptive = learn(adaptive, results[ADAPTIVE])
            progress(1)
        alone = tallies[ALONE].tokens / tallies[ALONE].seconds
        found += [
            GammaRow(name, task, t.tokens / t.seconds / alone, t.guesses / t.rounds)
            for name, t in tallies.items()
        ]
    return found


def _ways(
    pair: Pair, batch: Batch, settings: Settings, adaptive: Any
) -> dict[str, Callable[[], DecodeResult]]:
    """Decodes a batch by each policy."""
    policies: dict[str, Any] = {f"gamma {gamma}": gamma for gamma in FIXED}
    policies |= {"confident": ConfidentGamma((3, 7), 0.5), "assisted": AssistedGamma((1, 3, 7), 5)}
    policies[ADAPTIVE] = adaptive
    speculate = functools.partial(
        speculative_decode,
        *decoders(pair),
        batch.inputs,
        batch.keys,
        max_new_tokens=settings.max_new_tokens,
        sampling=settings.sampling,
    )
    return {
        ALONE: functools.partial(decode_plain, pair, batch, settings),
        **{name: functools.partial(speculate, gamma=gamma) for name, gamma in policies.items()},
    }


def table(rows: Sequence[GammaRow]) -> str:
    """The rows as a Markdown table, a line a policy, and how near adaptive comes to the best."""
    tasks = list(dict.fromkeys(row.task for row in rows))
    of = {(row.policy, row.task): row for row in rows}
    lines = [
        f"| policy | {' | '.join(f'{task} | guesses a round' for task in tasks)} |",
        f"|---|{'---|' * 2 * len(tasks)}",
    ]
    for policy in dict.fromkeys(row.policy for row in rows):
        cells = [policy]
        for task in tasks:
            cells += [f"{of[policy, task].speedup:.2f}X", f"{of[policy, task].gamma:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    lines.append("")
    for task in tasks:
        fixed = max(
            (of[name, task] for name in (ALONE, *(f"gamma {gamma}" for gamma in FIXED))),
            key=lambda row: row.speedup,
        )
        share = 100 * (of[ADAPTIVE, task].speedup / fixed.speedup - 1)
        lines.append(f"{task}: adaptive {share:+.1f} % against the best fixed, {fixed.policy}")
    return "\n".join(lines)
