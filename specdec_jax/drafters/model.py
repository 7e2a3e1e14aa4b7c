"""A draft from any `Model`: an autoregressive network of the target's vocabulary."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from specdec_jax.gamma import Budget
from specdec_jax.sampling import Noise, Sampling, distribution, window
from specdec_jax.types import Cache, Draft, Model, Params


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


class ModelState(NamedTuple):
    """What a model draft keeps: its cache, and which tokens it holds.

    The cache is never rewound or told what became of its guesses: what it was fed is
    compared with the prefix, and what differs is fed again.
    """

    cache: Cache
    known: Array  # int32[B], positions before this one hold the prefix
    fed: Array  # int32[B, gamma], the tokens fed from there on; -1 for none


class _Drafting(NamedTuple):
    """A round's guesses while they are made."""

    made: Array  # int32[], the largest number of any row
    going: Array  # bool[B], rows that want another
    chance: Array  # float32[B], that all guesses so far stand, as the draft sees it
    draft: Draft


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

    may_pass = False

    @property
    def vocab_size(self) -> int:
        """The draft model's own vocabulary."""
        return self.model.vocab_size

    def init(
        self, params: Params, inputs: Array, length: int, *, gamma: int, target_cache: Cache
    ) -> ModelState:
        """Reads the sources into the draft's cache."""
        return self.start(self.model.prefill(params, inputs, length), inputs.shape[0], gamma)

    def start(self, cache: Cache, batch: int, gamma: int) -> ModelState:
        """The state over a cache that has read the sources and no prefix."""
        return ModelState(
            cache, jnp.zeros((batch,), jnp.int32), jnp.full((batch, gamma), -1, jnp.int32)
        )

    def propose(
        self,
        params: Params,
        state: ModelState,
        tokens: Array,
        length: Array,
        noise: Noise,
        budget: Budget,
        *,
        gamma: int,
        vocab_size: int,
        sampling: Sampling,
    ) -> tuple[Draft, ModelState]:
        """See `Drafter.propose`.

        Costs a call of the draft for each guess, the first on two tokens, and more such
        calls where rounds went by without it.
        """
        batch = tokens.shape[0]

        def guess(logits: Array, drafting: _Drafting, place: Array | int) -> _Drafting:
            """Draws the next guess of every row that is going, from float32[B, V']."""
            logits = fit_vocabulary(logits, vocab_size)
            q = distribution(logits, self.sampling or sampling)
            x = noise.draw_guess(q, place)
            going, chance = drafting.going, drafting.chance
            draft = Draft(
                drafting.draft.tokens.at[:, place].set(x),
                drafting.draft.q.at[:, place].set(jnp.where(going[:, None], q, 0.0)),
                drafting.draft.valid.at[:, place].set(going),
            )
            going &= place + 1 < budget.guesses
            if budget.floor is not None:
                chance *= jnp.max(jax.nn.softmax(logits, axis=-1), axis=-1)
                going &= chance >= budget.floor
            return _Drafting(jnp.int32(place) + 1, going, chance, draft)

        def catch_up(carry: tuple[ModelState, _Drafting]) -> tuple[ModelState, _Drafting]:
            """Feeds two tokens of the prefix; the first guess follows the last of them.

            Two, because a fully accepted round leaves its last guess unfed: feeding a
            position again changes nothing.
            """
            (cache, known, fed), _ = carry
            at = jnp.maximum(jnp.minimum(known, length - 2), 0)
            logits, cache = self.model.extend(
                params, cache, window(tokens, at, 2), at[:, None] + jnp.arange(2)
            )
            last = jnp.clip(length - 1 - at, 0, 1)[:, None, None]
            logits = jnp.take_along_axis(logits, last, axis=1)[:, 0]
            known = jnp.minimum(at + 2, length)
            return ModelState(cache, known, jnp.full_like(fed, -1)), guess(logits, nothing, 0)

        def step(carry: tuple[ModelState, _Drafting]) -> tuple[ModelState, _Drafting]:
            """Feeds the guess before, and makes the next one."""
            (cache, known, fed), drafting = carry
            place = drafting.made
            x = drafting.draft.tokens[:, place - 1][:, None]
            at = (length + place - 1)[:, None]
            logits, cache = self.model.extend(params, cache, x, at)
            # Behind a prefix that the cache does not hold, nothing it was fed counts.
            x = jnp.where(known[:, None] == length[:, None], x, -1)
            state = ModelState(cache, known, fed.at[:, place - 1].set(x[:, 0]))
            return state, guess(logits[:, 0], drafting, place)

        nothing = _Drafting(
            made=jnp.int32(0),
            going=budget.guesses > 0,
            chance=jnp.ones((batch,), jnp.float32),
            draft=Draft(
                jnp.zeros((batch, gamma), jnp.int32),
                jnp.zeros((batch, gamma, vocab_size), jnp.float32),
                jnp.zeros((batch, gamma), bool),
            ),
        )
        right = jnp.cumprod(state.fed == window(tokens, state.known, gamma), axis=1)
        # The last token is fed in any case: the first guess needs its logits.
        known = jnp.minimum(state.known + jnp.sum(right, axis=1), length - 1)
        state = ModelState(state.cache, known, jnp.full_like(state.fed, -1))
        wanted = nothing.going
        carry = jax.lax.while_loop(
            lambda carry: jnp.any(wanted & (carry[0].known < length)), catch_up, (state, nothing)
        )
        state, drafting = jax.lax.while_loop(lambda carry: jnp.any(carry[1].going), step, carry)
        return drafting.draft, state
