"""findings.py: what is written is what is read, and a damaged file is told."""

import pytest

from specdec_jax import findings
from specdec_jax.errors import UserError
from specdec_jax.findings import Figure, Lane, Series, Span, Table, Timeline, TokenView, Walk

TABLE = Table("t", "Title", ("task", "alpha"), ("", "{:.2f}"), (("ende", 0.75), ("x", None)))
FIGURE = Figure("f", "Title", "alpha", "speed", (Series("c = 0", (0.0, 1.0), (1.0, 2.5)),))
TIMELINE = Timeline("l", "Title", (Lane("alone", (Span("target", 0.0, 1.5),)),))
WALK = Walk(
    "w", "Title", "source", "output", ((TokenView("a", "accepted", 0.5, 0.4, (("a", 0.5, 0.4),)),),)
)


def test_findings_come_back_as_they_were(tmp_path):
    for finding in (TABLE, FIGURE, TIMELINE, WALK):
        findings.save(tmp_path, finding)
    assert findings.load(tmp_path) == [FIGURE, TIMELINE, TABLE, WALK]  # by name


def test_cells_are_printed_by_their_columns_format():
    assert TABLE.cells() == [["ende", "0.75"], ["x", ""]]


def test_an_empty_or_damaged_run_is_told(tmp_path):
    with pytest.raises(UserError, match="no findings"):
        findings.load(tmp_path)
    findings.save(tmp_path, TABLE)
    (tmp_path / "findings" / "t.json").write_text('{"kind": "Table"}')
    with pytest.raises(UserError, match=r"t\.json is damaged"):
        findings.load(tmp_path)


def test_a_column_without_values_goes():
    table = Table(
        "t", "", ("a", "b", "c"), ("", "{:.1f}", ""), (("x", None, None), ("y", None, "z"))
    )
    short = table.without_empty_columns()
    assert (short.columns, short.formats) == (("a", "c"), ("", ""))
    assert short.cells() == [["x", ""], ["y", "z"]]
