"""Standardized sampling (section 2.2), and drawing from what it gives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from specdec_jax import GREEDY, Sampling
from specdec_jax.sampling import distribution, first, sample

LOGITS = jnp.array([1.0, 3.0, 2.0, 3.0, -1.0])


def test_temperature_one_is_the_softmax() -> None:
    np.testing.assert_allclose(distribution(LOGITS, Sampling()), jax.nn.softmax(LOGITS), rtol=1e-6)


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_temperature_divides_the_logits(temperature: float) -> None:
    expected = jax.nn.softmax(LOGITS / temperature)
    np.testing.assert_allclose(distribution(LOGITS, Sampling(temperature)), expected, rtol=1e-6)


def test_temperature_zero_is_the_first_argmax() -> None:
    np.testing.assert_array_equal(distribution(LOGITS, GREEDY), [0, 1, 0, 0, 0])


def test_a_tiny_temperature_does_not_overflow() -> None:
    logits = jnp.array([-300.0, 200.0, 199.0])
    for temperature in (1e-37, 1e-38, 1e-46, 1e-300):  # some are 0 in float32
        np.testing.assert_array_equal(distribution(logits, Sampling(temperature)), [0, 1, 0])


def test_a_tiny_mass_keeps_the_likeliest_token() -> None:
    np.testing.assert_array_equal(distribution(LOGITS, Sampling(top_p=1e-44)), [0, 1, 0, 0, 0])


@pytest.mark.parametrize(
    ("settings_", "kept"),
    [
        (Sampling(top_k=1), [1]),  # of equal ones the lower id stays
        (Sampling(top_k=2), [1, 3]),
        (Sampling(top_k=3), [1, 2, 3]),
        (Sampling(top_k=5), [0, 1, 2, 3, 4]),
        (Sampling(top_k=99), [0, 1, 2, 3, 4]),
        (Sampling(top_p=0.1), [1]),
        (Sampling(top_p=0.5), [1, 3]),
        (Sampling(top_p=0.9), [1, 2, 3]),
        (Sampling(top_k=3, top_p=0.5), [1, 3]),
        (Sampling(top_k=1, top_p=0.999), [1]),
    ],
)
def test_top_k_and_top_p_keep_and_renormalize(settings_: Sampling, kept: list[int]) -> None:
    p = distribution(LOGITS, settings_)
    expected = np.zeros(5)
    expected[kept] = np.exp(np.asarray(LOGITS)[kept])
    np.testing.assert_allclose(p, expected / expected.sum(), rtol=1e-5)


@settings(max_examples=30, deadline=None)
@given(
    hnp.arrays(np.float32, (3, 17), elements=st.floats(-8, 8, width=32)),
    st.integers(0, 20),
    st.floats(0.05, 1.0),
)
def test_what_is_kept_is_the_smallest_likeliest_set(
    logits: np.ndarray, top_k: int, top_p: float
) -> None:
    whole = np.asarray(distribution(jnp.asarray(logits), Sampling(top_k=top_k)))
    p = np.asarray(distribution(jnp.asarray(logits), Sampling(top_k=top_k, top_p=top_p)))
    np.testing.assert_allclose(p.sum(-1), 1, rtol=1e-5)
    for full, part in zip(whole, p, strict=True):
        kept = part > 0
        assert full[kept].min() >= full[~kept].max(initial=0)
        assert full[kept].sum() >= top_p - 1e-5
        assert full[kept].sum() - full[kept].min() <= top_p + 1e-5
        if top_k:
            assert kept.sum() <= top_k


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
def test_a_nan_is_never_hidden(temperature: float, bad: float) -> None:
    for sampling in (
        Sampling(temperature),
        Sampling(temperature, 2),
        Sampling(temperature, 3, 0.5),
    ):
        p = distribution(jnp.stack([LOGITS.at[2].set(bad), LOGITS]), sampling)
        assert jnp.isnan(p[0]).all() if bad != jnp.inf else jnp.isnan(p[0]).any()
        assert jnp.isfinite(p[1]).all()


@pytest.mark.parametrize(
    "arguments",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"temperature": 1e39},
        {"top_k": 4.0},
        {"top_k": -1},
        {"top_k": 1.5},
        {"top_p": 0.0},
        {"top_p": 1.1},
    ],
)
def test_settings_out_of_range_are_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(arguments))):
        Sampling(**arguments)


@pytest.mark.parametrize("size", [1, 2, 5, 16, 33, 4096])
def test_draws_follow_the_weights_and_never_an_impossible_token(size: int) -> None:
    rng = np.random.default_rng(size)
    weights = rng.random(size).astype(np.float32) ** 4
    weights[rng.random(size) < 0.5] = 0
    weights[rng.integers(size)] = 0.7
    u = np.append(np.arange(20_000) / 20_000, np.float32(1 - 2**-24)).astype(np.float32)
    drawn = np.asarray(jax.jit(jax.vmap(lambda u: sample(jnp.asarray(weights), u)))(u))
    assert (weights[drawn] > 0).all()
    assert (np.diff(drawn) >= 0).all()
    shares = np.bincount(drawn, minlength=size) / len(drawn)
    np.testing.assert_allclose(shares, weights / weights.sum(), atol=2e-4)


@settings(max_examples=50, deadline=None)
@given(
    hnp.arrays(np.float32, (100,), elements=st.floats(0, 1, width=32)),
    st.floats(0, 1, exclude_max=True, width=32),
)
def test_no_rounding_draws_an_impossible_token(weights: np.ndarray, u: float) -> None:
    weights[7] = max(weights[7], 1e-6)
    assert weights[int(sample(jnp.asarray(weights), jnp.float32(u)))] > 0


def test_first_is_the_first_true_place() -> None:
    mask = jnp.array([[0, 1, 1], [0, 0, 1], [1, 0, 0], [0, 0, 0]], dtype=bool)
    np.testing.assert_array_equal(first(mask), [1, 2, 0, 0])


def test_negative_zero_is_a_zero() -> None:
    # lax.top_k ranks -0 below 0: a tie between them would let one more stand.
    p = distribution(jnp.asarray([-0.0, 0.0, -0.0]), Sampling(1.0, top_k=1))
    np.testing.assert_array_equal(p, [1, 0, 0])
