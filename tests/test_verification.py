"""The exact rule: its algebra, its edges, and its law by counting."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_jax import Draft, ExactRule, GumbelRule, LenientRule, MultiDraftRule, Sampling
from specdec_jax.sampling import UniformNoise, draw_gumbel_noise, draw_noise
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


@pytest.mark.parametrize("lenience", [1.0, 0.7, 0.3, 0.05])
@pytest.mark.parametrize(("name", "p", "q"), _pairs(), ids=[name for name, *_ in _pairs()])
def test_lenience_bounds_every_token(
    name: str, p: np.ndarray, q: np.ndarray, lenience: float
) -> None:
    # Appendix A.5: emitted <= p / l, and no more than p itself where p > q.
    p64, q64 = p.astype(np.float64), q.astype(np.float64)
    accepted = np.minimum(q64, p64 / lenience)
    rest = np.asarray(residual(jnp.asarray(p), jnp.asarray(q)), np.float64)
    emitted = accepted + (1 - accepted.sum()) * rest / rest.sum()
    np.testing.assert_allclose(emitted.sum(), 1, atol=1e-6)
    assert (emitted <= p64 / lenience + 1e-6).all()
    assert (emitted <= np.maximum(p64, accepted) + 1e-6).all()
    if lenience == 1.0:
        np.testing.assert_allclose(emitted, p64, atol=1e-6)


def _lenient(lenience: float, x: int, temperature: float) -> float:
    """How often a guess x stands, of p = .5, .3, .2, 0 and q = 0, .5, .25, .25."""
    rule, draws = LenientRule(lenience), 20_000
    p = np.array([0.5, 0.3, 0.2, 0.0], np.float32)
    logits = jnp.broadcast_to(jnp.log(jnp.asarray(p)), (draws, 2, 4))
    hard = np.eye(4, dtype=np.float32)[0] if temperature == 0 else p
    q = jnp.broadcast_to(jnp.array([0.0, 0.5, 0.25, 0.25]), (draws, 1, 4))
    draft = Draft(jnp.full((draws, 1), x), q, jnp.ones((draws, 1), bool))
    noise = draw_noise(jax.random.split(jax.random.key(x), draws), 2)
    verdict = rule(
        jnp.broadcast_to(hard, logits.shape), draft, noise,
        logits=logits, sampling=Sampling(temperature),
    )  # fmt: skip
    return float(verdict.num_accepted.mean())


@pytest.mark.parametrize(
    ("lenience", "x", "share"),
    [
        (1.0, 1, 0.6), (0.8, 1, 0.75), (0.5, 1, 1.0), (1.0, 2, 0.8), (0.5, 2, 1.0),
        (0.5, 3, 0.0), (0.0, 3, 1.0),
    ],
)  # fmt: skip
def test_a_lenient_guess_stands_with_p_over_l_q(lenience: float, x: int, share: float) -> None:
    assert _lenient(lenience, x, 1.0) == pytest.approx(share, abs=0.012)


@pytest.mark.parametrize(
    ("lenience", "standing"), [(1.0, {0}), (0.7, {0}), (0.5, {0, 1}), (0.3, {0, 1, 2})]
)
def test_at_temperature_0_lenience_compares_with_the_likeliest(
    lenience: float, standing: set[int]
) -> None:
    assert {x for x in range(4) if _lenient(lenience, x, 0.0) == 1.0} == standing
    assert {x for x in range(4) if _lenient(lenience, x, 0.0) > 0.0} == standing


@pytest.mark.parametrize("lenience", [-0.1, 1.5, float("nan")])
def test_a_lenience_out_of_range_is_refused(lenience: float) -> None:
    with pytest.raises(ValueError, match="lenience must be in"):
        LenientRule(lenience)


@pytest.mark.parametrize(("name", "p", "q"), _pairs(), ids=[name for name, *_ in _pairs()])
def test_gumbel_coupling_agrees_as_often_as_it_can_be_asked(
    name: str, p: np.ndarray, q: np.ndarray
) -> None:
    # Daliri et al. (2024): with a chance of at least (1 - TV) / (1 + TV).
    if not q.any():
        return
    draws = 4_000
    noise = draw_gumbel_noise(jax.random.split(jax.random.key(0), draws), 2)
    both = jnp.broadcast_to(jnp.asarray(p)[0], (draws, 2, p.shape[-1]))
    x = noise.draw_guess(jnp.broadcast_to(jnp.asarray(q)[0], both[:, 0].shape), 0)
    draft = Draft(x[:, None], both[:, :1], jnp.ones((draws, 1), bool))
    n, token, _ = GumbelRule()(both, draft, noise)
    distance = np.abs(p - q).sum() / 2
    spread = 4 / np.sqrt(draws)
    assert float(n.mean()) >= (1 - distance) / (1 + distance) - spread
    assert float(n.mean()) <= 1 - distance + spread
    first = np.where(np.asarray(n) > 0, np.asarray(x), np.asarray(token))
    share = np.bincount(first, minlength=p.shape[-1]) / draws
    np.testing.assert_allclose(share, p[0], atol=spread)


def _many(m: int, draws: int = 20_000) -> tuple[np.ndarray, np.ndarray]:
    """n and the token of one position, m guesses of q each."""
    rng = np.random.default_rng(5)
    p, q = (_normalized(rng.random(6) ** 3).astype(np.float32) for _ in "pq")
    noise = draw_noise(jax.random.split(jax.random.key(m), draws * m), 2)
    both = jnp.broadcast_to(jnp.asarray(p), (draws * m, 2, 6))
    some_q = jnp.broadcast_to(jnp.asarray(q), (draws * m, 1, 6))
    x = noise.draw_guess(some_q[:, 0], 0)
    draft = Draft(x[:, None], some_q, jnp.ones((draws * m, 1), bool))
    verdict = jax.jit(MultiDraftRule(m))(both, draft, noise)
    chosen = np.asarray(x)[np.asarray(verdict.chosen)]
    first = np.where(np.asarray(verdict.num_accepted) > 0, chosen, verdict.next_token)
    share = np.bincount(first[::m], minlength=6) / draws
    np.testing.assert_allclose(share, p, atol=0.015)
    return np.asarray(verdict.num_accepted)[::m].mean(), np.minimum(p, q).sum()


def test_more_drafts_are_exact_and_accept_more() -> None:
    one, beta = _many(1)
    assert one == pytest.approx(beta, abs=0.015)  # Theorem 3.5
    two, four = _many(2)[0], _many(4)[0]
    assert beta + 0.03 < two < four - 0.01


def test_a_single_draft_is_the_exact_rule() -> None:
    rng = np.random.default_rng(0)
    p, q = (jnp.asarray(_normalized(rng.random((64, n, 5)))) for n in (4, 3))
    draft = Draft(
        jnp.asarray(rng.integers(0, 5, (64, 3))), q, jnp.asarray(rng.random((64, 3)) < 0.9)
    )
    noise = draw_noise(jax.random.split(jax.random.key(0), 64), 4)
    one, exact = MultiDraftRule(1)(p, draft, noise), ExactRule()(p, draft, noise)
    np.testing.assert_array_equal(one.num_accepted, exact.num_accepted)
    np.testing.assert_array_equal(one.next_token, exact.next_token)
    np.testing.assert_array_equal(one.chosen, np.arange(64))


@pytest.mark.parametrize("number", [0, 1.5, True])
def test_a_number_of_drafts_that_is_none(number: object) -> None:
    with pytest.raises(ValueError, match="num_drafts must be"):
        MultiDraftRule(number)
