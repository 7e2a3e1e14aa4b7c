"""How many guesses a round makes (section 3.5): always the same, or by what was seen.

A policy is a few pure functions over a state that the decoding loop carries. What it
decides may depend on guesses that were judged, never on those behind a rejection, whose
noise serves again: so the output stays distributed as the target's alone. Each row
decides for itself: its tokens do not depend on the rows beside it.

A round costs its draft calls, of which a shorter round makes fewer, and a verification of
as many guesses as the target was compiled for (`widths`).

Shapes: R rows, G gammas to choose from.
"""

import dataclasses
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax import Array

_STATIC = {"static": True}  # decides what is compiled; the other fields may be traced


class Budget(NamedTuple):
    """What a drafter may do in a round."""

    guesses: Array  # int32[R], at most so many, 0 to gamma
    floor: Array | None = None
    """float32[R]: draft on only while the chance that all guesses so far stand, as the
    draft's own probabilities see it, is at least this; None: always."""


@runtime_checkable
class GammaPolicy(Protocol):
    """Decides on every round's guesses. A pytree, whose static part is hashable."""

    @property
    def widths(self) -> tuple[int, ...]:
        """The numbers of guesses that verification is compiled for, ascending.

        The last is gamma, the most guesses of a round. With a 0 among them rows may want no
        guesses: once none wants any, all are decoded plainly to their ends.
        """

    def init(self, rows: int) -> Any:
        """The state before the first round; the first axis of its arrays is R."""

    def budget(self, state: Any) -> Budget:
        """What the next round may do."""

    def update(self, state: Any, examined: Array, accepted: Array) -> Any:
        """Learns from a round: int32[R] each, guesses that were judged, and that stood."""


def check_widths(widths: tuple[int, ...]) -> None:
    """Refuses what `GammaPolicy.widths` can't be."""
    whole = all(isinstance(g, int) and not isinstance(g, bool) and g >= 0 for g in widths)
    if not whole or not widths or list(widths) != sorted(set(widths)) or widths[-1] < 1:
        raise ValueError(
            f"widths must be ascending whole numbers of guesses, such as (0, 3, 7), not {widths}."
        )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FixedGamma:
    """Always `gamma` guesses, as in Algorithm 1."""

    gamma: int = dataclasses.field(metadata=_STATIC)

    @property
    def widths(self) -> tuple[int, ...]:
        """See `GammaPolicy`."""
        return (self.gamma,)

    def init(self, rows: int) -> Array:
        """See `GammaPolicy`."""
        return jnp.full((rows,), self.gamma, jnp.int32)

    def budget(self, state: Array) -> Budget:
        """See `GammaPolicy`."""
        return Budget(state)

    def update(self, state: Array, examined: Array, accepted: Array) -> Array:
        """See `GammaPolicy`."""
        return state


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ConfidentGamma:
    """Stops drafting where the draft's own confidence is low.

    Attributes:
      widths: see `GammaPolicy`; the last is the most guesses.
      floor: the least chance that all guesses so far stand at which another is made, the
        chance being the product of the draft's largest probabilities, before any
        temperature.
    """

    widths: tuple[int, ...] = dataclasses.field(default=(3, 7), metadata=_STATIC)
    floor: Any = 0.4

    def __post_init__(self) -> None:
        check_widths(self.widths)

    def init(self, rows: int) -> Array:
        """See `GammaPolicy`."""
        return jnp.full((rows,), self.widths[-1], jnp.int32)

    def budget(self, state: Array) -> Budget:
        """See `GammaPolicy`."""
        return Budget(state, jnp.broadcast_to(jnp.asarray(self.floor, jnp.float32), state.shape))

    def update(self, state: Array, examined: Array, accepted: Array) -> Array:
        """See `GammaPolicy`."""
        return state


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AssistedGamma:
    """The schedule of Hugging Face's assisted generation.

    2 more guesses after a round whose guesses all stood, 1 fewer after any other.

    Attributes:
      widths: see `GammaPolicy`; the last is the most guesses.
      start: guesses of the first round.
    """

    widths: tuple[int, ...] = dataclasses.field(default=(1, 3, 7), metadata=_STATIC)
    start: int = dataclasses.field(default=5, metadata=_STATIC)

    def __post_init__(self) -> None:
        check_widths(self.widths)
        if not 1 <= self.start <= self.widths[-1]:
            raise ValueError(f"start must be from 1 to {self.widths[-1]}, not {self.start}.")

    def init(self, rows: int) -> Array:
        """See `GammaPolicy`."""
        return jnp.full((rows,), self.start, jnp.int32)

    def budget(self, state: Array) -> Budget:
        """See `GammaPolicy`."""
        return Budget(state)

    def update(self, state: Array, examined: Array, accepted: Array) -> Array:
        """See `GammaPolicy`."""
        now = jnp.where(accepted == examined, state + 2, state - 1)
        return jnp.clip(now, 1, self.widths[-1])


class _Seen(NamedTuple):
    """What a row's guesses came to, older rounds counting less."""

    examined: Array  # float32[R]
    accepted: Array  # float32[R]
    choice: Array  # int32[R], the gamma that follows from it


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AdaptiveGamma:
    """Tracks each row's acceptance rate, and takes the gamma that Theorem 3.8 says is best.

    That is the largest ratio of expected tokens (Eq. 1), at the row's own estimate of beta,
    to what a round of that gamma costs where it runs. Where nothing pays that is gamma 0,
    plain decoding, to the end of the row. The estimate begins high, for only who tries
    learns; while little is known the tries are small. `after` carries over what was seen to
    the next decode, and forgets it slowly, so that one after many tries again.

    Attributes:
      costs: float32[G], what a round of each of the choices costs, its draft calls and its
        verification, in any unit; `costs.measured_gamma` measures them.
      choices: the gammas to choose from, ascending. Verification is compiled for the last
        alone: a branch for each would copy the target's cache every round.
      examined: guesses that were judged before, in other decodes; see `after`.
      accepted: how many of them stood.
      prior: the acceptance rate where nothing was seen.
      weight: how many judged guesses that is worth; with fewer than half it alone counts.
      memory: how much of what was seen is kept from one round to the next.
      margin: how many times plain decoding's gain guesses must promise: the draft has to
        read the source first.
    """

    costs: Any
    choices: tuple[int, ...] = dataclasses.field(default=(0, 3, 7), metadata=_STATIC)
    examined: Any = 0.0
    accepted: Any = 0.0
    prior: float = dataclasses.field(default=0.9, metadata=_STATIC)
    weight: float = dataclasses.field(default=8.0, metadata=_STATIC)
    memory: float = dataclasses.field(default=0.9, metadata=_STATIC)
    margin: float = dataclasses.field(default=1.05, metadata=_STATIC)

    def __post_init__(self) -> None:
        check_widths(self.choices)

    @property
    def widths(self) -> tuple[int, ...]:
        """See `GammaPolicy`."""
        return (0, self.choices[-1]) if 0 in self.choices else self.choices[-1:]

    def after(self, examined: float, accepted: float) -> "AdaptiveGamma":
        """The policy for the next decode: it has seen these guesses of the last one too."""
        examined, accepted = 0.99 * self.examined + examined, 0.99 * self.accepted + accepted
        # More would keep a row from finding out that it is different.
        share = min(1.0, 64.0 / max(examined, 1e-9))
        return dataclasses.replace(self, examined=share * examined, accepted=share * accepted)

    def init(self, rows: int) -> _Seen:
        """See `GammaPolicy`."""
        examined, accepted = (
            jnp.full((rows,), x, jnp.float32) for x in (self.examined, self.accepted)
        )
        return _Seen(examined, accepted, self._choose(examined, accepted))

    def budget(self, state: _Seen) -> Budget:
        """See `GammaPolicy`."""
        return Budget(state.choice)

    def update(self, state: _Seen, examined: Array, accepted: Array) -> _Seen:
        """See `GammaPolicy`."""
        kept = jnp.where(examined > 0, self.memory, 1.0)  # who did not guess learns nothing
        examined, accepted = kept * state.examined + examined, kept * state.accepted + accepted
        return _Seen(examined, accepted, self._choose(examined, accepted))

    def _choose(self, examined: Array, accepted: Array) -> Array:
        """float32[R] each -> int32[R], the gamma of the next round.

        Unrolled over the choices, so that XLA makes one kernel of it.
        """
        little = examined < self.weight / 2
        beta = (accepted + self.prior * self.weight) / (examined + self.weight)
        beta = jnp.where(little, self.prior, beta)  # one refusal is no reason to give up
        costs = jnp.asarray(self.costs, jnp.float32)
        best = least = jnp.full(beta.shape, self.choices[0], jnp.int32)
        gain = first = jnp.zeros_like(beta)
        for place, gamma in enumerate(self.choices):
            expected = sum((beta**k for k in range(1, gamma + 1)), jnp.ones_like(beta))  # Eq. 1
            this = expected / costs[place] * (1.0 if gamma else self.margin)
            first = first if place else this
            # Who knows little tries with few guesses: the first gamma that beats the ones below.
            least = jnp.where((least == self.choices[0]) & (this > first), gamma, least)
            best = jnp.where(this > gain, gamma, best)
            gain = jnp.maximum(this, gain)
        return jnp.where(little, jnp.minimum(best, least), best)
