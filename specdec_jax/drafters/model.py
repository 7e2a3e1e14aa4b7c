"""A draft from any `Model`: an autoregressive network of the target's vocabulary."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from specdec_jax.sampling import Noise, Sampling, distribution, sample
from specdec_jax.types import Draft, Model, Params


def fit_vocabulary(logits: Array, vocab_size: int) -> Array:
    """Pads or cuts logits, float32[..., V'], to the target's `vocab_size`.

    Checkpoints of one vocabulary are padded to different sizes (32100, 32128);
    an id that the draft lacks has q = 0, an id that the target lacks is not drafted.
    """
    missing = vocab_size - logits.shape[-1]
    if missing <= 0:
        return logits[..., :vocab_size]
    padding = [(0, 0)] * (logits.ndim - 1) + [(0, missing)]
    return jnp.pad(logits, padding, constant_values=-jnp.inf)


@dataclasses.dataclass(frozen=True)
class ModelDrafter:
    """Guesses by sampling from a smaller model, one token a call.

    Attributes:
      model: the draft, a `Model`.
      sampling: overrides the target's sampling settings for the draft alone
        (exact all the same); None follows the target.
    """

    model: Model
    sampling: Sampling | None = None

    @property
    def vocab_size(self) -> int:
        """The draft model's own vocabulary."""
        return self.model.vocab_size

    def init(self, params: Params, inputs: Array, length: int) -> Any:
        """Reads the sources into the draft's cache."""
        return self.model.prefill(params, inputs, length)

    def propose(
        self,
        params: Params,
        state: Any,
        tokens: Array,
        length: Array,
        noise: Noise,
        *,
        gamma: int,
        vocab_size: int,
        sampling: Sampling,
    ) -> tuple[Draft, Any]:
        """See `Drafter.propose`. Costs gamma calls of the draft."""
        u = noise.guess[:, :gamma]

        def guess(logits: Array, u: Array) -> tuple[Array, Array]:
            q = distribution(fit_vocabulary(logits, vocab_size), self.sampling or sampling)
            return sample(q, u), q

        # The first call feeds the last two committed tokens: feeding a position
        # again changes nothing, and a fully accepted round leaves no gap.
        first = jnp.maximum(length - 2, 0)[:, None] + jnp.arange(2)
        fed = jnp.take_along_axis(tokens, first, axis=1)
        logits, cache = self.model.extend(params, state, fed, first)
        last = jnp.minimum(length - 1, 1)[:, None, None]
        x, q = guess(jnp.take_along_axis(logits, last, axis=1)[:, 0], u[:, 0])

        def step(carry: tuple[Array, Any, Array], u: Array) -> tuple[Any, tuple[Array, Array]]:
            x, cache, position = carry
            logits, cache = self.model.extend(params, cache, x[:, None], position[:, None])
            x, q = guess(logits[:, 0], u)
            return (x, cache, position + 1), (x, q)

        (_, cache, _), (xs, qs) = jax.lax.scan(step, (x, cache, length), u[:, 1:].T)
        x = jnp.concatenate([x[None], xs]).T
        q = jnp.moveaxis(jnp.concatenate([q[None], qs]), 0, 1)
        return Draft(x, q, jnp.ones_like(x, dtype=bool)), cache
