"""Rules side by side: how many guesses stand, and how many tokens that makes a call."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from specdec_jax.generate import Settings, batches, check_lengths, decode, search
from specdec_jax.pretrained import Pair
from specdec_jax.sampling import GREEDY, Sampling

_SAMPLED = Sampling(1.0)

# What is compared, by name: settings beside those of the run.
RULES: dict[str, dict[str, Any]] = {
    "exact": {"sampling": _SAMPLED},
    "gumbel": {"sampling": _SAMPLED, "rule": "gumbel"},
    "2 drafts": {"sampling": _SAMPLED, "num_drafts": 2},
    "4 drafts": {"sampling": _SAMPLED, "num_drafts": 4},
    "lenient, l = 0.5": {"sampling": _SAMPLED, "rule": "lenient", "lenience": 0.5},
    "lenient, l = 0.1": {"sampling": _SAMPLED, "rule": "lenient", "lenience": 0.1},
    "exact, greedy": {"sampling": GREEDY},
    "lenient, l = 0.5, greedy": {"sampling": GREEDY, "rule": "lenient", "lenience": 0.5},
    "lenient, l = 0.1, greedy": {"sampling": GREEDY, "rule": "lenient", "lenience": 0.1},
    "2 beams, 4 of the draft": {"num_beams": 2, "num_draft_beams": 4},
    "4 beams, 8 of the draft": {"num_beams": 4, "num_draft_beams": 8},
}


class RuleRow(NamedTuple):
    """One rule on one task."""

    rule: str
    task: str
    alpha: float  # accepted / judged guesses; NaN of beam search
    tokens_per_call: float  # of beam search, its steps per target call


def compare_rules(
    pair: Pair,
    rows: Sequence[dict[str, Any]],
    settings: Settings,
    *,
    progress: Callable[[int], None] = lambda done: None,
) -> list[RuleRow]:
    """Decodes the rows of each task by each of `RULES`.

    Args:
      pair: what decodes.
      rows: sources with their prefix and their task, as `pretrained.held_out` gives them.
      settings: gamma, lengths, batch size and seed; the rest is set here.
      progress: is told of each rule and task that is done.
    """
    check_lengths(pair, [row["inputs"] for row in rows], settings)
    found = []
    for rule, changes in RULES.items():
        now = dataclasses.replace(settings, **changes)
        for task in dict.fromkeys(row["task"] for row in rows):
            accepted = examined = tokens = calls = 0
            for batch in batches(pair, [r["inputs"] for r in rows if r["task"] == task], now):
                real = len(batch.lines)
                if now.num_beams > 1:
                    searched = search(pair, batch, now)
                    tokens += int(searched.steps[:real].sum())
                    calls += int(searched.rounds[:real].sum())
                    continue
                result = decode(pair, batch, now)
                accepted += int(result.accepted[:real].sum())
                examined += int(result.examined[:real].sum())
                tokens += int(result.lengths[:real].sum())
                calls += int(result.rounds[:real].sum())
            alpha = accepted / examined if examined else float("nan")
            found.append(RuleRow(rule, task, alpha, tokens / calls))
            progress(1)
    return found


def table(rows: Sequence[RuleRow]) -> str:
    """The rows as a Markdown table, a line a rule."""
    tasks = list(dict.fromkeys(row.task for row in rows))
    of = {(row.rule, row.task): row for row in rows}
    lines = [
        f"| rule | {' | '.join(f'α, {task} | tokens a call' for task in tasks)} |",
        f"|---|{'---|' * 2 * len(tasks)}",
    ]
    for rule in dict.fromkeys(row.rule for row in rows):
        cells = [rule]
        for task in tasks:
            row = of[rule, task]
            cells += [f"{row.alpha:.3f}" if row.alpha == row.alpha else "", ""]
            cells[-1] = f"{row.tokens_per_call:.2f}"
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
