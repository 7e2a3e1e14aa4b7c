"""The report of a run: its findings as one page, as Markdown, and their values as CSV.

    RUN_DIR/report.html      all of it in one file, which needs no network
    RUN_DIR/report.md        the same in Markdown, without the plots
    RUN_DIR/tables/NAME.csv  the raw values of every table, figure and timeline

It reads what findings.py describes, RUN_DIR/environment.json (an object of facts, if it is
there), and RUN_DIR/findings/order, if that is there: names of findings, one a line, which then
come first. The others follow as the paper has them: figure1, table1, the other figures, the
other tables; then what has names of its own: tables, figures, timelines, walks.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specdec_jax import __version__
from specdec_jax.errors import UserError
from specdec_jax.findings import FOLDER, Figure, Finding, Table, Timeline, Walk, load
from specdec_jax.report_markdown import markdown
from specdec_jax.report_page import page
from specdec_jax.report_values import as_csv

TITLE = "Speculative decoding, reproduced"
HEADLINE = "headline"


def report(run_dir: Path) -> Path:
    """Writes report.html, report.md and tables/*.csv of a run, in place of older ones.

    Returns:
      The page.

    Raises:
      UserError: there are no findings, or a file is damaged.
      MissingExtraError: there are plots to draw, and matplotlib is not installed.
    """
    return report_files(run_dir)[0]


def report_files(run_dir: Path) -> list[Path]:
    """`report` -> all files that it writes, the page first."""
    findings = ordered(load(run_dir), _order(run_dir))
    headline = next((f for f in findings if isinstance(f, Table) and f.name == HEADLINE), None)
    rest = [finding for finding in findings if finding is not headline]
    about = f"The run {run_dir.resolve().name}, by specdec_jax {__version__}"
    parts = (TITLE, about, headline, rest, _environment(run_dir))
    files = {"report.html": page(*parts), "report.md": markdown(*parts)}
    for finding in findings:
        if not isinstance(finding, Walk):
            files[f"tables/{finding.name}.csv"] = as_csv(finding)
    for name, text in files.items():
        _write(run_dir / name, text)
    return [run_dir / name for name in files]


def ordered(findings: Sequence[Finding], first: Sequence[str] = ()) -> list[Finding]:
    """Findings as they are shown.

    Args:
      findings: in any order.
      first: names of those that come first; one that there is not is passed over.

    Raises:
      UserError: a name would not do in an address or for a file.
    """
    for finding in findings:
        if not re.fullmatch(r"[A-Za-z0-9_][\w.-]*", finding.name, re.ASCII):
            raise UserError(
                f"A finding is named {finding.name!r}: letters, digits, '_', '-' and '.' make a "
                "name."
            )

    def place(finding: Finding) -> tuple[Any, ...]:
        if finding.name in first:
            return (0, first.index(finding.name))
        natural = tuple(
            (int(part), "") if part.isdigit() else (0, part)
            for part in re.split(r"(\d+)", finding.name)
        )
        numbered = re.fullmatch(r"(figure|table)(\d+)(\D.*)?", finding.name)
        if numbered and numbered[2] == "1":
            return (1, natural)
        if numbered:
            return (2, natural)
        return (3, (Table, Figure, Timeline, Walk).index(type(finding)), natural)

    return sorted(findings, key=place)


def _order(run_dir: Path) -> list[str]:
    file = run_dir / FOLDER / "order"
    return file.read_text("utf-8").split() if file.is_file() else []


def _environment(run_dir: Path) -> dict[str, Any]:
    file = run_dir / "environment.json"
    if not file.is_file():
        return {}
    try:
        facts = json.loads(file.read_text("utf-8"))
        return dict(facts.items())
    except (ValueError, AttributeError) as error:
        raise UserError(
            f"{file} is no JSON object of facts: delete it and rerun what wrote it."
        ) from error


def _write(file: Path, text: str) -> None:
    """Writes a file as a whole: a reader sees the old one or the new."""
    file.parent.mkdir(exist_ok=True)
    partial = file.with_name(f".{file.name}.partial")
    partial.write_text(text, "utf-8", newline="\n")
    partial.replace(file)
