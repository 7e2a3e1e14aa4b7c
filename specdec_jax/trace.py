"""A speculative decode, one round at a time: what Figure 1 of the paper shows.

`trace_decode` gives the tokens of `speculative_decode`, and what became of every
guess. It returns to the host after each round, so it is for looking, not for speed.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from specdec_jax.arguments import check_gamma, check_single, check_speculative, checked
from specdec_jax.decoding import decode_result, speculative_init, speculative_step
from specdec_jax.gamma import GammaPolicy
from specdec_jax.sampling import GREEDY, Sampling
from specdec_jax.types import DecodeResult, Draft, Drafter, Model, Params, VerifyRule
from specdec_jax.verification import ExactRule
from specdec_jax.vocabulary import EOS_ID


@dataclasses.dataclass(frozen=True)
class Round:
    """One round of Algorithm 1.

    Attributes:
      guesses: the draft's tokens, x_1..x_gamma; fewer where it made fewer.
      accepted: how many of them stand.
      emitted: the tokens of this round: the accepted guesses, and one of the target's
        behind them unless the row ended before it.
    """

    guesses: tuple[int, ...]
    accepted: int
    emitted: tuple[int, ...]

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
class _Remembering:
    """A drafter whose state also holds its last guesses, and which of them it made."""

    drafter: Drafter

    @property
    def vocab_size(self) -> int:
        return self.drafter.vocab_size

    @property
    def may_pass(self) -> bool:
        return self.drafter.may_pass

    def init(self, params: Params, inputs: Array, length: int, **settings: Any) -> Any:
        guesses = jnp.zeros((inputs.shape[0], settings["gamma"]), jnp.int32)
        return self.drafter.init(params, inputs, length, **settings), (guesses, guesses > 0)

    def propose(self, params: Params, state: Any, *args: Any, **kwargs: Any) -> tuple[Draft, Any]:
        draft, inner = self.drafter.propose(params, state[0], *args, **kwargs)
        return draft, (inner, (draft.tokens, draft.valid))


_start = jax.jit(speculative_init, static_argnames=("target", "drafter", "rule", "max_new_tokens"))
_step = jax.jit(
    speculative_step,
    static_argnames=("target", "drafter", "sampling", "rule", "max_new_tokens", "eos_id"),
)


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
    models = (target, target_params, _Remembering(drafter), draft_params)
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
        tokens, valid = state.draft_state[1]
        rounds.append(
            Round(
                guesses=tuple(tokens[0, : int(jnp.sum(valid))].tolist()),
                accepted=int(info.accepted.sum()),
                emitted=tuple(state.tokens[0, start : int(state.length[0])].tolist()),
            )
        )
    return rounds, checked(decode_result(state, max_new_tokens))
