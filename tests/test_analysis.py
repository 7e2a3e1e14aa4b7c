"""Section 3's formulas: the paper's own figures, the process they describe, their limits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_jax.analysis import (
    break_even_alpha,
    decode_improvement,
    expected_rounds,
    expected_tokens,
    guaranteed_improvement,
    operations_factor,
    optimal_gamma,
    pays,
    walltime_improvement,
)

RATES = st.floats(0, 1)
GAMMAS = st.integers(0, 12)
COSTS = st.floats(0, 1)


@pytest.mark.parametrize(
    ("alpha", "gamma", "operations", "speed"),
    [
        (0.6, 2, "1.53", "1.96"),
        (0.7, 3, "1.58", "2.53"),
        (0.8, 2, "1.23", "2.44"),
        (0.8, 5, "1.63", "3.69"),
        (0.9, 2, "1.11", "2.71"),
        (0.9, 10, "1.60", "6.86"),
    ],
)
def test_table_1_to_the_digit(alpha, gamma, operations, speed):
    assert f"{operations_factor(alpha, gamma, 0.0):.2f}" == operations
    assert f"{walltime_improvement(alpha, gamma, 0.0):.2f}" == speed


@pytest.mark.parametrize(
    ("alpha", "gamma", "c", "expected"),
    [
        (0.75, 7, 0.02, 3.2), (0.80, 7, 0.04, 3.3), (0.82, 7, 0.11, 2.5),
        (0.62, 7, 0.02, 2.3), (0.68, 5, 0.04, 2.4), (0.71, 3, 0.11, 2.0),
        (0.65, 5, 0.02, 2.4), (0.73, 5, 0.04, 2.6), (0.74, 3, 0.11, 2.0),
        (0.53, 5, 0.02, 1.9), (0.55, 3, 0.04, 1.8), (0.56, 3, 0.11, 1.6),
    ],
)  # fmt: skip
def test_the_expected_column_of_table_2(alpha, gamma, c, expected):
    # alpha and c are printed to two digits.
    slowest = walltime_improvement(alpha - 0.005, gamma, c + 0.005)
    fastest = walltime_improvement(alpha + 0.005, gamma, c - 0.005)
    assert slowest - 0.05 <= expected <= fastest + 0.05


def rounds(rng: np.random.Generator, alpha: float, gamma: int, count: int) -> np.ndarray:
    """Tokens of simulated rounds: the guesses before the first that is rejected, and one."""
    stands = rng.random((count, gamma)) < alpha
    return 1 + np.cumprod(stands, axis=1).sum(axis=1)


@settings(max_examples=25, deadline=None)
@given(alpha=RATES, gamma=GAMMAS, c=COSTS, v=st.floats(0.5, 5), seed=st.integers(0, 99))
def test_the_formulas_are_those_of_the_process(alpha, gamma, c, v, seed):
    tokens = rounds(np.random.default_rng(seed), alpha, gamma, 20_000)
    mean = tokens.mean()
    bound = 5 * max(tokens.std(), 1e-3) / np.sqrt(len(tokens)) + 1e-9
    assert expected_tokens(alpha, gamma) == pytest.approx(mean, abs=bound)
    seconds = len(tokens) * (gamma * c + v)
    bound *= len(tokens) / seconds
    assert walltime_improvement(alpha, gamma, c, v) == pytest.approx(
        tokens.sum() / seconds, abs=bound
    )
    operations = len(tokens) * (gamma * c + gamma + 1) / tokens.sum()
    assert operations_factor(alpha, gamma, c) == pytest.approx(operations, rel=0.05)


@settings(max_examples=15, deadline=None)
@given(
    alpha=RATES,
    gamma=st.integers(0, 8),
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=3),
    seed=st.integers(0, 99),
)
def test_the_rounds_of_short_decodes(alpha, gamma, lengths, seed):
    rng, most, count = np.random.default_rng(seed), max(lengths), 2_000
    needed = []
    for length in lengths:
        ends = np.cumsum(rounds(rng, alpha, gamma, count * max(most, 1)).reshape(count, -1), axis=1)
        needed.append((length > 0) * (1 + (ends < length).sum(axis=1)))
    last = np.max(needed, axis=0)
    bound = 5 * max(last.std(), 1e-2) / np.sqrt(count)
    assert expected_rounds(alpha, gamma, lengths) == pytest.approx(last.mean(), abs=bound)


@given(alpha=RATES, gamma=GAMMAS, c=COSTS, v=st.floats(0.5, 5))
def test_limits_and_monotonicity(alpha, gamma, c, v):
    tokens = expected_tokens(alpha, gamma)
    assert 1 - 1e-12 <= tokens <= gamma + 1 + 1e-9
    assert expected_tokens(0.0, gamma) == 1
    assert expected_tokens(1.0, gamma) == gamma + 1
    assert expected_tokens(alpha, gamma + 1) >= tokens - 1e-12
    assert expected_tokens(min(1, alpha + 0.01), gamma) >= tokens - 1e-12
    if alpha < 0.99:
        assert expected_tokens(alpha, 4000) == pytest.approx(1 / (1 - alpha))
    assert walltime_improvement(alpha, gamma, c + 0.1, v) <= walltime_improvement(
        alpha, gamma, c, v
    )
    assert walltime_improvement(alpha, gamma, c, v + 0.1) < walltime_improvement(alpha, gamma, c, v)
    assert operations_factor(alpha, gamma, c) >= 1 - 1e-12


def test_near_one_nothing_is_lost():
    gamma = 5
    for missed in (1e-4, 1e-8, 1e-12, 1e-16):
        alpha = 1 - missed
        exact = sum(alpha**i for i in range(gamma + 1))
        assert expected_tokens(alpha, gamma) == pytest.approx(exact, rel=1e-12)


@given(alpha=RATES, c=COSTS)
def test_corollary_3_9(alpha, c):
    assert guaranteed_improvement(alpha, c) == pytest.approx((1 + alpha) / (1 + c))
    if abs(alpha - c) > 1e-6:
        assert pays(alpha, c) == (alpha > c)
        assert (guaranteed_improvement(alpha, c) > 1) == (alpha > c)
    best = optimal_gamma(alpha, c)
    if best:
        speed = walltime_improvement(alpha, best, c)
        assert speed >= guaranteed_improvement(alpha, c) * (1 - 1e-9)


@settings(deadline=None)
@given(
    alpha=RATES,
    c=COSTS,
    v=st.lists(st.floats(1, 6), min_size=1, max_size=9),
)
def test_the_best_gamma_is_the_best(alpha, c, v):
    best = optimal_gamma(alpha, c, v)
    speeds = [1.0] + [walltime_improvement(alpha, g, c, v[g - 1]) for g in range(1, len(v) + 1)]
    assert speeds[best] >= max(speeds) * (1 - 1e-9)
    assert pays(alpha, c, v) == (best > 0)


def test_arrays_broadcast():
    alphas, costs = np.linspace(0, 0.99, 7)[:, None], np.asarray([0.0, 0.05, 0.3])
    best = optimal_gamma(alphas, costs, max_gamma=20)
    assert best.shape == (7, 3)
    one_by_one = [[optimal_gamma(a, c, max_gamma=20) for c in costs] for a in alphas[:, 0]]
    np.testing.assert_array_equal(best, one_by_one)
    speeds = walltime_improvement(alphas[..., None], np.arange(1, 4), 0.1, [1.2, 1.3, 1.6])
    assert speeds.shape == (7, 1, 3)
    assert speeds[3, 0, 2] == walltime_improvement(alphas[3, 0], 3, 0.1, 1.6)
    assert isinstance(float(expected_tokens(0.5, 3)), float)
    assert expected_tokens(0.5, 3).shape == ()


@given(gamma=st.integers(1, 12), c=COSTS, v=st.floats(0.5, 5))
def test_break_even(gamma, c, v):
    alpha = break_even_alpha(gamma, c, v)
    if np.isnan(alpha):
        assert walltime_improvement(1.0, gamma, c, v) < 1
    else:
        assert walltime_improvement(alpha, gamma, c, v) >= 1 - 1e-9
        if alpha > 1e-6:
            assert walltime_improvement(alpha - 1e-6, gamma, c, v) <= 1


def test_whole_decodes_go_to_the_theorem():
    speed = walltime_improvement(0.8, 5, 0.05, 1.4)
    assert decode_improvement(0.8, 5, 0.05, 1.4, tokens=3_000) == pytest.approx(speed, rel=2e-3)
    short = decode_improvement(0.8, 5, 0.05, 1.4, tokens=12, prefill=4, draft_prefill=1)
    assert short < decode_improvement(0.8, 5, 0.05, 1.4, tokens=12) < speed
    # One token: a round for it, whatever was guessed.
    assert decode_improvement(0.8, 5, 0.05, 1.4, tokens=1) == pytest.approx(1 / (0.25 + 1.4))
    # A batch waits for its slowest row.
    assert decode_improvement(0.8, 5, 0.05, tokens=[40, 40]) < decode_improvement(
        0.8, 5, 0.05, tokens=[40]
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: expected_tokens(1.2, 3), "alpha must be in"),
        (lambda: expected_tokens(0.5, -1), "gamma must be 0 or above"),
        (lambda: walltime_improvement(0.5, 3, -0.1), "c must be 0 or above"),
        (lambda: walltime_improvement(0.5, 3, 0.1, 0.0), "verification_cost must be above 0"),
        (lambda: operations_factor(0.5, 3, -1), "c_hat must be"),
        (lambda: optimal_gamma(0.5, 0.1, [1.0, 1.1], max_gamma=3), "holds 2 gammas"),
    ],
)
def test_what_is_out_of_range_is_told(call, message):
    with pytest.raises(ValueError, match=message):
        call()
