"""The lines of a benchmark, and the tables of them."""

import csv
import dataclasses
import io
from collections.abc import Sequence
from typing import NamedTuple

T5X = "T5X"  # as `baselines` names it


class Speedup(NamedTuple):
    """Over one baseline: tokens/s against tokens/s, with a 95 % interval over the batches."""

    ratio: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class BenchmarkRow:
    """One line of the table.

    Attributes:
      task: what was decoded.
      draft: one of `pretrained.DRAFTS`.
      temperature: of target and draft.
      gamma: guesses a round.
      batch_size: rows decoded together.
      alpha: guesses accepted / judged.
      alpha_low: its 95 % interval over the rows.
      alpha_high: the same.
      c: a guess, in calls of the target on one token.
      verification: T(gamma + 1) / T(1).
      prefill: reading a batch of sources, in calls of the target on one token.
      draft_prefill: the draft's reading.
      theorem: Theorem 3.8 as it stands, where verifying costs one call.
      generalised: the same with what it costs here.
      expected: that of these decodes: sources are read, and ends cut short.
      tokens_per_call: emitted tokens per target call and row.
      speedups: of speculation, by baseline.
      tokens_per_second: the median over the batches, by way.
      compile_seconds: compilation and first runs, by way.
      identical: rows whose tokens are the target's own; None where they are sampled.
      agreement: the same of every other way, whose rounding may differ at near ties.
      rows: how many there were.
      reason: where it does not pay, why, and what would; where EXP is far off, why.
    """

    task: str
    draft: str
    temperature: float
    gamma: int
    batch_size: int
    alpha: float
    alpha_low: float
    alpha_high: float
    c: float
    verification: float
    prefill: float
    draft_prefill: float
    theorem: float
    generalised: float
    expected: float
    tokens_per_call: float
    speedups: dict[str, Speedup]
    tokens_per_second: dict[str, float]
    compile_seconds: dict[str, float]
    identical: int | None
    agreement: dict[str, int]
    rows: int
    reason: str


def table(rows: Sequence[BenchmarkRow]) -> str:
    """The rows as the paper's Table 2, in Markdown; EXP is of these decodes."""
    baselines = list(dict.fromkeys(name for row in rows for name in row.speedups))
    shown = [f"over {name}" for name in baselines]
    head = ["task", "draft", "temp", "γ", "batch", "α", "c", "T(γ+1)/T(1)", "Thm 3.8", "EXP"]
    lines = [
        f"| {' | '.join([*head, *shown, 'identical'])} |",
        "|---" * (len(head) + len(shown) + 1) + "|",
    ]
    for row in rows:
        measured = [
            f"{s.ratio:.2f}X ({s.low:.2f}-{s.high:.2f})" if s else "-"
            for s in (row.speedups.get(name) for name in baselines)
        ]
        same = "sampled" if row.identical is None else f"{row.identical} of {row.rows}"
        cells = [
            row.task, row.draft, f"{row.temperature:g}", str(row.gamma), str(row.batch_size),
            f"{row.alpha:.2f}", f"{row.c:.2f}", f"{row.verification:.2f}", f"{row.theorem:.2f}",
            f"{row.expected:.2f}", *measured, same,
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    if T5X not in baselines:
        lines += ["", "T5X is not installed: the baseline is our own loop, T5X's algorithm."]
    reasons = [
        f"- {row.task}, {row.draft}, temp {row.temperature:g}, γ {row.gamma}: {row.reason}."
        for row in rows
        if row.reason
    ]
    return "\n".join(
        [*lines, *(["", "Where it does not pay, or EXP is far off:", *reasons] if reasons else [])]
    )


def as_csv(rows: Sequence[BenchmarkRow]) -> str:
    """All the figures, a line a row."""
    flat = []
    for row in rows:
        fields = dataclasses.asdict(row)
        for name, value in fields.pop("speedups").items():
            for part, number in zip(Speedup._fields, value, strict=True):
                fields[f"speed-up over {name}, {part}"] = number
        for group in ("tokens_per_second", "compile_seconds", "agreement"):
            for name, value in fields.pop(group).items():
                fields[f"{group}, {name}"] = value
        flat.append(fields)
    names = list(dict.fromkeys(name for fields in flat for name in fields))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return out.getvalue()
