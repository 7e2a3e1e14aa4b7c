"""The exact rule: its algebra, its edges, and its law by counting."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_jax import Draft, ExactRule
from specdec_jax.sampling import UniformNoise, draw_noise
from specdec_jax.verification import residual


def _normalized(weights: np.ndarray) -> np.ndarray:
    return (weights / weights.sum(-1, keepdims=True)).astype(np.float32)


def _pairs() -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Distributions that rules get wrong: zeros, ties, one-hots, disjoint, near-equal."""
    rng = np.random.default_rng(0)
    p, q = (_normalized(rng.random((1, 9)) ** 3) for _ in "pq")
    hot = np.eye(9, dtype=np.float32)
    left, right = (
        _normalized(np.array([[1.0] * 4 + [0] * 5, [0.0] * 4 + [1] * 5])[[i]]) for i in (0, 1)
    )
    flat = _normalized(np.ones((1, 9)))
    return [
        ("random", p, q),
        ("equal", p, p),
        ("near-equal", p, _normalized(p * (1 + 1e-6 * rng.standard_normal((1, 9))))),
        ("same one-hot", hot[[3]], hot[[3]]),
        ("other one-hot", hot[[3]], hot[[5]]),
        ("one-hot target", hot[[3]], q),
        ("one-hot draft", p, hot[[3]]),
        ("disjoint", left, right),
        ("ties", flat, left),
        ("zeros", _normalized(p * (np.arange(9) % 2)), _normalized(q * (np.arange(9) % 3 > 0))),
        ("no guess", p, np.zeros_like(p)),
    ]


@pytest.mark.parametrize(("name", "p", "q"), _pairs(), ids=[name for name, *_ in _pairs()])
def test_accepting_and_correcting_add_up_to_p(name: str, p: np.ndarray, q: np.ndarray) -> None:
    # Appendix A.1: q min(1, p/q) + (1 - beta) norm(max(0, p - q)) = p.
    p64, q64 = p.astype(np.float64), q.astype(np.float64)
    accepted = np.minimum(p64, q64)
    rest = np.asarray(residual(jnp.asarray(p), jnp.asarray(q)), np.float64)
    emitted = accepted + (1 - accepted.sum()) * rest / rest.sum()
    np.testing.assert_allclose(emitted, p64, atol=1e-6)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 30))
def test_accepting_and_correcting_add_up_to_p_at_random(seed: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    p, q = (
        _normalized((rng.random((1, size)) ** 5 * (rng.random(size) < 0.7)) + 1e-30) for _ in "pq"
    )
    test_accepting_and_correcting_add_up_to_p("random", p, q)


def _verify(
    p: np.ndarray, q: np.ndarray, x: list[int], draws: int, seed: int = 0, valid: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """n and the next token of many draws over the same round."""

    def tile(a: np.ndarray) -> jax.Array:
        return jnp.broadcast_to(jnp.asarray(a), (draws, *a.shape))

    guesses = np.array(x, np.int32)
    draft = Draft(tile(guesses), tile(q), tile(np.full(guesses.shape, valid)))
    noise = draw_noise(jax.random.split(jax.random.key(seed), draws), len(p))
    verdict = jax.jit(ExactRule())(tile(p), draft, noise)
    return np.asarray(verdict.num_accepted), np.asarray(verdict.next_token)


def test_each_guess_is_kept_with_probability_p_over_q() -> None:
    p = _normalized(np.array([[1.0, 3, 4], [2, 2, 4], [1, 1, 1]]))
    q = _normalized(np.array([[2.0, 2, 4], [4, 2, 2]]))
    n, _ = _verify(p, q, [0, 0], 20_000)
    # p/q is 1/8 : 2/8 = 1/2 for both; the second is only looked at after the first.
    shares = np.bincount(n, minlength=3) / len(n)
    np.testing.assert_allclose(shares, [0.5, 0.25, 0.25], atol=0.015)


def test_a_correction_follows_the_residual_and_a_bonus_the_target() -> None:
    p = _normalized(np.array([[1.0, 3, 4], [5, 2, 1]]))
    q = _normalized(np.array([[4.0, 2, 2]]))
    n, token = _verify(p, q, [0], 40_000)
    corrections = np.bincount(token[n == 0], minlength=3) / (n == 0).sum()
    bonus = np.bincount(token[n == 1], minlength=3) / (n == 1).sum()
    np.testing.assert_allclose(corrections, [0, 1 / 3, 2 / 3], atol=0.015)
    np.testing.assert_allclose(bonus, p[1], atol=0.02)


def test_equal_distributions_accept_everything() -> None:
    p = _normalized(np.random.default_rng(1).random((4, 7)))
    n, _ = _verify(p, p[:3], [1, 5, 2], 2_000)
    assert (n == 3).all()


def test_disjoint_supports_accept_nothing_and_give_p() -> None:  # case 12
    p = np.array([[0.5, 0.5, 0, 0], [0.25] * 4], np.float32)
    q = np.array([[0, 0, 0.5, 0.5]], np.float32)
    n, token = _verify(p, q, [2], 20_000)
    assert (n == 0).all()
    np.testing.assert_allclose(np.bincount(token, minlength=4) / 20_000, p[0], atol=0.015)


def test_an_impossible_guess_is_rejected_even_at_u_zero() -> None:
    # Case 11: with `u <= p/q`, u = 0 would let a token of p = 0 through.
    zeros = jnp.zeros((1, 2))
    noise = UniformNoise(zeros, zeros, zeros)
    p = np.array([[0.0, 1, 0], [0, 0, 1]], np.float32)
    q = np.array([[0.5, 0.5, 0]], np.float32)
    draft = Draft(jnp.array([[0]]), jnp.asarray(q)[None], jnp.array([[True]]))
    n, token, _ = ExactRule()(jnp.asarray(p)[None], draft, noise)
    assert n == 0 and token == 1


def test_a_forced_rejection_at_p_equal_q_samples_p() -> None:  # case 8
    p = _normalized(np.array([[1.0, 3, 4], [1, 1, 1]]))
    n, token = _verify(p, p[:1], [0], 20_000, valid=False)
    assert (n == 0).all()
    np.testing.assert_allclose(np.bincount(token, minlength=3) / 20_000, p[0], atol=0.015)
    rest = residual(jnp.asarray(p[0]), jnp.asarray(p[0]))
    np.testing.assert_array_equal(rest, p[0])


def test_a_nan_in_q_gives_a_sample_of_p() -> None:  # case 9
    p = _normalized(np.array([[1.0, 3, 4], [1, 1, 1]]))
    n, token = _verify(p, np.array([[np.nan, 0.5, 0.5]], np.float32), [1], 20_000)
    assert (n == 0).all()
    np.testing.assert_allclose(np.bincount(token, minlength=3) / 20_000, p[0], atol=0.015)


def test_chen_et_al_state_the_same_rule() -> None:
    # Their q is the target and their p the draft: accept with min(1, q/p), and
    # sample from norm(max(0, q - p)) otherwise.
    rng = np.random.default_rng(2)
    p, q = (_normalized(rng.random((1, 6))) for _ in "pq")

    def chen(target: np.ndarray, draft: np.ndarray) -> np.ndarray:
        keep = draft * np.minimum(1, target / draft)
        rest = np.maximum(target - draft, 0)
        return keep + (1 - keep.sum()) * rest / rest.sum()

    rest = np.asarray(residual(jnp.asarray(p), jnp.asarray(q)))
    ours = np.minimum(p, q) + (1 - np.minimum(p, q).sum()) * rest / rest.sum()
    np.testing.assert_allclose(ours, chen(p, q), atol=1e-6)
