"""A speculative decode, one round at a time: what Figure 1 of the paper shows.

`trace_decode` gives the tokens of `speculative_decode`, what became of every guess, and
the probabilities that decided it. It returns to the host after each round, so it is for
looking, not for speed.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from specdec_jax.arguments import check_gamma, check_single, check_speculative, checked
from specdec_jax.decoding import decode_result, speculative_init, speculative_step
from specdec_jax.gamma import GammaPolicy
from specdec_jax.sampling import GREEDY, Sampling, distribution
from specdec_jax.types import (
    Cache,
    DecodeResult,
    DecodeState,
    Draft,
    Drafter,
    Model,
    Params,
    VerifyRule,
)
from specdec_jax.verification import ExactRule
from specdec_jax.vocabulary import EOS_ID

LIKELIEST = 5  # of the target's tokens at each place


@dataclasses.dataclass(frozen=True)
class Chances:
    """What target and draft gave a token at its place, after the standardized sampling.

    Attributes:
      token: its id.
      p: of the target; behind a rejected guess as if that had stood.
      q: of the draft; None where it made no guess, as behind the last one.
      likely: the target's likeliest ids there, at most `LIKELIEST`, with p and q of each;
        none of p = 0.
    """

    token: int
    p: float
    q: float | None
    likely: tuple[tuple[int, float, float | None], ...]


@dataclasses.dataclass(frozen=True)
class Round:
    """One round of Algorithm 1.

    Attributes:
      guesses: the draft's tokens, x_1..x_gamma; fewer where it made fewer.
      accepted: how many of them stand.
      emitted: the tokens of this round: the accepted guesses, and one of the target's
        behind them unless the row ended before it.
      chances: of each guess and, last, of the target's own token, if there is one.
    """

    guesses: tuple[int, ...]
    accepted: int
    emitted: tuple[int, ...]
    chances: tuple[Chances, ...] = ()

    @property
    def kept(self) -> tuple[int, ...]:
        """The guesses that stand."""
        return self.emitted[: self.accepted]

    @property
    def from_target(self) -> int | None:
        """The correction or the bonus token; None where the row ended in a guess."""
        return self.emitted[self.accepted] if len(self.emitted) > self.accepted else None

    @property
    def rejected(self) -> int | None:
        """The guess that the target corrected, if any."""
        if self.from_target is None or self.accepted == len(self.guesses):
            return None
        return self.guesses[self.accepted]


@dataclasses.dataclass(frozen=True)
class _RememberingDrafter:
    """A drafter whose state also holds its last guesses."""

    drafter: Drafter

    @property
    def vocab_size(self) -> int:
        return self.drafter.vocab_size

    @property
    def may_pass(self) -> bool:
        return self.drafter.may_pass

    def init(
        self, params: Params, inputs: Array, length: int, *, gamma: int, target_cache: Any
    ) -> Any:
        target_cache, logits = target_cache
        state = self.drafter.init(params, inputs, length, gamma=gamma, target_cache=target_cache)
        tokens = jnp.zeros((inputs.shape[0], gamma), jnp.int32)
        return state, Draft(tokens, jnp.zeros_like(logits[:, :gamma]), tokens > 0)

    def propose(self, params: Params, state: Any, *args: Any, **kwargs: Any) -> tuple[Draft, Any]:
        draft, inner = self.drafter.propose(params, state[0], *args, **kwargs)
        return draft, (inner, draft)


@dataclasses.dataclass(frozen=True)
class _RememberingTarget:
    """A target whose cache also holds its last logits, float32[B, most, V]."""

    target: Model
    most: int

    @property
    def vocab_size(self) -> int:
        return self.target.vocab_size

    def prefill(self, params: Params, inputs: Array, length: int) -> Cache:
        none = jnp.zeros((inputs.shape[0], self.most, self.vocab_size), jnp.float32)
        return self.target.prefill(params, inputs, length), none

    def extend(
        self, params: Params, cache: Cache, tokens: Array, positions: Array
    ) -> tuple[Array, Cache]:
        logits, inner = self.target.extend(params, cache[0], tokens, positions)
        return logits, (inner, cache[1].at[:, : logits.shape[1]].set(logits))

    def select(self, cache: Cache, rows: Array) -> Cache:
        return self.target.select(cache[0], rows), cache[1][rows]


_start = jax.jit(speculative_init, static_argnames=("target", "drafter", "rule", "max_new_tokens"))
_step = jax.jit(
    speculative_step,
    static_argnames=("target", "drafter", "sampling", "rule", "max_new_tokens", "eos_id"),
)


@functools.partial(jax.jit, static_argnames=("sampling", "num"))
def _look(
    logits: Array, q: Array, tokens: Array, *, sampling: Sampling, num: int
) -> tuple[Array, ...]:
    """Looks a round's tokens up, one a place, and the target's likeliest there.

    Args:
      logits: float32[k, V], the target's.
      q: float32[k, V].
      tokens: int32[k].
      sampling: how p is made.
      num: of the likeliest.

    Returns:
      float32[k], p and q of the tokens; int32[k, num], the likeliest, and p and q of them.
    """
    p = distribution(logits, sampling)
    _, likeliest = jax.lax.top_k(p, num)
    found = jnp.concatenate([tokens[:, None], likeliest], axis=1)
    p, q = (jnp.take_along_axis(x, found, axis=1) for x in (p, q))
    return p[:, 0], q[:, 0], likeliest, p[:, 1:], q[:, 1:]


def _chances(state: DecodeState, one: Round, sampling: Sampling) -> tuple[Chances, ...]:
    """The chances in a round, whose logits and guesses the state still holds."""
    logits, draft = state.target_cache[1][0], state.draft_state[1]
    # The target's own token stands at the place of the guess that it corrects.
    places, tokens = list(range(len(one.guesses))), list(one.guesses)
    if one.from_target is not None:
        places.append(one.accepted)
        tokens.append(one.from_target)
    spare = [0] * (logits.shape[0] - len(tokens))  # so that every round has one shape
    rows = jnp.asarray(places + spare)
    looked = _look(
        logits[rows],
        jnp.pad(draft.q[0], ((0, 1), (0, 0)))[rows],
        jnp.asarray(tokens + spare),
        sampling=sampling,
        num=min(LIKELIEST, logits.shape[1]),
    )
    p, q, ids, p_of, q_of = (x[: len(tokens)].tolist() for x in looked)
    found = []
    for i, (place, token) in enumerate(zip(places, tokens, strict=True)):
        guessed = place < len(one.guesses)
        of_draft = q_of[i] if guessed else [None] * len(ids[i])
        likely = tuple(x for x in zip(ids[i], p_of[i], of_draft, strict=True) if x[1] > 0)
        found.append(Chances(token, p[i], q[i] if guessed else None, likely))
    return tuple(found)


def trace_decode(
    target: Model,
    target_params: Params,
    drafter: Drafter,
    draft_params: Params,
    inputs: Array,
    key: Array | None = None,
    *,
    gamma: int | GammaPolicy = 7,
    max_new_tokens: int = 64,
    sampling: Sampling = GREEDY,
    rule: VerifyRule = ExactRule(),
    eos_id: int = EOS_ID,
) -> tuple[list[Round], DecodeResult]:
    """Decodes one source as `speculative_decode` does, keeping what each round did.

    Arguments and errors are those of `speculative_decode`; inputs: int32[1, T].

    Returns:
      The rounds, and the result.
    """
    gamma = check_gamma(gamma)
    check_single(rule)
    inputs, keys = check_speculative(target, drafter, inputs, key, max_new_tokens, sampling, eos_id)
    if inputs.shape[0] != 1:
        raise ValueError(f"A trace is of one source, not of {inputs.shape[0]}.")
    models = (
        _RememberingTarget(target, gamma.widths[-1] + 1), target_params,
        _RememberingDrafter(drafter), draft_params,
    )  # fmt: skip
    state = _start(*models, inputs, keys, gamma=gamma, rule=rule, max_new_tokens=max_new_tokens)
    rounds: list[Round] = []
    while not state.done[0]:
        start = int(state.length[0])
        state, info = _step(
            *models,
            state,
            gamma=gamma,
            sampling=sampling,
            rule=rule,
            max_new_tokens=max_new_tokens,
            eos_id=eos_id,
        )
        tokens, _, valid = state.draft_state[1]
        one = Round(
            guesses=tuple(tokens[0, : int(jnp.sum(valid))].tolist()),
            accepted=int(info.accepted.sum()),
            emitted=tuple(state.tokens[0, start : int(state.length[0])].tolist()),
        )
        rounds.append(dataclasses.replace(one, chances=_chances(state, one, sampling)))
    return rounds, checked(decode_result(state, max_new_tokens))
