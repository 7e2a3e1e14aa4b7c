"""Beam search as T5X does it, and the speculative beam search of appendix A.4.

`beam_decode` calls the target once a step. `speculative_beam_decode` lets the draft search
ahead for gamma steps with a beam of u hypotheses, has the target read all of them in one
call, and then takes the target's own steps for as long as the hypotheses that they need
are among those that were read: top_w(p) within top_u(q). The hypotheses and their scores
are those of `beam_decode`; only the number of calls differs.

A source has one row of a cache, in which the prefixes of all its hypotheses lie as a tree:
a token sees the slots of its ancestors. Each step adds one slot for each of the w live
hypotheses, so nothing is copied between them.

Shapes: B batch, w beams, u beams of the draft, V vocabulary, N new tokens at most,
M = w + gamma u nodes that a round reads, S slots.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from specdec_jax.arguments import check_beams, check_plain, check_vocabularies
from specdec_jax.drafters.model import fit_vocabulary
from specdec_jax.sampling import GREEDY
from specdec_jax.types import Cache, Params, Tree, TreeModel
from specdec_jax.vocabulary import EOS_ID, PAD_ID

# T5X's minus infinity: the score of a hypothesis that there is not.
NOTHING = -1.0e7


class BeamResult(NamedTuple):
    """The best hypotheses of each source, the best first."""

    tokens: Array  # int32[B, w, N], 0 after the end; holds the EOS where one was emitted
    scores: Array
    """float32[B, w], log p over the brevity penalty; of sources of which no hypothesis
    ended, log p; `NOTHING` where there are fewer than w hypotheses."""
    lengths: Array  # int32[B, w], tokens, the EOS among them
    steps: Array  # int32[B], steps of the search
    rounds: Array  # int32[B], target calls that took the source further
    target_calls: Array  # int32[], of the whole batch


class Search(NamedTuple):
    """The state of beam search; the hypotheses of each kind by falling score."""

    step: Array  # int32[B], tokens of every live hypothesis
    live: Array  # int32[B, w, N]
    live_log_p: Array  # float32[B, w]
    finished: Array  # int32[B, w, N]
    scores: Array  # float32[B, w], of the finished
    is_finished: Array  # bool[B, w], False where there is none yet
    done: Array  # bool[B]


@dataclasses.dataclass(frozen=True)
class _Rules:
    """What a search is to do."""

    num_beams: int
    alpha: float
    max_new_tokens: int
    eos_id: int


def _penalty(alpha: float, length: Array | int) -> Array:
    """Divides log p, so that longer hypotheses are not at a disadvantage (Wu et al., 2016)."""
    return ((5.0 + length) / 6.0) ** alpha


def _start(batch: int, rules: _Rules) -> Search:
    w, length = rules.num_beams, rules.max_new_tokens
    tokens = jnp.full((batch, w, length), PAD_ID, jnp.int32)
    none = jnp.full((batch, w), NOTHING, jnp.float32)
    return Search(
        step=jnp.zeros((batch,), jnp.int32),
        live=tokens,
        live_log_p=none.at[:, 0].set(0.0),  # all begin alike: only one of them counts
        finished=tokens,
        scores=none,
        is_finished=jnp.zeros((batch, w), bool),
        done=jnp.zeros((batch,), bool),
    )


def _rows(x: Array, places: Array) -> Array:
    """Of each source, [B, n, ...], what is at its places, int32[B, m] -> [B, m, ...]."""
    return jax.vmap(lambda row, i: row[i])(x, places)


def _advance(search: Search, log_p: Array, rules: _Rules) -> tuple[Search, Array, Array]:
    """One step of beam search; sources that are done stay as they are.

    Of the 2 w likeliest continuations those that end join the finished ones, of which
    the w best by penalized score stay; the w best of the others live on.

    Args:
      search: the state.
      log_p: float32[B, w, V], of the token after each live hypothesis.
      rules: what to do.

    Returns:
      The state; and of each live hypothesis the one it continues and its last token,
      int32[B, w] each.
    """
    w, vocab = rules.num_beams, log_p.shape[-1]
    total = (search.live_log_p[..., None] + log_p).reshape(len(log_p), -1)
    candidate_log_p, places = jax.lax.top_k(total, 2 * w)
    parents, tokens = places // vocab, places % vocab
    write = jax.nn.one_hot(search.step, rules.max_new_tokens, dtype=bool)[:, None]
    candidates = jnp.where(write, tokens[..., None], _rows(search.live, parents))
    ends = tokens == rules.eos_id

    live_log_p, best = jax.lax.top_k(candidate_log_p + NOTHING * ends, w)
    penalty = _penalty(rules.alpha, search.step + 1)[:, None]
    scores = jnp.concatenate([search.scores, candidate_log_p / penalty + NOTHING * ~ends], axis=1)
    scores, best_finished = jax.lax.top_k(scores, w)
    finished = _rows(jnp.concatenate([search.finished, candidates], axis=1), best_finished)
    is_finished = jnp.concatenate([search.is_finished, ends], axis=1)
    after = Search(
        step=search.step + 1,
        live=_rows(candidates, best),
        live_log_p=live_log_p,
        finished=finished,
        scores=scores,
        is_finished=_rows(is_finished, best_finished),
        done=search.done,
    )
    # No live hypothesis can come before the worst finished one any more, or there is no room.
    bound = live_log_p[:, :1] / _penalty(rules.alpha, rules.max_new_tokens + 1)
    worst = jnp.where(after.is_finished, scores.min(axis=1, keepdims=True), NOTHING)
    over = jnp.all(worst > bound, axis=1) | (after.step >= rules.max_new_tokens)
    after = after._replace(done=over)
    keep = search.done
    after = jax.tree.map(
        lambda old, new: jnp.where(keep.reshape(-1, *[1] * (old.ndim - 1)), old, new),
        search,
        after,
    )
    return after, _rows(parents, best), _rows(tokens, best)


class _Tree(NamedTuple):
    """The live hypotheses, as nodes that are still to be read."""

    tokens: Array  # int32[B, w], their last tokens
    path: Array  # bool[B, w, S], the slots of their ancestors


class _Carry(NamedTuple):
    search: Search
    tree: _Tree
    cache: Cache  # the target's
    draft_cache: Cache
    rounds: Array  # int32[B]
    calls: Array  # int32[]


def _begin(batch: int, slots: int, rules: _Rules, cache: Cache, draft_cache: Cache) -> _Carry:
    w = rules.num_beams
    tree = _Tree(jnp.full((batch, w), PAD_ID, jnp.int32), jnp.zeros((batch, w, slots), bool))
    none = jnp.zeros((batch,), jnp.int32)
    return _Carry(_start(batch, rules), tree, cache, draft_cache, none, jnp.int32(0))


def _result(carry: _Carry, eos_id: int) -> BeamResult:
    """The finished hypotheses, or where there are none the live ones."""
    search = carry.search
    any_finished = jnp.any(search.is_finished, axis=1)[:, None]
    tokens = jnp.where(any_finished[..., None], search.finished, search.live)
    ended = jnp.cumsum(tokens == eos_id, axis=-1)
    inside = (ended - (tokens == eos_id) == 0) & (
        jnp.arange(tokens.shape[-1]) < search.step[:, None, None]
    )
    scores = jnp.where(any_finished, search.scores, search.live_log_p)
    return BeamResult(
        tokens=tokens,
        scores=scores,
        lengths=jnp.where(scores > NOTHING / 2, jnp.sum(inside, axis=-1), 0),
        steps=search.step,
        rounds=carry.rounds,
        target_calls=carry.calls,
    )


def _while_searching(step: Callable[[_Carry], _Carry], carry: _Carry) -> _Carry:
    return jax.lax.while_loop(lambda carry: ~jnp.all(carry.search.done), step, carry)


@functools.partial(jax.jit, static_argnames=("target", "rules"))
def _beam_decode(target: TreeModel, params: Params, inputs: Array, *, rules: _Rules) -> BeamResult:
    w, slots = rules.num_beams, rules.num_beams * rules.max_new_tokens
    slot_positions = jnp.broadcast_to(jnp.arange(slots) // w, (len(inputs), slots))

    def step(carry: _Carry) -> _Carry:
        search, tree = carry.search, carry.tree
        start = search.step * w
        here = jax.nn.one_hot(start[:, None] + jnp.arange(w), slots, dtype=bool)
        visible = tree.path | here
        positions = jnp.broadcast_to(search.step[:, None], tree.tokens.shape)
        logits, cache = target.extend_tree(
            params, carry.cache, tree.tokens, positions, Tree(start, slot_positions, visible)
        )
        alive = ~search.done
        search, parents, tokens = _advance(search, jax.nn.log_softmax(logits), rules)
        return _Carry(
            search,
            _Tree(tokens, _rows(visible, parents)),
            cache,
            (),
            carry.rounds + alive,
            carry.calls + 1,
        )

    cache = target.prefill(params, inputs, slots)
    carry = _begin(len(inputs), slots, rules, cache, ())
    return _result(_while_searching(step, carry), rules.eos_id)


def beam_decode(
    target: TreeModel,
    target_params: Params,
    inputs: Array,
    *,
    num_beams: int = 4,
    alpha: float = 0.6,
    max_new_tokens: int = 64,
    eos_id: int = EOS_ID,
) -> BeamResult:
    """T5X's beam search: the same hypotheses and scores, but the best first.

    Args:
      target: p, a `TreeModel`.
      target_params: its parameters.
      inputs: int32[B, T], sources, ending in EOS and padded with 0.
      num_beams: w.
      alpha: of the brevity penalty ((5 + length) / 6) ** alpha.
      max_new_tokens: N, the most tokens of a hypothesis, its EOS among them.
      eos_id: the token that ends a hypothesis.

    Raises:
      ValueError: for arguments out of range, before anything is compiled.
    """
    check_beams(target, num_beams, alpha, eos_id)
    inputs, _ = check_plain(target, inputs, None, max_new_tokens, GREEDY, eos_id)
    rules = _Rules(num_beams, float(alpha), max_new_tokens, eos_id)
    return _beam_decode(target, target_params, inputs, rules=rules)


class _Nodes(NamedTuple):
    """The hypotheses of one step of the draft's search: n of them."""

    first: int  # the place of the first among the round's nodes
    parents: Array  # int32[B, n], among the nodes of the step before
    tokens: Array  # int32[B, n]
    log_q: Array  # float32[B, n], of the whole hypothesis
    visible: Array  # bool[B, n, S]


def _slots(start: Array, first: int, number: int, size: int) -> Array:
    """The slots of a round's nodes: bool[B, n, S]."""
    return jax.nn.one_hot(start[:, None] + first + jnp.arange(number), size, dtype=bool)


def _draft(
    model: TreeModel,
    params: Params,
    carry: _Carry,
    slot_positions: Array,
    *,
    gamma: int,
    width: int,
    vocab_size: int,
    rules: _Rules,
) -> tuple[list[_Nodes], Cache]:
    """The draft's own beam search of `width` from the live hypotheses, for gamma steps.

    Hypotheses that end are left out: the target's search takes them without reading on.
    Costs gamma + 1 calls of the draft; the last only fills its cache.
    """
    search, tree, cache = carry.search, carry.tree, carry.draft_cache
    size, start = tree.path.shape[-1], search.step * rules.num_beams
    visible = tree.path | _slots(start, 0, rules.num_beams, size)
    nothing = jnp.zeros_like(tree.tokens)
    steps = [_Nodes(0, nothing, tree.tokens, search.live_log_p, visible)]
    for depth in range(gamma + 1):
        nodes = steps[-1]
        number = nodes.tokens.shape[1]
        logits, cache = model.extend_tree(
            params,
            cache,
            nodes.tokens,
            jnp.broadcast_to(search.step[:, None] + depth, nodes.tokens.shape),
            Tree(start + nodes.first, slot_positions, nodes.visible),
        )
        if depth == gamma:
            break
        log_q = jax.nn.log_softmax(fit_vocabulary(logits, vocab_size))
        log_q = log_q.at[..., rules.eos_id].set(-jnp.inf)
        total = (nodes.log_q[..., None] + log_q).reshape(len(log_q), -1)
        log_q, places = jax.lax.top_k(total, width)
        parents, first = places // vocab_size, nodes.first + number
        visible = _rows(nodes.visible, parents) | _slots(start, first, width, size)
        steps.append(_Nodes(first, parents, places % vocab_size, log_q, visible))
    return steps, cache


@functools.partial(jax.jit, static_argnames=("target", "draft", "width", "gamma", "rules"))
def _speculative_beam_decode(
    target: TreeModel,
    target_params: Params,
    draft: TreeModel,
    draft_params: Params,
    inputs: Array,
    *,
    width: int,
    gamma: int,
    rules: _Rules,
) -> BeamResult:
    w, batch = rules.num_beams, len(inputs)
    nodes = w + gamma * width
    slots = w * rules.max_new_tokens + nodes

    def step(carry: _Carry) -> _Carry:
        search, tree = carry.search, carry.tree
        start, alive = search.step * w, ~search.done
        # Kept slots hold w hypotheses a step, those behind them the nodes of this round.
        place = jnp.arange(slots) - start[:, None]
        depth = jnp.where(place < w, 0, 1 + (place - w) // width)
        slot_positions = jnp.where(place < 0, jnp.arange(slots) // w, search.step[:, None] + depth)

        # Search ahead with the draft.
        steps, draft_cache = _draft(
            draft,
            draft_params,
            carry,
            slot_positions,
            gamma=gamma,
            width=width,
            vocab_size=target.vocab_size,
            rules=rules,
        )

        # Run the target on all of it, in parallel.
        logits, cache = target.extend_tree(
            target_params,
            carry.cache,
            jnp.concatenate([each.tokens for each in steps], axis=1),
            jnp.take_along_axis(slot_positions, start[:, None] + jnp.arange(nodes), axis=1),
            Tree(start, slot_positions, jnp.concatenate([s.visible for s in steps], axis=1)),
        )
        log_p = jax.nn.log_softmax(logits)

        # Take the target's steps, while all that they need was read.
        node = jnp.broadcast_to(jnp.arange(w), (batch, w))  # the live hypotheses' among them
        kept, going = [], alive
        for i in range(gamma + 1):
            after, parents, tokens = _advance(search, _rows(log_p, node), rules)
            kept.append(node)
            path = tree.path | _slots(start, i * w, w, slots)
            ahead = (after, _Tree(tokens, _rows(path, parents)))
            search, tree = _where(going, ahead, (search, tree))
            going &= ~search.done
            if i == gamma:
                break
            read = steps[i + 1]
            parent_nodes = _rows(node, parents)[..., None]
            same = (read.parents[:, None] + steps[i].first == parent_nodes) & (
                read.tokens[:, None] == tokens[..., None]
            )
            found = jnp.any(same, axis=-1)
            unneeded = search.live_log_p < NOTHING / 2
            going &= jnp.all(found | unneeded, axis=1)
            node = read.first + jnp.argmax(same, axis=-1)

        # Keep the slots of the steps that were taken, in their order.
        moved = start[:, None] + jnp.concatenate(kept, axis=1)
        return _Carry(
            search,
            tree,
            target.move(cache, moved, start),
            draft.move(draft_cache, moved, start),
            carry.rounds + alive,
            carry.calls + 1,
        )

    carry = _begin(
        batch,
        slots,
        rules,
        target.prefill(target_params, inputs, slots),
        draft.prefill(draft_params, inputs, slots),
    )
    return _result(_while_searching(step, carry), rules.eos_id)


def _where(mask: Array, yes: tuple[Search, _Tree], no: tuple[Search, _Tree]) -> tuple:
    """Of two states, by source."""
    return jax.tree.map(
        lambda a, b: jnp.where(mask.reshape(-1, *[1] * (a.ndim - 1)), a, b), yes, no
    )


def speculative_beam_decode(
    target: TreeModel,
    target_params: Params,
    draft: TreeModel,
    draft_params: Params,
    inputs: Array,
    *,
    num_beams: int = 4,
    num_draft_beams: int | None = None,
    gamma: int = 3,
    alpha: float = 0.6,
    max_new_tokens: int = 64,
    eos_id: int = EOS_ID,
) -> BeamResult:
    """Beam search with a draft (appendix A.4): `beam_decode`'s result in fewer target calls.

    A round takes between 1 and gamma + 1 steps of the search. Scores may differ in the
    last digits, as products of many tokens are rounded differently from those of few.

    Args:
      target: p, a `TreeModel`.
      target_params: its parameters.
      draft: q, another.
      draft_params: its parameters.
      inputs: int32[B, T], sources, ending in EOS and padded with 0.
      num_beams: w.
      num_draft_beams: u, at least w; None is 2 w.
      gamma: steps that the draft searches ahead.
      alpha: of the brevity penalty.
      max_new_tokens: N.
      eos_id: the token that ends a hypothesis.

    Raises:
      ValueError: for arguments out of range, before anything is compiled.
    """
    check_beams(target, num_beams, alpha, eos_id, num_draft_beams, gamma)
    check_vocabularies(target.vocab_size, draft.vocab_size)
    inputs, _ = check_plain(target, inputs, None, max_new_tokens, GREEDY, eos_id)
    return _speculative_beam_decode(
        target,
        target_params,
        draft,
        draft_params,
        inputs,
        width=num_draft_beams or 2 * num_beams,
        gamma=gamma,
        rules=_Rules(num_beams, float(alpha), max_new_tokens, eos_id),
    )
