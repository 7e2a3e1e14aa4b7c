"""The page of a report: one HTML file that needs nothing beside it."""

import html
import json
from collections.abc import Sequence
from string import Template
from typing import Any

from specdec_jax.findings import Figure, Finding, Table, Timeline, Value, Walk
from specdec_jax.report_plots import draw_figure, draw_timeline
from specdec_jax.report_values import values
from specdec_jax.report_walk import walk_html
from specdec_jax.resources import ASSETS

FOLDER = ASSETS / "report"
SHORT = 24  # characters of a cell that is not broken into lines
WIDE = 12  # columns, at most, of a table that keeps to the page's width


def page(
    title: str,
    about: str,
    headline: Table | None,
    findings: Sequence[Finding],
    environment: dict[str, Any],
) -> str:
    """The report as HTML.

    Args:
      title: of the page.
      about: a line below it.
      headline: shown first, big.
      findings: in their order.
      environment: facts, shown last.

    Raises:
      MissingExtraError: there are plots to draw, and matplotlib is not installed.
    """
    first_walk = next((finding for finding in findings if isinstance(finding, Walk)), None)
    template = Template((FOLDER / "page.html").read_text("utf-8"))
    return template.substitute(
        title=html.escape(title),
        about=html.escape(about),
        style=(FOLDER / "style.css").read_text("utf-8").rstrip(),
        script=(FOLDER / "walk.js").read_text("utf-8").rstrip(),
        headline=_section(headline, kind="headline") if headline else "",
        contents=_contents(findings, bool(environment)),
        findings="\n".join(_section(f, explained=f is first_walk) for f in findings),
        environment=_environment(environment),
    )


def _contents(findings: Sequence[Finding], environment: bool) -> str:
    links = [(finding.name, finding.title) for finding in findings]
    links += [("environment", "Environment")] * environment
    items = "\n".join(
        f'<li><a href="#{name}">{html.escape(title)}</a></li>' for name, title in links
    )
    return (
        '<nav class="contents" aria-labelledby="contents-title"><h2 id="contents-title">Contents'
        f"</h2>\n<ol>\n{items}\n</ol></nav>"
    )


def _section(finding: Finding, *, kind: str = "", explained: bool = False) -> str:
    """A finding under its title, with its note and the command that makes it."""
    kind = kind or type(finding).__name__.lower()
    if isinstance(finding, Table):
        main = _main_column(finding) if kind == "headline" else None
        table = table_html(finding.columns, finding.rows, finding.cells(), main=main)
        body = _scroll(table, finding.title, wide=len(finding.columns) > WIDE)
    elif isinstance(finding, Walk):
        body = walk_html(finding, explained=explained)
    else:
        body = _plot(finding)
    notes = "".join(
        f'\n<p class="note">{html.escape(line)}</p>' for line in finding.note.splitlines() if line
    )
    if isinstance(finding, Figure | Timeline):
        notes += _values(finding)
    command = finding.command if isinstance(finding, Table) else ""
    command = f"\n<pre><code>{html.escape(command)}</code></pre>" if command else ""
    return (
        f'<section class="{kind}" id="{finding.name}" aria-labelledby="{finding.name}-title">\n'
        f'<h2 id="{finding.name}-title">{html.escape(finding.title)}</h2>\n'
        f"{body}{notes}{command}\n</section>"
    )


def _scroll(table: str, title: str, *, wide: bool = False) -> str:
    """A table that scrolls by itself where it has no room, by keyboard too."""
    kind, label = "scroll wide" if wide else "scroll", html.escape(title)
    return f'<div class="{kind}" role="region" tabindex="0" aria-label="{label}">{table}</div>'


def _main_column(table: Table) -> int | None:
    """The first one of factors, such as 2.31X, or else of numbers."""
    numbers = [i for i, form in enumerate(table.formats) if form]
    return next((i for i in numbers if "X" in table.formats[i]), numbers[0] if numbers else None)


def table_html(
    columns: Sequence[str],
    rows: Sequence[Sequence[Value]],
    cells: Sequence[Sequence[str]],
    *,
    main: int | None = None,
) -> str:
    """Cells under headings; a column of numbers is set to the right, the main one big."""
    numeric = [any(isinstance(row[i], int | float) for row in rows) for i in range(len(columns))]
    short = [all(len(row[i]) <= SHORT for row in cells) for i in range(len(columns))]
    kinds = [
        "number" if n else "short" if s else "long" for n, s in zip(numeric, short, strict=True)
    ]
    of_column = [f' class="{kind}{" main" * (i == main)}"' for i, kind in enumerate(kinds)]
    head = "".join(
        f'<th scope="col"{kind}>{html.escape(name)}</th>'
        for name, kind in zip(columns, of_column, strict=True)
    )
    lines = []
    for row in cells:
        line = ""
        for i, (cell, kind) in enumerate(zip(row, of_column, strict=True)):
            tag, scope = ("th", ' scope="row"') if i == 0 and not numeric[0] else ("td", "")
            line += f"<{tag}{scope}{kind}>{html.escape(cell)}</{tag}>"
        lines.append(f"<tr>{line}</tr>")
    body = "\n".join(lines)
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table>"


def _plot(finding: Figure | Timeline) -> str:
    svg = draw_figure(finding) if isinstance(finding, Figure) else draw_timeline(finding)
    return f'<figure class="plot">{svg}</figure>'


def _values(finding: Figure | Timeline) -> str:
    """What a drawing shows, for who can't see it or wants the values."""
    columns, rows = values(finding)
    cells = [
        [f"{v:.6g}" if isinstance(v, float) else "" if v is None else str(v) for v in row]
        for row in rows
    ]
    table = _scroll(table_html(columns, rows, cells), f"Values of {finding.title}")
    return f"\n<details><summary>Values</summary>{table}</details>"


def _environment(facts: dict[str, Any]) -> str:
    if not facts:
        return ""
    items = "\n".join(
        f"<dt>{html.escape(name)}</dt><dd>{html.escape(fact_text(value))}</dd>"
        for name, value in facts.items()
    )
    return (
        '<section class="environment" id="environment" aria-labelledby="environment-title">\n'
        f'<h2 id="environment-title">Environment</h2>\n<dl>\n{items}\n</dl></section>'
    )


def fact_text(value: Any) -> str:
    """A fact of environment.json as text."""
    if isinstance(value, list):
        return ", ".join(map(fact_text, value)) or "none"
    if isinstance(value, str):
        return value or "none"
    return "none" if value is None else json.dumps(value, ensure_ascii=False)
