"""Figures and timelines as inline SVG that takes the colours of the page around it.

Matplotlib draws with stand-ins for colours, which become variables of the style sheet: one
drawing serves light, dark and print.
"""

import html
import io
import re
import warnings
from typing import Any

from specdec_jax.extras import require
from specdec_jax.findings import Figure, Lane, Series, Timeline

_INK, _PAPER = "#010203", "#fdfcfb"
_SERIES = [f"#0000f{i}" for i in range(6)]
_ROLES = {
    _INK: "currentColor",
    _PAPER: "var(--paper)",
    **{colour: f"var(--series-{i})" for i, colour in enumerate(_SERIES)},
}
_MARKERS = "osD^vP"  # with the dashes, what tells lines apart without colour
_MARKED = 10  # marks on a line, about
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "specdec",  # the same findings give the same page
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _INK,
    "grid.alpha": 0.12,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.5,
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor"), _INK),
    **dict.fromkeys(("xtick.color", "ytick.color"), _INK),
}


def draw_figure(figure: Figure) -> str:
    """A figure -> an `svg` element.

    Raises:
      MissingExtraError: matplotlib is not installed.
    """

    def draw(axes: Any) -> None:
        for i, series in enumerate(figure.series):
            _draw_series(axes, series, i, points=figure.points)
        axes.set_xlabel(_plain(figure.x_label))
        axes.set_ylabel(_plain(figure.y_label))
        if len(figure.series) > 1:
            # Beside the axes: it can't hide a line there.
            axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.02), borderaxespad=0)

    what = f"{figure.title}: {figure.y_label} against {figure.x_label}"
    lines = ", ".join(series.label for series in figure.series)
    return _svg(draw, figure.name, f"{what}; {lines}.", width=7.2, height=3.6)


def _draw_series(axes: Any, series: Series, i: int, *, points: bool) -> None:
    colour, marker = _SERIES[i % len(_SERIES)], _MARKERS[i % len(_MARKERS)]
    line = "none" if points else (0, (4, 2)) if series.dashed else "-"
    often = max(1, len(series.x) // _MARKED)
    axes.plot(
        series.x,
        series.y,
        color=colour,
        linestyle=line,
        marker=marker,
        markevery=1 if points else (i % often, often),
        markerfacecolor=_PAPER if i >= len(_MARKERS) or series.dashed else colour,
        label=_plain(series.label),
    )
    if not series.low:
        return
    if points:
        axes.vlines(series.x, series.low, series.high, color=colour, linewidth=1)
    else:
        axes.fill_between(series.x, series.low, series.high, color=colour, alpha=0.18, linewidth=0)


def calls(lane: Lane, model: str) -> int:
    """How many calls of a model a lane shows."""
    return sum(span.model == model for span in lane.spans)


def seconds(lane: Lane) -> float:
    """When a lane ends."""
    return max((span.start + span.duration for span in lane.spans), default=0.0)


def draw_timeline(timeline: Timeline) -> str:
    """A timeline -> an `svg` element, a line of calls for each way to decode (Figure 5).

    Raises:
      MissingExtraError: matplotlib is not installed.
    """
    longest = max(map(seconds, timeline.lanes), default=0.0)
    unit, unit_name = (1000.0, "milliseconds") if longest < 1 else (1.0, "seconds")
    rows = max(len(timeline.lanes), 1)
    height = 0.9 + 0.62 * rows  # inches

    def told(lane: Lane) -> str:
        counts = [(calls(lane, model), model) for model in ("target", "draft")]
        shown = [f"{n} {model} call{'s' * (n > 1)}" for n, model in counts if n]
        return f"{lane.label}: {', '.join([*shown, f'{seconds(lane) * unit:.3g} {unit_name}'])}"

    def draw(axes: Any) -> None:
        for i, lane in enumerate(timeline.lanes):
            axes.text(0, i - 0.2, _plain(told(lane)), verticalalignment="bottom")
            # A target's call is tall and a draft's is low, whatever their colours.
            for model, size, colour in (("target", 0.5, _SERIES[0]), ("draft", 0.24, _SERIES[1])):
                spans = [span for span in lane.spans if span.model == model]
                axes.broken_barh(
                    [(span.start * unit, span.duration * unit) for span in spans],
                    (i + 0.36 - size, size),
                    facecolors=colour,
                    edgecolors=_PAPER,
                    linewidth=0.4,
                    label=f"{model} call",
                )
        kinds = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        place = (1, 1 + 0.3 / height)
        axes.legend(kinds.values(), kinds, loc="upper right", ncols=2, bbox_to_anchor=place)
        axes.set_xlim(0, longest * unit or 1)
        axes.set_ylim(rows - 0.5, -0.6)
        axes.set_yticks([])
        axes.grid(axis="y", visible=False)
        axes.spines["left"].set_visible(False)
        axes.set_xlabel(unit_name)

    label = "; ".join([timeline.title, *map(told, timeline.lanes)])
    return _svg(draw, timeline.name, f"{label}.", width=9, height=height)


def _plain(text: str) -> str:
    """Text for matplotlib, to which a dollar sign would begin mathematics."""
    return text.replace("$", r"\$")


def _svg(draw: Any, name: str, label: str, *, width: float, height: float) -> str:
    """What `draw` does to axes, as an `svg` element of the page."""
    matplotlib = require("matplotlib", extra="report")
    with matplotlib.rc_context(_STYLE):
        figure = require("matplotlib.figure", extra="report").Figure((width, height))
        draw(figure.add_subplot())
        file = io.StringIO()
        with warnings.catch_warnings():
            # The page's fonts draw the text, and may well have what matplotlib's lacks.
            warnings.filterwarnings("ignore", "Glyph .* missing")
            figure.savefig(
                file, format="svg", transparent=True, bbox_inches="tight", metadata={"Date": None}
            )
    return _inline(file.getvalue(), name, label)


def _inline(svg: str, name: str, label: str) -> str:
    """A stand-alone SVG file as a part of a page, where other ids and styles are about."""
    svg = svg[svg.index("<svg") :]
    width = float(svg.partition('viewBox="0 0 ')[2].split()[0])
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.S)
    svg = re.sub(r'\s(xmlns(:\w+)?|version|width|height)="[^"]*"', "", svg, count=5)
    svg = re.sub(r'(\bid="|url\(#|xlink:href="#)', rf"\g<1>{name}-", svg)
    svg = svg.replace("xlink:href", "href")
    svg = re.sub(r"font-family: [^;\"]*;?|font: ([\d.]+px) [^;\"]*", _keep_size, svg)
    for colour, role in _ROLES.items():
        svg = svg.replace(colour, role)
    # All drawings have letters of one size, and shrink where there is no room.
    size = f'style="max-width: {width / 12:.2f}rem"'
    start = f'<svg role="img" aria-label="{html.escape(label)}" {size}'
    return svg.replace("<svg", start, 1).strip()


def _keep_size(match: re.Match[str]) -> str:
    return f"font-size: {match[1]}" if match[1] else ""
