"""Speculative decoding (Algorithm 1), and the plain decoding it is measured against.

`speculative_step` is Algorithm 1; `speculative_decode` runs it to the end of every
row in one compiled `lax.while_loop`, drafting included. `autoregressive_decode` is
the baseline: one token a call, as T5X decodes.

Shapes: B batch, T source length, V vocabulary, N new tokens at most,
L = N + gamma + 1 slots of buffer: the start token, N tokens, and room for the
guesses of a last round.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from specdec_jax.arguments import (
    check_gamma,
    check_plain,
    check_single,
    check_speculative,
    checked,
)
from specdec_jax.gamma import GammaPolicy
from specdec_jax.sampling import GREEDY, Noise, Sampling, distribution, window
from specdec_jax.types import (
    Cache,
    DecodeResult,
    DecodeState,
    Draft,
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
    gamma: GammaPolicy,
    rule: VerifyRule,
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
      gamma: how many guesses a round.
      rule: what to accept.
      max_new_tokens: N.
    """
    most = gamma.widths[-1]
    state = _start(
        target, target_params, inputs, keys, gamma=most, rule=rule, max_new_tokens=max_new_tokens
    )
    slots = state.tokens.shape[1]
    draft_state = drafter.init(
        draft_params, inputs, slots, gamma=most, target_cache=state.target_cache
    )
    state = state._replace(draft_state=draft_state, gamma_state=gamma.init(inputs.shape[0]))
    if rule.num_drafts == 1:
        return state

    # Each row becomes m, of which each guesses by noise of its own.
    m = rule.num_drafts
    of_draft = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
    keys = jax.vmap(of_draft, in_axes=(0, None))(keys, jnp.arange(m)).reshape(-1)
    rows = {
        name: part if name in ("calls", "noise") else _repeat(part, m)
        for name, part in state._asdict().items()
    }
    return DecodeState(**rows)._replace(noise=rule.draw_noise(keys, slots))


def _repeat(tree: Any, m: int) -> Any:
    return jax.tree.map(lambda leaf: jnp.repeat(leaf, m, axis=0), tree)


def speculative_step(
    target: Model,
    target_params: Params,
    drafter: Drafter,
    draft_params: Params,
    state: DecodeState,
    *,
    gamma: GammaPolicy,
    sampling: Sampling,
    rule: VerifyRule,
    max_new_tokens: int,
    eos_id: int,
) -> tuple[DecodeState, StepInfo]:
    """Algorithm 1 of Leviathan et al. (2023), for every row of the batch.

    Returns the state with between 1 and gamma + 1 more tokens in each row that was
    not done, and what happened in this round alone.
    """
    most = gamma.widths[-1]
    noise = state.noise.at(state.length, most + 1)

    # Sample up to gamma guesses x_1..x_gamma from the draft, autoregressively.
    budget = gamma.budget(state.gamma_state)
    room = jnp.where(state.done, 0, max_new_tokens - state.length)  # for guesses that can stand
    draft, draft_state = drafter.propose(
        draft_params,
        state.draft_state,
        state.tokens,
        state.length,
        noise,
        budget._replace(guesses=jnp.minimum(budget.guesses, room)),
        gamma=most,
        vocab_size=target.vocab_size,
        sampling=sampling,
    )

    # Verify them, in the smallest of the widths that were compiled which holds them all.
    def verify(width: int) -> Callable[[Cache], _Verified]:
        return lambda cache: _verify(
            target, target_params, cache, state, draft, noise, width, sampling, rule
        )

    widths = [width for width in gamma.widths if width]  # without guesses `plain_step` is faster
    widths = [0, *widths] if drafter.may_pass else widths
    made = jnp.max(jnp.sum(jnp.cumprod(draft.valid, axis=1), axis=1))
    smallest = jnp.sum(made > jnp.asarray(widths))
    verified = jax.lax.switch(smallest, [verify(g) for g in widths], state.target_cache)

    # Return the accepted guesses and the token that follows them.
    state = state._replace(target_cache=verified.cache, draft_state=draft_state)
    state, kept = _commit(state, verified, max_new_tokens, eos_id)
    state, info = _count(state, kept, verified)
    learnt = gamma.update(state.gamma_state, info.examined.sum(axis=1), info.accepted.sum(axis=1))
    return state._replace(gamma_state=learnt), info


def plain_step(
    target: Model,
    target_params: Params,
    state: DecodeState,
    *,
    sampling: Sampling,
    rule: VerifyRule,
    max_new_tokens: int,
    eos_id: int,
) -> tuple[DecodeState, StepInfo]:
    """A round without guesses: one more token from the target alone."""
    rows = state.length.shape[0]
    no_draft = Draft(
        jnp.zeros((rows, 0), jnp.int32),
        jnp.zeros((rows, 0, target.vocab_size), jnp.float32),
        jnp.zeros((rows, 0), bool),
    )
    noise = state.noise.at(state.length, 1)
    verified = _verify(
        target, target_params, state.target_cache, state, no_draft, noise, 0, sampling, rule
    )
    state = state._replace(target_cache=verified.cache)
    state, kept = _commit(state, verified, max_new_tokens, eos_id)
    return _count(state, kept, verified)


class _Verified(NamedTuple):
    """What a round's verification gave. R rows."""

    cache: Cache  # the target's
    n: Array  # int32[R], accepted guesses
    emitted: Array  # int32[R, gamma + 1], the accepted guesses, the token after them, anything
    log_probs: Array  # float32[R, gamma + 1], the target's of each; NaN if its logits held one
    valid: Array  # bool[R, gamma], the guesses that were judged


def _verify(
    target: Model,
    target_params: Params,
    cache: Cache,
    state: DecodeState,
    draft: Draft,
    noise: Noise,
    width: int,
    sampling: Sampling,
    rule: VerifyRule,
) -> _Verified:
    """The target's part of Algorithm 1, on the first `width` of gamma guesses.

    The guesses behind them must not have been made.
    """
    short = draft.tokens.shape[1] - width
    draft = jax.tree.map(lambda x: x[:, :width], draft)
    noise = jax.tree.map(lambda x: x[:, : width + 1], noise)

    # Run the target on the prefix and all its extensions, in parallel.
    last = window(state.tokens, state.length - 1, 1)
    fed = jnp.concatenate([last, draft.tokens], axis=1)
    positions = state.length[:, None] - 1 + jnp.arange(width + 1)
    logits, cache = target.extend(target_params, cache, fed, positions)
    p = distribution(logits, sampling)

    # Determine the number of accepted guesses n, and the token that follows them.
    n, next_token, chosen = rule(p, draft, noise, logits=logits, sampling=sampling)
    if chosen is not None:
        cache = target.select(cache, chosen)
        draft, logits = jax.tree.map(lambda x: x[chosen], (draft, logits))

    emitted = jnp.where(
        jnp.arange(width + 1) == n[:, None],
        next_token[:, None],
        jnp.pad(draft.tokens, ((0, 0), (0, 1))),
    )
    log_probs = jnp.take_along_axis(logits, emitted[..., None], axis=-1)[..., 0]
    log_probs -= jax.nn.logsumexp(logits, axis=-1)
    emitted, log_probs, valid = (
        jnp.pad(x, ((0, 0), (0, short))) for x in (emitted, log_probs, draft.valid)
    )
    return _Verified(cache, n, emitted, log_probs, valid)


def _commit(
    state: DecodeState, verified: _Verified, max_new_tokens: int, eos_id: int
) -> tuple[DecodeState, Array]:
    """Writes the accepted guesses and the token after them to each row that is not done.

    A row ends at its first EOS, at its last allowed token, and before a token
    whose logits held a NaN.

    Returns:
      The state, and int32[R], the number of tokens really written.
    """
    emitted, log_probs = verified.emitted, verified.log_probs
    at = jnp.arange(emitted.shape[1])

    count = jnp.minimum(verified.n + 1, max_new_tokens + 1 - state.length)
    is_eos = (emitted == eos_id) & (at < count[:, None])
    ended = jnp.any(is_eos, axis=1)
    count = jnp.where(ended, jnp.argmax(is_eos, axis=1) + 1, count)
    broken = ~jnp.isfinite(log_probs) & (at < count[:, None])
    finite = ~jnp.any(broken, axis=1)
    count = jnp.where(finite, count, jnp.argmax(broken, axis=1))
    count = jnp.where(state.done, 0, count)

    def write(row: Array, new: Array, start: Array, count: Array) -> Array:
        old = jax.lax.dynamic_slice(row, (start,), new.shape)
        return jax.lax.dynamic_update_slice(row, jnp.where(at < count, new, old), (start,))

    length = state.length + count
    return state._replace(
        tokens=jax.vmap(write)(state.tokens, emitted, state.length, count),
        log_probs=jax.vmap(write)(state.log_probs, log_probs, state.length, count),
        length=length,
        done=state.done | (ended & finite) | ~finite | (length == max_new_tokens + 1),
        finite=state.finite & (finite | state.done),
    ), count


def _count(state: DecodeState, kept: Array, verified: _Verified) -> tuple[DecodeState, StepInfo]:
    """Adds a round to the counters; what was cut off behind an end counts nowhere.

    Args:
      state: after `_commit`.
      kept: int32[R], tokens written in this round; 0 in rows that were done.
      verified: the round.
    """
    n, gamma = verified.n, state.info.examined.shape[1]
    valid = jnp.pad(verified.valid, ((0, 0), (0, gamma - verified.valid.shape[1])))
    at = jnp.arange(gamma)
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
    rule: VerifyRule,
    max_new_tokens: int,
) -> DecodeState:
    """The state before the first round, the source read by the target alone."""
    batch, slots = inputs.shape[0], max_new_tokens + gamma + 1
    guesses = jnp.zeros((batch, gamma), jnp.int32)
    return DecodeState(
        tokens=jnp.full((batch, slots), PAD_ID, jnp.int32),  # the first starts the row
        log_probs=jnp.zeros((batch, slots), jnp.float32),
        length=jnp.ones((batch,), jnp.int32),
        done=jnp.zeros((batch,), bool),
        finite=jnp.ones((batch,), bool),
        noise=rule.draw_noise(keys, slots),
        target_cache=target.prefill(target_params, inputs, slots),
        draft_state=(),
        gamma_state=(),
        info=StepInfo(guesses, guesses, guesses, jnp.zeros((batch,), jnp.int32)),
        calls=jnp.zeros((), jnp.int32),
    )


def decode_result(state: DecodeState, max_new_tokens: int, num_drafts: int = 1) -> DecodeResult:
    """What a state holds, as a result; of rows that guess for one source, the first."""
    return DecodeResult(
        tokens=state.tokens[::num_drafts, 1 : max_new_tokens + 1],
        lengths=state.length[::num_drafts] - 1,
        log_probs=state.log_probs[::num_drafts, 1 : max_new_tokens + 1],
        finite=state.finite[::num_drafts],
        rounds=state.info.target_calls[::num_drafts],
        target_calls=state.calls,
        drafted=state.info.drafted[::num_drafts],
        examined=state.info.examined[::num_drafts],
        accepted=state.info.accepted[::num_drafts],
    )


def _until_done(step: Callable[[DecodeState], DecodeState], state: DecodeState) -> DecodeState:
    return jax.lax.while_loop(lambda state: ~jnp.all(state.done), step, state)


@functools.partial(
    jax.jit,
    static_argnames=(
        "target", "drafter", "max_new_tokens", "sampling", "rule", "eos_id",
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
    gamma: GammaPolicy,
    max_new_tokens: int,
    sampling: Sampling,
    rule: VerifyRule,
    eos_id: int,
) -> DecodeResult:
    rest: dict[str, Any] = {
        "sampling": sampling, "rule": rule, "max_new_tokens": max_new_tokens, "eos_id": eos_id,
    }  # fmt: skip

    def unfinished(state: DecodeState) -> Array:
        return ~jnp.all(state.done)

    def wants_guesses(state: DecodeState) -> Array:
        return jnp.any(~state.done & (gamma.budget(state.gamma_state).guesses > 0))

    def guess(state: DecodeState) -> DecodeState:
        return speculative_step(
            target, target_params, drafter, draft_params, state, gamma=gamma, **rest
        )[0]

    def pass_over(state: DecodeState) -> DecodeState:
        return plain_step(target, target_params, state, **rest)[0]

    state = speculative_init(
        target,
        target_params,
        drafter,
        draft_params,
        inputs,
        keys,
        gamma=gamma,
        rule=rule,
        max_new_tokens=max_new_tokens,
    )
    if 0 not in gamma.widths:
        state = jax.lax.while_loop(unfinished, guess, state)
    else:
        # Rounds with guesses while a row wants any; then plain ones to the end, in a loop of
        # their own, which costs what plain decoding does.
        state = jax.lax.while_loop(wants_guesses, guess, state)
        state = jax.lax.while_loop(unfinished, pass_over, state)
    return decode_result(state, max_new_tokens, rule.num_drafts)


@functools.partial(
    jax.jit, static_argnames=("target", "max_new_tokens", "sampling", "rule", "eos_id")
)
def _autoregressive_decode(
    target: Model,
    target_params: Params,
    inputs: Array,
    keys: Array,
    *,
    max_new_tokens: int,
    sampling: Sampling,
    rule: VerifyRule,
    eos_id: int,
) -> DecodeResult:
    def step(state: DecodeState) -> DecodeState:
        return plain_step(
            target,
            target_params,
            state,
            sampling=sampling,
            rule=rule,
            max_new_tokens=max_new_tokens,
            eos_id=eos_id,
        )[0]

    state = _start(
        target, target_params, inputs, keys, gamma=0, rule=rule, max_new_tokens=max_new_tokens
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
    gamma: int | GammaPolicy = 7,
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
        which CPUs like best. Or a policy of gamma.py that varies it.
      max_new_tokens: N, the most tokens a row gets, its EOS among them.
      sampling: temperature, top-k, top-p, for target and draft alike.
      rule: what to accept, of verification.py; the default is exact, and so are all
        but `LenientRule`.
      eos_id: the token that ends a row; -1 for none.

    Returns:
      A `DecodeResult`.

    Raises:
      ValueError: for arguments out of range or models that don't fit together,
        before anything is compiled.
      FloatingPointError: when the target's logits held a NaN.
    """
    gamma = check_gamma(gamma)
    inputs, keys = check_speculative(target, drafter, inputs, key, max_new_tokens, sampling, eos_id)
    rest: dict[str, Any] = {
        "max_new_tokens": max_new_tokens, "sampling": sampling, "rule": rule, "eos_id": eos_id,
    }  # fmt: skip
    if rule.num_drafts == 1 and _never_guesses(gamma, len(inputs)):
        result = _autoregressive_decode(target, target_params, inputs, keys, **rest)
        none = _no_guesses(len(inputs), gamma.widths[-1])
        return checked(result._replace(drafted=none, examined=none, accepted=none))
    return checked(
        _speculative_decode(
            target, target_params, drafter, draft_params, inputs, keys, gamma=gamma, **rest
        )
    )


def _never_guesses(gamma: GammaPolicy, rows: int) -> bool:
    """Whether no row wants a guess now, and so none ever: who does not guess learns nothing.

    Plain decoding then runs as its own program, free of what guessing would have needed.
    """
    if 0 not in gamma.widths or any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(gamma)):
        return False
    with jax.ensure_compile_time_eval():
        return not _wants_guesses(gamma, rows)


@functools.cache
def _no_guesses(rows: int, gamma: int) -> Array:
    with jax.ensure_compile_time_eval():
        return jnp.zeros((rows, gamma), jnp.int32)


@functools.partial(jax.jit, static_argnames="rows")
def _wants_guesses(gamma: GammaPolicy, rows: int) -> Array:
    return jnp.any(gamma.budget(gamma.init(rows)).guesses > 0)


def autoregressive_decode(
    target: Model,
    target_params: Params,
    inputs: Array,
    key: Array | None = None,
    *,
    max_new_tokens: int = 64,
    sampling: Sampling = GREEDY,
    rule: VerifyRule = ExactRule(),
    eos_id: int = EOS_ID,
) -> DecodeResult:
    """Decodes with the target alone, one token a call: the baseline.

    Arguments, result and errors are those of `speculative_decode`; the counters
    of guesses have gamma = 0. The rule decides how a token is drawn: `GumbelRule` draws
    those that it lets stand in a speculative decode.
    """
    check_single(rule)
    inputs, keys = check_plain(target, inputs, key, max_new_tokens, sampling, eos_id)
    return checked(
        _autoregressive_decode(
            target,
            target_params,
            inputs,
            keys,
            max_new_tokens=max_new_tokens,
            sampling=sampling,
            rule=rule,
            eos_id=eos_id,
        )
    )
