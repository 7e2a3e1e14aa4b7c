"""Speculative decoding (Algorithm 1), and the plain decoding it is measured against.

`speculative_step` is Algorithm 1; `speculative_decode` runs it to the end of every
row in one compiled `lax.while_loop`, drafting included. `autoregressive_decode` is
the baseline: one token a call, as T5X decodes.

Shapes: B batch, T source length, V vocabulary, N new tokens at most,
L = N + gamma + 1 slots of buffer: the start token, N tokens, and room for the
guesses of a last round.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from specdec_jax.arguments import check_plain, check_speculative, checked
from specdec_jax.sampling import GREEDY, Sampling, distribution, draw_noise, sample
from specdec_jax.types import (
    DecodeResult,
    DecodeState,
    Drafter,
    Model,
    Params,
    StepInfo,
    VerifyRule,
)
from specdec_jax.verification import ExactRule
from specdec_jax.vocabulary import EOS_ID, PAD_ID


def speculative_init(
    target: Model,
    target_params: Params,
    drafter: Drafter,
    draft_params: Params,
    inputs: Array,
    keys: Array,
    *,
    gamma: int,
    max_new_tokens: int,
) -> DecodeState:
    """The state before the first round: target and draft have read the sources.

    Args:
      target: p; this and the others as `speculative_decode` takes them.
      target_params: its parameters.
      drafter: q.
      draft_params: its parameters.
      inputs: int32[B, T], sources.
      keys: key[B].
      gamma: guesses a round.
      max_new_tokens: N.
    """
    return _start(
        target,
        target_params,
        inputs,
        keys,
        gamma=gamma,
        max_new_tokens=max_new_tokens,
        draft_state=drafter.init(draft_params, inputs, max_new_tokens + gamma + 1),
    )


def speculative_step(
    target: Model,
    target_params: Params,
    drafter: Drafter,
    draft_params: Params,
    state: DecodeState,
    *,
    gamma: int,
    sampling: Sampling,
    rule: VerifyRule,
    max_new_tokens: int,
    eos_id: int,
) -> tuple[DecodeState, StepInfo]:
    """Algorithm 1 of Leviathan et al. (2023), for every row of the batch.

    Returns the state with between 1 and gamma + 1 more tokens in each row that was
    not done, and what happened in this round alone.
    """
    noise = state.noise.at(state.length, gamma + 1)

    # Sample gamma guesses x_1..x_gamma from the draft, autoregressively.
    draft, draft_state = drafter.propose(
        draft_params,
        state.draft_state,
        state.tokens,
        state.length,
        noise,
        gamma=gamma,
        vocab_size=target.vocab_size,
        sampling=sampling,
    )

    # Run the target on the prefix and all its extensions, in parallel.
    last = jnp.take_along_axis(state.tokens, state.length[:, None] - 1, axis=1)
    fed = jnp.concatenate([last, draft.tokens], axis=1)
    positions = state.length[:, None] - 1 + jnp.arange(gamma + 1)
    logits, target_cache = target.extend(target_params, state.target_cache, fed, positions)
    p = distribution(logits, sampling)

    # Determine the number of accepted guesses n, and the token that follows them.
    n, next_token = rule(p, draft, noise)

    # Return the accepted guesses and that token.
    emitted = jnp.where(
        jnp.arange(gamma + 1) == n[:, None],
        next_token[:, None],
        jnp.pad(draft.tokens, ((0, 0), (0, 1))),
    )
    state = state._replace(target_cache=target_cache, draft_state=draft_state)
    state, kept = _commit(state, emitted, n + 1, logits, max_new_tokens, eos_id)
    return _count(state, kept, n, draft.valid)


def _commit(
    state: DecodeState,
    emitted: Array,
    count: Array,
    logits: Array,
    max_new_tokens: int,
    eos_id: int,
) -> tuple[DecodeState, Array]:
    """Writes the first `count` of `emitted` to each row that is not done.

    A row ends at its first EOS, at its last allowed token, and before a token
    whose logits held a NaN.

    Args:
      emitted: int32[B, k], tokens after the prefix.
      count: int32[B], how many of them the rule gave.
      logits: float32[B, k, V], the target's, for each of them.

    Returns:
      The state, and int32[B], the number of tokens really written.
    """
    at = jnp.arange(emitted.shape[1])
    chosen = jnp.take_along_axis(logits, emitted[..., None], axis=-1)[..., 0]
    normalizer = jax.nn.logsumexp(logits, axis=-1)

    count = jnp.minimum(count, max_new_tokens + 1 - state.length)
    is_eos = (emitted == eos_id) & (at < count[:, None])
    ended = jnp.any(is_eos, axis=1)
    count = jnp.where(ended, jnp.argmax(is_eos, axis=1) + 1, count)
    broken = ~jnp.isfinite(normalizer) & (at < count[:, None])
    finite = ~jnp.any(broken, axis=1)
    count = jnp.where(finite, count, jnp.argmax(broken, axis=1))
    count = jnp.where(state.done, 0, count)

    def write(row: Array, new: Array, start: Array, count: Array) -> Array:
        old = jax.lax.dynamic_slice(row, (start,), new.shape)
        return jax.lax.dynamic_update_slice(row, jnp.where(at < count, new, old), (start,))

    length = state.length + count
    return state._replace(
        tokens=jax.vmap(write)(state.tokens, emitted, state.length, count),
        log_probs=jax.vmap(write)(state.log_probs, chosen - normalizer, state.length, count),
        length=length,
        done=state.done | (ended & finite) | ~finite | (length == max_new_tokens + 1),
        finite=state.finite & (finite | state.done),
    ), count


def _count(state: DecodeState, kept: Array, n: Array, valid: Array) -> tuple[DecodeState, StepInfo]:
    """Adds a round to the counters; what was cut off behind an end counts nowhere.

    Args:
      kept: int32[B], tokens written in this round; 0 in rows that were done.
      n: int32[B], guesses that the rule accepted.
      valid: bool[B, gamma], guesses that were made.
    """
    at = jnp.arange(valid.shape[1])
    alive = kept > 0
    examined = valid & (at <= n[:, None]) & (at < kept[:, None])
    info = StepInfo(
        drafted=(valid & alive[:, None]).astype(jnp.int32),
        examined=examined.astype(jnp.int32),
        accepted=(examined & (at < n[:, None])).astype(jnp.int32),
        target_calls=alive.astype(jnp.int32),
    )
    total = jax.tree.map(jnp.add, state.info, info)
    return state._replace(info=total, calls=state.calls + 1), info


def _start(
    target: Model,
    target_params: Params,
    inputs: Array,
    keys: Array,
    *,
    gamma: int,
    max_new_tokens: int,
    draft_state: Any,
) -> DecodeState:
    """The state before the first round: the start token, and the source read."""
    batch, slots = inputs.shape[0], max_new_tokens + gamma + 1
    guesses = jnp.zeros((batch, gamma), jnp.int32)
    return DecodeState(
        tokens=jnp.full((batch, slots), PAD_ID, jnp.int32),  # the first starts the row
        log_probs=jnp.zeros((batch, slots), jnp.float32),
        length=jnp.ones((batch,), jnp.int32),
        done=jnp.zeros((batch,), bool),
        finite=jnp.ones((batch,), bool),
        noise=draw_noise(keys, slots),
        target_cache=target.prefill(target_params, inputs, slots),
        draft_state=draft_state,
        info=StepInfo(guesses, guesses, guesses, jnp.zeros((batch,), jnp.int32)),
        calls=jnp.zeros((), jnp.int32),
    )


def decode_result(state: DecodeState, max_new_tokens: int) -> DecodeResult:
    """What a state holds, as a result."""
    return DecodeResult(
        tokens=state.tokens[:, 1 : max_new_tokens + 1],
        lengths=state.length - 1,
        log_probs=state.log_probs[:, 1 : max_new_tokens + 1],
        finite=state.finite,
        rounds=state.info.target_calls,
        target_calls=state.calls,
        drafted=state.info.drafted,
        examined=state.info.examined,
        accepted=state.info.accepted,
    )


def _until_done(step: Any, state: DecodeState) -> DecodeState:
    return jax.lax.while_loop(lambda state: ~jnp.all(state.done), step, state)


@functools.partial(
    jax.jit,
    static_argnames=(
        "target", "drafter", "gamma", "max_new_tokens", "sampling", "rule", "eos_id",
    ),
)  # fmt: skip
def _speculative_decode(
    target: Model,
    target_params: Params,
    drafter: Drafter,
    draft_params: Params,
    inputs: Array,
    keys: Array,
    *,
    gamma: int,
    max_new_tokens: int,
    sampling: Sampling,
    rule: VerifyRule,
    eos_id: int,
) -> DecodeResult:
    def step(state: DecodeState) -> DecodeState:
        return speculative_step(
            target,
            target_params,
            drafter,
            draft_params,
            state,
            gamma=gamma,
            sampling=sampling,
            rule=rule,
            max_new_tokens=max_new_tokens,
            eos_id=eos_id,
        )[0]

    state = speculative_init(
        target,
        target_params,
        drafter,
        draft_params,
        inputs,
        keys,
        gamma=gamma,
        max_new_tokens=max_new_tokens,
    )
    return decode_result(_until_done(step, state), max_new_tokens)


@functools.partial(jax.jit, static_argnames=("target", "max_new_tokens", "sampling", "eos_id"))
def _autoregressive_decode(
    target: Model,
    target_params: Params,
    inputs: Array,
    keys: Array,
    *,
    max_new_tokens: int,
    sampling: Sampling,
    eos_id: int,
) -> DecodeResult:
    def step(state: DecodeState) -> DecodeState:
        last = jnp.take_along_axis(state.tokens, state.length[:, None] - 1, axis=1)
        logits, cache = target.extend(
            target_params, state.target_cache, last, state.length[:, None] - 1
        )
        token = sample(distribution(logits, sampling), state.noise.at(state.length, 1).token)
        one = jnp.ones_like(state.length)
        state, kept = _commit(
            state._replace(target_cache=cache), token, one, logits, max_new_tokens, eos_id
        )
        return _count(state, kept, one - 1, jnp.zeros_like(token[:, :0], dtype=bool))[0]

    state = _start(
        target,
        target_params,
        inputs,
        keys,
        gamma=0,
        max_new_tokens=max_new_tokens,
        draft_state=(),
    )
    return decode_result(_until_done(step, state), max_new_tokens)


def speculative_decode(
    target: Model,
    target_params: Params,
    drafter: Drafter,
    draft_params: Params,
    inputs: Array,
    key: Array | None = None,
    *,
    gamma: int = 7,
    max_new_tokens: int = 64,
    sampling: Sampling = GREEDY,
    rule: VerifyRule = ExactRule(),
    eos_id: int = EOS_ID,
) -> DecodeResult:
    """Decodes with a draft; the output is distributed as the target's alone.

    At temperature 0 it is `autoregressive_decode`'s, token for token (but where two
    logits are equal up to the rounding of a matrix product: one of several tokens is
    rounded differently from one of a single token, in bfloat16 by some ulps). A row's
    tokens depend on its source and its key, not on the rows beside it. The whole
    decode is one compiled program, compiled once per shape and setting.

    Args:
      target: p, a `Model`.
      target_params: its parameters, as `target.prepare` lays them out.
      drafter: q, a `Drafter`; `ModelDrafter(model)` for a smaller model.
      draft_params: its parameters.
      inputs: int32[B, T], sources, ending in EOS and padded with 0.
      key: one key, of which each row gets its own by its index, or key[B]; only
        needed when sampling.
      gamma: guesses a round; 3 or 7 make the verified block a multiple of 4,
        which CPUs like best.
      max_new_tokens: N, the most tokens a row gets, its EOS among them.
      sampling: temperature, top-k, top-p, for target and draft alike.
      rule: what to accept; the default is exact.
      eos_id: the token that ends a row; -1 for none.

    Returns:
      A `DecodeResult`.

    Raises:
      ValueError: for arguments out of range or models that don't fit together,
        before anything is compiled.
      FloatingPointError: when the target's logits held a NaN.
    """
    inputs, keys = check_speculative(
        target, drafter, inputs, key, gamma, max_new_tokens, sampling, eos_id
    )
    return checked(
        _speculative_decode(
            target,
            target_params,
            drafter,
            draft_params,
            inputs,
            keys,
            gamma=gamma,
            max_new_tokens=max_new_tokens,
            sampling=sampling,
            rule=rule,
            eos_id=eos_id,
        )
    )


def autoregressive_decode(
    target: Model,
    target_params: Params,
    inputs: Array,
    key: Array | None = None,
    *,
    max_new_tokens: int = 64,
    sampling: Sampling = GREEDY,
    eos_id: int = EOS_ID,
) -> DecodeResult:
    """Decodes with the target alone, one token a call: the baseline.

    Arguments, result and errors are those of `speculative_decode`; the counters
    of guesses have gamma = 0.
    """
    inputs, keys = check_plain(target, inputs, key, max_new_tokens, sampling, eos_id)
    return checked(
        _autoregressive_decode(
            target,
            target_params,
            inputs,
            keys,
            max_new_tokens=max_new_tokens,
            sampling=sampling,
            eos_id=eos_id,
        )
    )
