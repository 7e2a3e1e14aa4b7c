"""The rules of verification: which guesses stand, and what follows them.

`ExactRule` is speculative sampling (section 2.3, Algorithm 1). Chen et al. (2023)
state the same rule with p and q swapped.
"""

import dataclasses

import jax.numpy as jnp
from jax import Array

from specdec_jax.sampling import Noise, sample
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


@dataclasses.dataclass(frozen=True)
class ExactRule:
    """Speculative sampling: what is emitted is distributed as the target alone.

    The rest of Algorithm 1 after the target's call, in its order. A guess x is
    kept while u < p(x) / q(x), written u * q(x) < p(x): nothing is divided, and
    a token with p(x) = 0 is rejected even at u = 0.
    """

    def __call__(self, p: Array, draft: Draft, noise: Noise) -> Verdict:
        """See `VerifyRule`."""
        x, gamma = draft.tokens, draft.tokens.shape[1]
        # A draft that gives a NaN has made no guess; the row becomes a sample of p.
        sound = draft.valid & ~jnp.isnan(jnp.sum(draft.q, axis=-1))
        q = jnp.where(sound[..., None], draft.q, 0.0)

        u = noise.test[:, :gamma]
        p_x = jnp.take_along_axis(p[:, :gamma], x[..., None], axis=-1)[..., 0]
        q_x = jnp.take_along_axis(q, x[..., None], axis=-1)[..., 0]
        accept = sound & (u * q_x < p_x)
        n = jnp.sum(jnp.cumprod(accept.astype(jnp.int32), axis=1), axis=1)

        # With q_{gamma+1} = 0 the bonus token is an ordinary residual sample.
        q = jnp.pad(q, ((0, 0), (0, 1), (0, 0)))
        p_n = jnp.take_along_axis(p, n[:, None, None], axis=1)[:, 0]
        q_n = jnp.take_along_axis(q, n[:, None, None], axis=1)[:, 0]
        u_n = jnp.take_along_axis(noise.token, n[:, None], axis=1)[:, 0]
        return Verdict(n, sample(residual(p_n, q_n), u_n))
