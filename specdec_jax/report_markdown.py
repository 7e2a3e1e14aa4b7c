"""A report in Markdown: what report_page.py shows, for a terminal or a repository."""

import re
from collections.abc import Sequence
from typing import Any

from specdec_jax.findings import Finding, Table, Timeline, TokenView, Walk
from specdec_jax.report_page import fact_text
from specdec_jax.report_plots import calls, seconds
from specdec_jax.report_walk import text_of


def markdown(
    title: str,
    about: str,
    headline: Table | None,
    findings: Sequence[Finding],
    environment: dict[str, Any],
) -> str:
    """The report; arguments are those of `report_page.page`."""
    parts = [f"# {escape(title)}", f"{escape(about)}."]
    for finding in [*([headline] if headline else []), *findings]:
        parts += [f"## {escape(finding.title)}", _body(finding)]
        parts += [escape(line) for line in finding.note.splitlines() if line]
        if isinstance(finding, Table) and finding.command:
            parts.append("\n".join(f"    {line}" for line in finding.command.splitlines()))
    if environment:
        facts = [f"- {escape(k)}: {escape(fact_text(v))}" for k, v in environment.items()]
        parts += ["## Environment", "\n".join(facts)]
    return "\n\n".join(part for part in parts if part) + "\n"


def escape(text: str) -> str:
    """Text as Markdown prints it, on one line."""
    return re.sub(r"([\\`*_|<\[~&])", r"\\\1", " ".join(text.splitlines()))


def _body(finding: Finding) -> str:
    if isinstance(finding, Table):
        return _table(finding.columns, finding.cells(), finding)
    if isinstance(finding, Walk):
        return _walk(finding)
    source = f"Values: [tables/{finding.name}.csv](tables/{finding.name}.csv)"
    if isinstance(finding, Timeline):
        cells = [
            [
                lane.label,
                str(calls(lane, "target")),
                str(calls(lane, "draft")),
                f"{seconds(lane):.4g}",
            ]
            for lane in finding.lanes
        ]
        table = _table(("", "target calls", "draft calls", "seconds"), cells)
        return f"{table}\n\nDrawn in report.html. {source}"
    lines = "; ".join(escape(series.label) for series in finding.series)
    axes = f"{escape(finding.y_label)} against {escape(finding.x_label)}"
    return f"{axes}: {lines}. Drawn in report.html. {source}"


def _table(
    columns: Sequence[str], cells: Sequence[Sequence[str]], table: Table | None = None
) -> str:
    """Rows under headings; columns of numbers to the right."""
    rows = table.rows if table else ()
    marks = [
        "---:" if any(isinstance(row[i], int | float) for row in rows) else "---"
        for i in range(len(columns))
    ]
    lines = [[escape(name) for name in columns], marks]
    lines += [[escape(cell) for cell in row] for row in cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _walk(walk: Walk) -> str:
    """A line a round: rejected guesses struck through, the target's own tokens bold."""
    rounds = [
        f"{i}. {''.join(map(_token, tokens)).strip()}" for i, tokens in enumerate(walk.rounds, 1)
    ]
    texts = f"Source: {escape(walk.source)}\n\nOutput: {escape(walk.output)}"
    key = "Rejected guesses are ~~struck through~~, the target's own tokens **bold**."
    return "\n\n".join([texts, key, "\n".join(rounds)])


def _token(token: TokenView) -> str:
    mark = {"accepted": "", "rejected": "~~", "corrected": "**", "bonus": "**"}.get(token.status)
    if mark is None:  # unread
        return ""
    text = text_of(token.piece)
    bare = text.strip() or "␣"
    return f"{' ' * text.startswith(' ')}{mark}{escape(bare)}{mark}"
