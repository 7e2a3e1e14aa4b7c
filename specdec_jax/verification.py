"""The rules of verification: which guesses stand, and what follows them.

* `ExactRule`: speculative sampling (section 2.3, Algorithm 1). Chen et al. (2023) state
  the same rule with p and q swapped.
* `LenientRule`: the same with q made smaller for the test (appendix A.5).
* `GumbelRule`: target and draft share their noise; a seed gives the same tokens
  whatever the draft.
* `MultiDraftRule`: several guesses for each position, tried in turn.

All but the lenient one leave the output distributed as the target's alone.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from specdec_jax.sampling import (
    GumbelNoise,
    Sampling,
    UniformNoise,
    draw_gumbel_noise,
    draw_noise,
    sample,
)
from specdec_jax.types import Draft, Verdict


def residual(p: Array, q: Array) -> Array:
    """max(0, p - q), unnormalized; p itself where nothing is left (p = q).

    Args:
      p: float32[..., V], the target.
      q: float32[..., V], the draft; all 0 where it made no guess.

    Returns:
      float32[..., V].
    """
    rest = jnp.maximum(p - q, 0.0)
    left = jnp.sum(rest, axis=-1, keepdims=True) > jnp.finfo(p.dtype).tiny
    return jnp.where(left, rest, p)


def _of(distributions: Array, tokens: Array) -> Array:
    """The probability of each token: float32[..., V], int32[...] -> float32[...]."""
    return jnp.take_along_axis(distributions, tokens[..., None], axis=-1)[..., 0]


def _at(rows: Array, place: Array) -> Array:
    """Of each row, [R, k, ...], what is at its place, int32[R]."""
    return jax.vmap(lambda row, i: row[i])(rows, place)


def leading(accept: Array) -> Array:
    """How many guesses stand before the first that does not: bool[R, gamma] -> int32[R]."""
    return jnp.sum(jnp.cumprod(accept.astype(jnp.int32), axis=1), axis=1)


def _sound(draft: Draft) -> Draft:
    """A draft that gives a NaN has made no guess; the row becomes a sample of p."""
    sound = draft.valid & ~jnp.isnan(jnp.sum(draft.q, axis=-1))
    return draft._replace(q=jnp.where(sound[..., None], draft.q, 0.0), valid=sound)


def _correct(p: Array, q: Array, n: Array, noise: UniformNoise) -> Verdict:
    """Algorithm 1's end: the token after n accepted guesses, from the residual there.

    With q_{gamma+1} = 0 the bonus token is an ordinary residual sample.
    """
    q = jnp.pad(q, ((0, 0), (0, 1), (0, 0)))
    weights = residual(_at(p, n), _at(q, n))
    return Verdict(n, sample(weights, _at(noise.token, n)))


@dataclasses.dataclass(frozen=True)
class ExactRule:
    """Speculative sampling: what is emitted is distributed as the target alone.

    The rest of Algorithm 1 after the target's call, in its order. A guess x is
    kept while u < p(x) / q(x), written u * q(x) < p(x): nothing is divided, and
    a token with p(x) = 0 is rejected even at u = 0.
    """

    num_drafts = 1
    draw_noise = staticmethod(draw_noise)

    def __call__(self, p: Array, draft: Draft, noise: UniformNoise, **_: Any) -> Verdict:
        """See `VerifyRule`."""
        x, q, valid = _sound(draft)
        gamma = x.shape[1]
        u = noise.test[:, :gamma]
        n = leading(valid & (u * _of(q, x) < _of(p[:, :gamma], x)))
        return _correct(p, q, n, noise)


@dataclasses.dataclass(frozen=True)
class LenientRule:
    """Lenience (appendix A.5): more guesses stand, and the output is no longer exact.

    A guess is kept while u < p(x) / (l q(x)). No token comes out with more than p(x) / l:
    a guess does with min(q(x), p(x) / l), and only where p(x) > q(x), hence where
    that is q(x), the residual adds to it, to p(x) at most. Nothing bounds it from below.

    At temperature 0 a guess is kept where p(x) >= l max p, p before its hardening; it
    is then at least l times as likely as the target's own choice.

    Attributes:
      lenience: l, in [0, 1]; 1 is exact, 0 takes every guess.
    """

    lenience: float

    num_drafts = 1
    draw_noise = staticmethod(draw_noise)

    def __post_init__(self) -> None:
        if not 0.0 <= self.lenience <= 1.0:
            raise ValueError(
                f"lenience must be in [0, 1], not {self.lenience}: 1 is exact, 0 takes every guess."
            )

    def __call__(
        self, p: Array, draft: Draft, noise: UniformNoise, *, logits: Array, sampling: Sampling
    ) -> Verdict:
        """See `VerifyRule`."""
        x, q, valid = _sound(draft)
        gamma = x.shape[1]
        p_x = _of(p[:, :gamma], x)
        if sampling.temperature == 0.0:
            likelihood = jax.nn.softmax(logits[:, :gamma], axis=-1)
            least = self.lenience * jnp.max(likelihood, axis=-1)
            keep = (_of(likelihood, x) >= least) & (self.lenience < 1.0) | (p_x > 0)
        else:
            keep = noise.test[:, :gamma] * self.lenience * _of(q, x) < p_x
            keep |= self.lenience == 0.0
        return _correct(p, q, leading(valid & keep), noise)


@dataclasses.dataclass(frozen=True)
class GumbelRule:
    """Drafter-invariant: a seed gives the same tokens whatever draft, gamma or batch.

    The token of each position is the target's own: the largest log p plus the position's
    Gumbel noise, a sample of p, and the one that plain decoding takes by this rule. The
    draft guesses with the same noise; a guess stands when it is that token. Two
    distributions so coupled agree with a chance of at least (1 - TV) / (1 + TV), where
    the exact rule's is 1 - TV, TV = 1 - beta being their total variation distance.
    """

    num_drafts = 1
    draw_noise = staticmethod(draw_gumbel_noise)

    def __call__(self, p: Array, draft: Draft, noise: GumbelNoise, **_: Any) -> Verdict:
        """See `VerifyRule`."""
        gamma = draft.tokens.shape[1]
        tokens = noise.draw_tokens(p)
        n = leading(draft.valid & (draft.tokens == tokens[:, :gamma]))
        return Verdict(n, _at(tokens, n))


class _Search(NamedTuple):
    """How far the guesses of a source stand; B sources, m drafts."""

    alive: Array  # bool[B, m], drafts whose guesses so far are the ones that stand
    leader: Array  # int32[B], one of them
    n: Array  # int32[B], guesses that stand
    going: Array  # bool[B], all so far
    rest: Array  # float32[B, V], where one did not: what its place is drawn from


@dataclasses.dataclass(frozen=True)
class MultiDraftRule:
    """Several drafts a round, verified together by recursive rejection, exactly.

    SpecInfer (Miao et al., 2024) and SpecTr (Sun et al., 2023): at each position the
    guesses of the drafts that share the accepted prefix are tried in turn, each by
    Algorithm 1's test against what the ones before have left of p:
    r_1 = p, and r_{j+1} = norm(max(0, r_j - q_j)) after the j-th was rejected. The drafts
    must be drawn independently. At m = 1 it is `ExactRule`.

    Attributes:
      num_drafts: m.
    """

    num_drafts: int = 2
    draw_noise = staticmethod(draw_noise)

    def __post_init__(self) -> None:
        if isinstance(self.num_drafts, bool) or not isinstance(self.num_drafts, int):
            raise ValueError(f"num_drafts must be a whole number, not {self.num_drafts!r}.")
        if self.num_drafts < 1:
            raise ValueError(f"num_drafts must be 1 or above, not {self.num_drafts}.")

    def __call__(self, p: Array, draft: Draft, noise: UniformNoise, **_: Any) -> Verdict:
        """See `VerifyRule`."""
        m = self.num_drafts

        def by_source(rows: Array) -> Array:
            return rows.reshape(rows.shape[0] // m, m, *rows.shape[1:])

        draft = _sound(draft)
        p, u, token_u = map(by_source, (p, noise.test, noise.token))
        x, q, valid = map(by_source, draft)
        batch, gamma = x.shape[0], x.shape[2]

        def try_position(i: Array, search: _Search) -> _Search:
            def try_draft(j: Array, state: tuple[Array, Array, Array]) -> tuple[Array, ...]:
                r, winner, found = state
                x_j, q_j = x[:, j, i], q[:, j, i]
                judged = search.going & search.alive[:, j] & valid[:, j, i] & ~found
                stands = judged & (u[:, j, i] * _of(q_j, x_j) < _of(r, x_j))
                left = residual(r, q_j)
                left /= jnp.sum(left, axis=-1, keepdims=True)
                r = jnp.where((judged & ~stands)[:, None], left, r)
                return r, jnp.where(stands, j, winner), found | stands

            r = _at(p[:, :, i], search.leader)
            start = (r, search.leader, jnp.zeros((batch,), bool))
            r, winner, found = jax.lax.fori_loop(0, m, try_draft, start)
            followed = x[:, :, i] == _at(x[:, :, i], winner)[:, None]
            return _Search(
                alive=search.alive & followed,
                leader=jnp.where(found, winner, search.leader),
                n=search.n + found,
                going=search.going & found,
                rest=jnp.where((search.going & ~found)[:, None], r, search.rest),
            )

        zeros = jnp.zeros((batch,), jnp.int32)
        search = _Search(
            alive=jnp.ones((batch, m), bool),
            leader=zeros,
            n=zeros,
            going=jnp.ones((batch,), bool),
            rest=jnp.zeros_like(p[:, 0, 0]),
        )
        if gamma:
            search = jax.lax.fori_loop(0, gamma, try_position, search)
        bonus = _at(p[:, :, gamma], search.leader)
        weights = jnp.where(search.going[:, None], bonus, search.rest)
        token = sample(weights, _at(token_u[:, 0], search.n))
        chosen = search.leader + m * jnp.arange(batch)
        return Verdict(*(jnp.repeat(value, m) for value in (search.n, token, chosen)))
