"""What a run found: tables, figures, timelines and walks through a decode, as plain data.

`reproduce` writes them, one JSON file each under RUN_DIR/findings/; `report` shows them.
Values are kept as measured; how they are printed stands beside them.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

from specdec_jax.errors import UserError

Value = str | float | int | None
FOLDER = "findings"


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of the report.

    Attributes:
      name: the stem of its files.
      title: a line above it.
      columns: the headings.
      formats: of `str.format`, one a column; "" prints strings as they are.
      rows: values, one a column; None is an empty cell.
      note: plain sentences below it.
      command: what makes it, if one command does.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    formats: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    note: str = ""
    command: str = ""

    def without_empty_columns(self) -> "Table":
        """The table without the columns that no row has a value in."""
        keep = [i for i in range(len(self.columns)) if any(row[i] is not None for row in self.rows)]

        def kept(values: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(values[i] for i in keep)

        rows = tuple(kept(row) for row in self.rows)
        return dataclasses.replace(
            self, columns=kept(self.columns), formats=kept(self.formats), rows=rows
        )

    def cells(self) -> list[list[str]]:
        """The rows as printed."""
        return [
            [
                "" if value is None else (form or "{}").format(value)
                for form, value in zip(self.formats, row, strict=True)
            ]
            for row in self.rows
        ]


@dataclasses.dataclass(frozen=True)
class Series:
    """A line of a figure; `low` and `high` are an interval around y, or empty."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    dashed: bool = False


@dataclasses.dataclass(frozen=True)
class Figure:
    """A plot of lines; `points` draws marks without lines."""

    name: str
    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    points: bool = False
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Span:
    """A call on a timeline, in seconds from its start; `model` is "draft" or "target"."""

    model: str
    start: float
    duration: float


@dataclasses.dataclass(frozen=True)
class Lane:
    """One way to decode, on a timeline."""

    label: str
    spans: tuple[Span, ...]


@dataclasses.dataclass(frozen=True)
class Timeline:
    """Calls along time, as the paper's Figure 5 shows them."""

    name: str
    title: str
    lanes: tuple[Lane, ...]
    note: str = ""


@dataclasses.dataclass(frozen=True)
class TokenView:
    """A token as the walk shows it.

    Attributes:
      piece: its text.
      status: "accepted", "rejected" or "unread" (behind a rejected guess) of guesses,
        "corrected" (in place of a rejected guess) or "bonus" of the target's own.
      p: its probability under the target, after the standardized sampling; None if unread.
      q: under the draft; None where that made no guess, as in place of a bonus.
      likely: the target's likeliest pieces at its place, with p and q of each; none of p = 0.
    """

    piece: str
    status: str
    p: float | None
    q: float | None
    likely: tuple[tuple[str, float, float | None], ...] = ()


@dataclasses.dataclass(frozen=True)
class Walk:
    """A decode round by round: each round's guesses and, last, the target's own token."""

    name: str
    title: str
    source: str
    output: str
    rounds: tuple[tuple[TokenView, ...], ...]
    note: str = ""


Finding = Table | Figure | Timeline | Walk
_KINDS: dict[str, Any] = {kind.__name__: kind for kind in (Table, Figure, Timeline, Walk)}


def save(run_dir: Path, finding: Finding) -> None:
    """Writes RUN_DIR/findings/NAME.json, in place of an older one."""
    folder = run_dir / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    data = {"kind": type(finding).__name__, **dataclasses.asdict(finding)}
    text = json.dumps(data, ensure_ascii=False, indent=1) + "\n"
    partial = folder / f".{finding.name}.partial"
    partial.write_text(text, "utf-8")
    partial.replace(folder / f"{finding.name}.json")


def load(run_dir: Path) -> list[Finding]:
    """All findings of a run, by name.

    Raises:
      UserError: there are none, or a file is damaged.
    """
    files = sorted((run_dir / FOLDER).glob("*.json"))
    if not files:
        raise UserError(
            f"{run_dir} holds no findings to report: `specdec reproduce` writes them under "
            f"{run_dir / FOLDER}."
        )
    return [_read(file) for file in files]


def _read(file: Path) -> Finding:
    try:
        data = json.loads(file.read_text("utf-8"))
        kind = _KINDS[data.pop("kind")]
        data = {name: _tuples(value) for name, value in data.items()}
        if kind is Figure:
            data["series"] = tuple(Series(**_tupled(s)) for s in data["series"])
        elif kind is Timeline:
            data["lanes"] = tuple(
                Lane(lane["label"], tuple(Span(**span) for span in lane["spans"]))
                for lane in data["lanes"]
            )
        elif kind is Walk:
            data["rounds"] = tuple(
                tuple(TokenView(**_tupled(token)) for token in r) for r in data["rounds"]
            )
        finding: Finding = kind(**data)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{file} is damaged: delete it and rerun what wrote it.") from error
    return finding


def _tuples(value: Any) -> Any:
    """JSON's lists as the tuples they were."""
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value


def _tupled(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: _tuples(value) for name, value in fields.items()}
