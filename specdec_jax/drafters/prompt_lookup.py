"""A draft that copies (section 3.6): what followed the last tokens when they last came up."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from specdec_jax.gamma import Budget
from specdec_jax.sampling import Noise, Sampling, window
from specdec_jax.types import Cache, Draft, Drafter, Params
from specdec_jax.vocabulary import PAD_ID


class LookupState(NamedTuple):
    """The sources, and the state of the drafter to fall back on."""

    inputs: Array  # int32[B, T]
    fallback: Any


@dataclasses.dataclass(frozen=True)
class LookupDrafter:
    """Copies from the source, or from what was generated so far.

    Where the longest match of the last tokens ends, what follows is the guess: of the
    matches as long, the last one, in the source before the generated text. Deterministic:
    q is one-hot. Without a match it makes no guess, at no cost, or asks the fallback,
    whose parameters are then the drafter's.

    Attributes:
      vocab_size: V.
      max_ngram: the most tokens that are compared.
      min_ngram: the fewest that must agree.
      fallback: another drafter for where nothing matches.
    """

    vocab_size: int
    max_ngram: int = 4
    min_ngram: int = 1
    fallback: Drafter | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.min_ngram <= self.max_ngram:
            raise ValueError(
                "Lookup compares 1 or more tokens: min_ngram must be from 1 to max_ngram, "
                f"not {self.min_ngram} with max_ngram {self.max_ngram}."
            )

    @property
    def may_pass(self) -> bool:
        """See `Drafter`."""
        return self.fallback is None or self.fallback.may_pass

    def init(
        self, params: Params, inputs: Array, length: int, *, gamma: int, target_cache: Cache
    ) -> LookupState:
        """Keeps the sources at hand."""
        if self.fallback is None:
            return LookupState(inputs, ())
        state = self.fallback.init(params, inputs, length, gamma=gamma, target_cache=target_cache)
        return LookupState(inputs, state)

    def propose(
        self,
        params: Params,
        state: LookupState,
        tokens: Array,
        length: Array,
        noise: Noise,
        budget: Budget,
        *,
        gamma: int,
        vocab_size: int,
        sampling: Sampling,
    ) -> tuple[Draft, LookupState]:
        """See `Drafter.propose`."""
        x, found = self._look_up(state.inputs, tokens, length, gamma)
        valid = found & (jnp.arange(gamma) < budget.guesses[:, None])
        valid &= (x >= 0) & (x < vocab_size)
        q = jax.nn.one_hot(x, vocab_size) * valid[..., None]
        draft = Draft(jnp.where(valid, x, PAD_ID), q, valid)
        if self.fallback is None:
            return draft, state
        matched = found[:, 0]
        rest = budget._replace(guesses=jnp.where(matched, 0, budget.guesses))
        other, inner = self.fallback.propose(
            params,
            state.fallback,
            tokens,
            length,
            noise,
            rest,
            gamma=gamma,
            vocab_size=vocab_size,
            sampling=sampling,
        )
        draft = Draft(
            *(
                jnp.where(matched.reshape(-1, *[1] * (a.ndim - 1)), a, b)
                for a, b in zip(draft, other, strict=True)
            )
        )
        return draft, state._replace(fallback=inner)

    def _look_up(
        self, inputs: Array, tokens: Array, length: Array, gamma: int
    ) -> tuple[Array, Array]:
        """What follows the best match: int32[B, gamma], and bool[B, gamma], where there is."""
        size = inputs.shape[1]
        text = jnp.concatenate([inputs, tokens], axis=1)
        places = jnp.arange(text.shape[1])
        start = jnp.where(places < size, 0, size)  # of the part that a place lies in
        # A part ends where its padding, or what is not generated yet, begins.
        end = jnp.where(places < size, jnp.sum(inputs != PAD_ID, axis=1, keepdims=True), 0)
        end = jnp.where(places < size, end, size + length[:, None])

        agree, matched = jnp.ones(text.shape, bool), jnp.zeros(text.shape, jnp.int32)
        for back in range(self.max_ngram):
            last = window(tokens, jnp.maximum(length - 1 - back, 0), 1)
            inside = (places - back >= start) & (length[:, None] - 1 - back > 0)
            agree &= inside & (jnp.roll(text, back, axis=1) == last)
            matched += agree
        matched = jnp.where((matched >= self.min_ngram) & (places + 1 < end), matched, 0)
        # The longest; of these in the source before the generated; of these the last.
        rank = (2 * matched + (places < size)) * text.shape[1] + places
        best = jnp.argmax(jnp.where(matched > 0, rank, -1), axis=1)
        follow = window(text, best + 1, gamma)
        reach = jnp.take_along_axis(end, best[:, None], axis=1)
        found = best[:, None] + 1 + jnp.arange(gamma) < reach
        return follow, found & (jnp.max(matched, axis=1, keepdims=True) > 0)
