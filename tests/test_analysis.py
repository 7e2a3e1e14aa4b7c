"""Section 3's formulas against the paper's own figures."""

import pytest

from specdec_jax.analysis import expected_tokens, walltime_improvement


@pytest.mark.parametrize(
    ("alpha", "gamma", "speed"),
    [
        (0.6, 2, 1.96),
        (0.7, 3, 2.53),
        (0.8, 2, 2.44),
        (0.8, 5, 3.69),
        (0.9, 2, 2.71),
        (0.9, 10, 6.86),
    ],
)
def test_table_1(alpha, gamma, speed):
    assert expected_tokens(alpha, gamma) == pytest.approx(speed, abs=0.005)
    assert walltime_improvement(alpha, gamma, c=0.0) == pytest.approx(speed, abs=0.005)


@pytest.mark.parametrize(
    ("alpha", "gamma", "c", "expected"),
    [(0.75, 7, 0.02, 3.2), (0.8, 7, 0.04, 3.3), (0.82, 7, 0.11, 2.5), (0.53, 5, 0.02, 1.9)],
)
def test_table_2(alpha, gamma, c, expected):
    assert walltime_improvement(alpha, gamma, c) == pytest.approx(expected, abs=0.06)


def test_the_edges():
    assert expected_tokens(1.0, 5) == 6
    assert expected_tokens(0.0, 5) == 1
    assert walltime_improvement(1.0, 1, c=0.0, verification_cost=2.0) == 1
