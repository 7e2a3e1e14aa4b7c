"""What flows through a decode, and the contracts of its parts.

p is the target, q the draft, as in Leviathan et al. (2023).
Shapes: B batch, T source length, L buffer, V vocabulary, k tokens per call,
gamma guesses a round; R rows, m for each source where m drafts guess, else B.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from jax import Array

from specdec_jax.gamma import Budget
from specdec_jax.sampling import Noise, Sampling

Params = Any  # a pytree of arrays
Cache = Any  # a pytree of arrays, whatever a model keeps of a prefix; their first axis is B


class Model(Protocol):
    """A network, as decoding sees it: two pure functions over a cache.

    Hashable and comparable (a frozen dataclass does it): a model is a static
    argument of the compiled decode.
    """

    @property
    def vocab_size(self) -> int:
        """V, the number of logits."""

    def prefill(self, params: Params, inputs: Array, length: int) -> Cache:
        """Reads sources, int32[B, T] (0 is padding), with room for `length` tokens."""

    def extend(
        self, params: Params, cache: Cache, tokens: Array, positions: Array
    ) -> tuple[Array, Cache]:
        """Feeds int32[B, k] tokens at int32[B, k] positions, consecutive in a row.

        Slots of the cache are positions: feeding a position again overwrites it,
        and nothing after the last position fed is ever read. Returns the logits
        of the token that follows each one, float32[B, k, V], and the cache.
        """

    def select(self, cache: Cache, rows: Array) -> Cache:
        """Lets row b go on from the prefix of row `rows[b]`, int32[B], of the same source."""


class Tree(NamedTuple):
    """Tokens that branch: where k of them go in a cache, and what they see of it."""

    start: Array  # int32[B], the first of the k slots they are written to
    positions: Array  # int32[B, L], the position that each slot holds
    visible: Array  # bool[B, k, L], the slots each token sees, its own among them


class TreeModel(Model, Protocol):
    """A `Model` whose cache can hold the prefixes of several hypotheses of a source."""

    def extend_tree(
        self, params: Params, cache: Cache, tokens: Array, positions: Array, tree: Tree
    ) -> tuple[Array, Cache]:
        """Feeds int32[B, k] tokens of any branches; otherwise as `extend`."""

    def move(self, cache: Cache, slots: Array, start: Array) -> Cache:
        """Copies what the slots int32[B, m] hold to m slots from `start`, int32[B], on."""


class Draft(NamedTuple):
    """One round's guesses, and the distributions they were drawn from."""

    tokens: Array  # int32[B, gamma], x_1..x_gamma
    q: Array  # float32[B, gamma, V], what each was sampled from; all 0 where no guess was made
    valid: Array  # bool[B, gamma]; a guess that was not made is never accepted


class Drafter(Protocol):
    """Makes guesses. Hashable and comparable, like a `Model`."""

    @property
    def vocab_size(self) -> int:
        """The vocabulary of its guesses."""

    @property
    def may_pass(self) -> bool:
        """Whether it may make no guess where it is asked for some."""

    def init(
        self, params: Params, inputs: Array, length: int, *, gamma: int, target_cache: Cache
    ) -> Any:
        """Reads sources, int32[B, T], with room for `length` tokens -> state.

        Args:
          params: the drafter's parameters.
          inputs: int32[B, T].
          length: slots of the buffer.
          gamma: the most guesses of a round.
          target_cache: of the target's prefill; for a drafter that shares its work.
        """

    def propose(
        self,
        params: Params,
        state: Any,
        tokens: Array,
        length: Array,
        noise: Noise,
        budget: Budget,
        *,
        gamma: int,
        vocab_size: int,
        sampling: Sampling,
    ) -> tuple[Draft, Any]:
        """Guesses up to gamma tokens after each row's prefix.

        The prefix may have grown by any number of tokens since the round before, over
        guesses of the row's own or of another's.

        Args:
          params: the drafter's parameters.
          state: of `init` or of the round before; its arrays' first axis is B.
          tokens: int32[B, L]; `tokens[b, :length[b]]` is committed, the rest free.
          length: int32[B].
          noise: of each row's next positions, [B, gamma + 1]; the first is `length`.
          budget: how many guesses each row wants; fewer must cost less.
          gamma: the most guesses.
          vocab_size: V, the target's: guesses and q stay within it.
          sampling: the standardized sampling that the target uses.
        """


class Verdict(NamedTuple):
    """What a rule made of one round's guesses."""

    num_accepted: Array  # int32[R], n: how many leading guesses stand
    next_token: Array  # int32[R], the correction (n < gamma) or the bonus token
    chosen: Array | None = None  # int32[R], the row whose guesses stand; None: each its own


class VerifyRule(Protocol):
    """Decides what stands. Hashable and comparable, like a `Model`."""

    @property
    def num_drafts(self) -> int:
        """m: how many rows, one behind the other, guess for the same source."""

    def draw_noise(self, keys: Array, length: int) -> Noise:
        """The randomness of positions 0 to `length` - 1, from key[R]."""

    def __call__(
        self, p: Array, draft: Draft, noise: Any, *, logits: Array, sampling: Sampling
    ) -> Verdict:
        """Judges a round of gamma guesses; of none in plain decoding. R = B m.

        Args:
          p: float32[R, gamma + 1, V], the target's distributions, p_1..p_{gamma+1}.
          draft: the guesses.
          noise: of their positions and the one after, [R, gamma + 1], as `draw_noise` drew.
          logits: float32[R, gamma + 1, V], what p was made of.
          sampling: how.
        """


class StepInfo(NamedTuple):
    """What happened in one round; `examined` and `accepted` count only what was emitted."""

    drafted: Array  # int32[B, gamma], 1 where a guess was made, also behind the row's end
    examined: Array  # int32[B, gamma], 1 where all guesses before it stood
    accepted: Array  # int32[B, gamma], 1 where it was accepted and emitted
    target_calls: Array  # int32[B], 1 where the row got tokens


class DecodeState(NamedTuple):
    """The carry of the decoding loop.

    Where several rows guess for one source, B counts them all, and they hold the same.
    """

    tokens: Array  # int32[B, L], tokens[:, 0] is the start token; 0 past the end
    log_probs: Array  # float32[B, L], log p(token | prefix) of the unadjusted target
    length: Array  # int32[B], committed tokens, the start token among them: the only cursor
    done: Array  # bool[B]
    finite: Array  # bool[B], False once the target's logits held a NaN
    noise: Noise  # [B, L], of every position
    target_cache: Cache
    draft_state: Any
    gamma_state: Any
    info: StepInfo  # sums over the rounds so far
    calls: Array  # int32[], target calls of the whole batch


class DecodeResult(NamedTuple):
    """Tokens and what they took. N is `max_new_tokens`.

    From a plain decode the counters of guesses have gamma = 0.
    """

    tokens: Array  # int32[B, N], 0 after the end; holds the EOS where one was emitted
    lengths: Array  # int32[B], emitted tokens, the EOS among them
    log_probs: Array  # float32[B, N], log p of each token under the unadjusted target
    finite: Array  # bool[B], False where the target gave a NaN: the row ends before it
    rounds: Array  # int32[B], target calls that gave the row tokens
    target_calls: Array  # int32[], target calls of the batch: the largest of `rounds`
    drafted: Array  # int32[B, gamma], guesses made, by position in the round
    examined: Array  # int32[B, gamma], guesses the target came to judge
    accepted: Array  # int32[B, gamma], guesses that stand in `tokens`

    @property
    def scores(self) -> Array:
        """float32[B], log p of each row's tokens under the unadjusted target."""
        return self.log_probs.sum(axis=-1)

    @property
    def acceptance_rate(self) -> Array:
        """float32[], alpha: accepted / examined over the batch; NaN without guesses."""
        return self.accepted.sum() / self.examined.sum()

    @property
    def acceptance_by_position(self) -> Array:
        """float32[gamma], the acceptance rate of the guesses that were reached."""
        return self.accepted.sum(axis=0) / self.examined.sum(axis=0)

    @property
    def tokens_per_call(self) -> Array:
        """float32[], emitted tokens per target call and row (Eq. 1's expectation)."""
        return self.lengths.sum() / self.rounds.sum()


class Partitioner(Protocol):
    """Where decodes run. Takes what `decoding`'s functions take, and gives what they give."""

    @property
    def groups(self) -> int:
        """How many devices, or groups of them, share the rows of a batch."""

    @property
    def speculative_decode(self) -> Callable[..., DecodeResult]:
        """See `decoding.speculative_decode`."""

    @property
    def autoregressive_decode(self) -> Callable[..., DecodeResult]:
        """See `decoding.autoregressive_decode`."""
