"""The values of findings as plain rows, for CSV files and for reading them beside a plot."""

import csv
import io

from specdec_jax.findings import Figure, Table, Timeline, Value


def values(finding: Table | Figure | Timeline) -> tuple[tuple[str, ...], list[tuple[Value, ...]]]:
    """Headings and raw rows: of a table its own, of a plot a row a point or a call."""
    if isinstance(finding, Table):
        return finding.columns, list(finding.rows)
    if isinstance(finding, Timeline):
        return ("lane", "model", "start", "duration"), [
            (lane.label, span.model, span.start, span.duration)
            for lane in finding.lanes
            for span in lane.spans
        ]
    rows: list[tuple[Value, ...]] = []
    for series in finding.series:
        none = (None,) * len(series.x)
        sides = (series.x, series.y, series.low or none, series.high or none)
        rows += [(series.label, *point) for point in zip(*sides, strict=True)]
    return ("series", finding.x_label, finding.y_label, "low", "high"), rows


def as_csv(finding: Table | Figure | Timeline) -> str:
    """The raw values; None is an empty cell."""
    columns, rows = values(finding)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return out.getvalue()
