"""What the paper reports, to be set beside what is measured: Leviathan et al. (2023).

Its target is T5 1.1 XXL (11B), fine-tuned, on one TPU v4, batch 1; its speeds are over the
standard T5X implementation. Its EXP is Theorem 3.8.
"""

from pathlib import PurePath
from typing import NamedTuple


class Table1Row(NamedTuple):
    """At c = c_hat = 0."""

    alpha: float
    gamma: int
    operations: float
    speed: float


TABLE_1 = (
    Table1Row(0.6, 2, 1.53, 1.96),
    Table1Row(0.7, 3, 1.58, 2.53),
    Table1Row(0.8, 2, 1.23, 2.44),
    Table1Row(0.8, 5, 1.63, 3.69),
    Table1Row(0.9, 2, 1.11, 2.71),
    Table1Row(0.9, 10, 1.60, 6.86),
)


class Table2Row(NamedTuple):
    """Table 2, and with the larger drafts that of appendix A.3."""

    task: str
    draft: str
    temperature: float
    gamma: int
    alpha: float
    c: float
    expected: float
    measured: float


TABLE_2 = (
    Table2Row("EnDe", "small", 0.0, 7, 0.75, 0.02, 3.2, 3.4),
    Table2Row("EnDe", "base", 0.0, 7, 0.80, 0.04, 3.3, 2.8),
    Table2Row("EnDe", "large", 0.0, 7, 0.82, 0.11, 2.5, 1.7),
    Table2Row("EnDe", "small", 1.0, 7, 0.62, 0.02, 2.3, 2.6),
    Table2Row("EnDe", "base", 1.0, 5, 0.68, 0.04, 2.4, 2.4),
    Table2Row("EnDe", "large", 1.0, 3, 0.71, 0.11, 2.0, 1.4),
    Table2Row("CNN/DM", "small", 0.0, 5, 0.65, 0.02, 2.4, 3.1),
    Table2Row("CNN/DM", "base", 0.0, 5, 0.73, 0.04, 2.6, 3.0),
    Table2Row("CNN/DM", "large", 0.0, 3, 0.74, 0.11, 2.0, 2.2),
    Table2Row("CNN/DM", "small", 1.0, 5, 0.53, 0.02, 1.9, 2.3),
    Table2Row("CNN/DM", "base", 1.0, 3, 0.55, 0.04, 1.8, 2.2),
    Table2Row("CNN/DM", "large", 1.0, 3, 0.56, 0.11, 1.6, 1.7),
)


class Table3Row(NamedTuple):
    """alpha at temperatures 0 and 1."""

    task: str
    draft: str
    greedy: float
    sampled: float


TABLE_3 = (
    Table3Row("EnDe", "unigram", 0.08, 0.07),
    Table3Row("EnDe", "bigram", 0.20, 0.19),
    Table3Row("EnDe", "small", 0.75, 0.62),
    Table3Row("EnDe", "base", 0.80, 0.68),
    Table3Row("EnDe", "large", 0.82, 0.71),
    Table3Row("CNN/DM", "unigram", 0.13, 0.08),
    Table3Row("CNN/DM", "bigram", 0.23, 0.16),
    Table3Row("CNN/DM", "small", 0.65, 0.53),
    Table3Row("CNN/DM", "base", 0.73, 0.55),
    Table3Row("CNN/DM", "large", 0.74, 0.56),
    Table3Row("LM1B", "unigram", 0.03, 0.03),
    Table3Row("LM1B", "bigram", 0.05, 0.05),
    Table3Row("LM1B", "small", 0.88, 0.89),
)


def paper_draft(draft: str) -> str:
    """What the paper calls a draft: a pair's own is its small one, a directory its last name."""
    return "small" if draft == "model" else PurePath(draft).name


def table_2(task: str | None, draft: str, temperature: float) -> Table2Row | None:
    """The paper's row for a task, a draft's size and a temperature, if it has one."""
    for row in TABLE_2:
        if (row.task, row.draft, row.temperature) == (task, draft, temperature):
            return row
    return None


def table_3(task: str | None, draft: str) -> Table3Row | None:
    """The paper's alphas for a task and a draft, if it has them."""
    for row in TABLE_3:
        if (row.task, row.draft) == (task, draft):
            return row
    return None
