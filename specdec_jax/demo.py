"""The main job, shown: the shipped pair on sentences it has never seen."""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from specdec_jax.generate import TASKS, Settings, batches, decode_traced, read, settle
from specdec_jax.pretrained import Pair
from specdec_jax.speed import Comparison
from specdec_jax.terminal import show_trace

SHARE_OF_FIRST = 2 / 3  # of the sentences, the task that the pair does best


def choose(rows: Sequence[dict[str, Any]], number: int) -> list[dict[str, Any]]:
    """Picks sentences of every task there is: most of the first, equal shares of the rest.

    Raises:
      ValueError: a sentence is of none of `TASKS`.
    """
    unknown = {row["task"] for row in rows} - TASKS.keys()
    if unknown:
        raise ValueError(f"There is no task {min(unknown)!r}; there are {', '.join(TASKS)}.")
    of_task = {task: [row for row in rows if row["task"] == task] for task in TASKS}
    present = [task for task in TASKS if of_task[task]]
    chosen: list[dict[str, Any]] = []
    for i, task in enumerate(present):
        left, tasks_left = number - len(chosen), len(present) - i
        share = SHARE_OF_FIRST if i == 0 and tasks_left > 1 else 1 / tasks_left
        chosen += of_task[task][: round(left * share)]
    return chosen


def demo(
    pair: Pair,
    rows: Sequence[dict[str, Any]],
    settings: Settings = Settings(),
    *,
    repeats: int = 3,
    out: Callable[[str], None] = print,
) -> bool:
    """Decodes held-out sentences with the draft and without, and prints what came of it.

    Greedy, one sentence at a time, both ways in turn.

    Args:
      pair: what decodes.
      rows: as `pretrained.held_out` gives them; or some of them, as `choose` does.
      settings: how; gamma, above all.
      repeats: timed runs of each sentence, each way.
      out: prints a line.

    Returns:
      Whether every sentence came out as it does from the target alone.
    """
    settings = _show_first(pair, rows[0], settings, out)
    gamma = settings.gamma if isinstance(settings.gamma, int) else "adaptive"
    comparisons = {}
    for task in dict.fromkeys(row["task"] for row in rows):
        some = [row for row in rows if row["task"] == task]
        out(f"\n{task}: {len(some)} held-out sentences, greedy, gamma {gamma}")
        comparisons[task] = Comparison(pair, settings, repeats)
        sources = [row["inputs"] for row in some]
        for batch in batches(pair, sources, settings):
            [row] = read(pair, batch, comparisons[task].add(batch))
            out(f"  < {row.inputs.removeprefix(TASKS[task].prefix)}\n  > {row.prediction}")
    return _summary(comparisons, out)


def _show_first(
    pair: Pair, row: dict[str, Any], settings: Settings, out: Callable[[str], None]
) -> Settings:
    """One sentence's trace: what the draft guessed, and what the target made of it."""
    [batch] = batches(pair, [row["inputs"]], settings)
    settings = settle(pair, batch, settings)
    rounds, result = decode_traced(pair, batch, settings)
    most = settings.gamma if isinstance(settings.gamma, int) else "some"
    out(f"The draft guesses {most} tokens a round, the target reads them at once:")
    out(f"\n  {row['inputs']}\n")
    show_trace(rounds, pair.vocabulary)
    out(f"\n{int(result.lengths[0])} tokens in {len(rounds)} calls of the target")
    return settings


def _summary(comparisons: dict[str, Comparison], out: Callable[[str], None]) -> bool:
    out("\ntask      sentences  alpha  tokens/call  speculative  target alone  speed-up")
    for task, c in comparisons.items():
        out(
            f"{task:<9} {c.rows:>9}  {c.alpha:>5.2f}  {c.tokens_per_call:>11.2f}"
            f"  {c.tokens_per_second:>7.0f} t/s  {c.plain_tokens_per_second:>8.0f} t/s"
            f"  {c.speedup:>7.2f}X"
        )
    rows = sum(c.rows for c in comparisons.values())
    identical = sum(c.identical for c in comparisons.values())
    fast = statistics.median(s for c in comparisons.values() for s in c.rates)
    plain = statistics.median(s for c in comparisons.values() for s in c.plain_rates)
    compilation = sum(c.compile_seconds for c in comparisons.values())
    repeats = next(iter(comparisons.values())).repeats
    out(
        f"\nspeculative {fast:.0f} tokens/s, the target alone {plain:.0f} tokens/s: "
        f"{fast / plain:.2f}X\n"
        f"(batch 1, ratio of medians over {rows} sentences, each the median of {repeats} runs in "
        f"turn;\nthe draft's time is inside, {compilation:.0f} s of compilation and first runs "
        "are outside)\n"
    )
    slow = [(task, c) for task, c in comparisons.items() if c.speedup < 1]
    for task, c in slow:
        out(f"Why {task} is slower: {c.reason()}\n")
    for task, c in comparisons.items():
        for difference in c.differences:
            out(f"{task} differs in {difference}")
    out(f"identical to the target alone: {identical} of {rows}")
    return identical == rows
