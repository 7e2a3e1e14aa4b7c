"""What follows from section 3 alone: Table 1 and Figures 2 to 4, exactly."""

import dataclasses
from pathlib import Path

import numpy as np

from specdec_jax.analysis import (
    expected_tokens,
    operations_factor,
    optimal_gamma,
    walltime_improvement,
)
from specdec_jax.findings import Figure, Finding, Series, Table
from specdec_jax.paper_figures import TABLE_1

_ALPHAS = np.linspace(0.0, 0.99, 100)
_GAMMAS = (1, 2, 3, 5, 7, 10)


@dataclasses.dataclass(frozen=True)
class Theory:
    """The part of a reproduction that needs no model."""

    name = "theory"

    def findings(self, run_dir: Path) -> list[Finding]:
        """Table 1 and Figures 2, 3 and 4."""
        return [table_1(), figure_2(), figure_3(), *figure_4()]


def table_1() -> Table:
    """Operations and speed at c = c_hat = 0, beside the paper's."""
    rows = []
    for alpha, gamma, operations, speed in TABLE_1:
        ours = operations_factor(alpha, gamma, 0.0), walltime_improvement(alpha, gamma, 0.0)
        printed = all(
            f"{value:.2f}" == f"{theirs:.2f}"
            for value, theirs in zip(ours, (operations, speed), strict=True)
        )
        rows.append(
            (
                *(alpha, gamma, float(ours[0]), operations, float(ours[1]), speed),
                "equal" if printed else "differs",
            )
        )
    x = "{:.2f}X"
    return Table(
        "table1",
        "Table 1: operations and speed, by Theorems 3.11 and 3.8 at c = ĉ = 0",
        ("α", "γ", "operations", "the paper's", "speed", "the paper's", "to the printed digits"),
        ("{:.1f}", "{}", x, x, x, x, ""),
        tuple(rows),
        command="specdec reproduce --level=embedded --only=theory --run_dir=runs/theory",
    )


def figure_2() -> Figure:
    """Tokens a round."""
    series = tuple(
        Series(f"γ = {gamma}", _tuple(_ALPHAS), _tuple(expected_tokens(_ALPHAS, gamma)))
        for gamma in _GAMMAS
    )
    return Figure("figure2", "Figure 2: tokens a round, Eq. 1", "α", "tokens a round", series)


def figure_3() -> Figure:
    """The best gamma; dashed where verifying costs more than one call."""
    series = []
    for v in (1.0, 1.5):
        for c in (0.01, 0.02, 0.05, 0.1):
            best = optimal_gamma(_ALPHAS, c, v, max_gamma=40)
            label = f"c = {c:g}" + ("" if v == 1 else f", T(γ+1) = {v:g} T(1)")
            series.append(Series(label, _tuple(_ALPHAS), _tuple(best), dashed=v != 1))
    return Figure(
        "figure3",
        "Figure 3: the best γ",
        "α",
        "γ",
        tuple(series),
        note="0: no γ pays. Dashed: verification that costs 1.5 calls of one token, which the "
        "paper takes to be free.",
    )


def figure_4() -> list[Figure]:
    """Speed and operations at c = c_hat = 0."""
    figures = []
    for name, title, function in (
        ("figure4a", "Figure 4: walltime improvement at c = 0", walltime_improvement),
        ("figure4b", "Figure 4: increase of operations at ĉ = 0", operations_factor),
    ):
        series = tuple(
            Series(f"γ = {gamma}", _tuple(_ALPHAS), _tuple(function(_ALPHAS, gamma, 0.0)))
            for gamma in _GAMMAS
        )
        figures.append(Figure(name, title, "α", "times", series))
    return figures


def _tuple(values: np.ndarray) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
