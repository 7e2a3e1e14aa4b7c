"""Drafts that copy: what is found, what is guessed, and what it costs where nothing is."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from specdec_jax import LookupDrafter, ModelDrafter, autoregressive_decode, speculative_decode
from specdec_jax.gamma import Budget
from specdec_jax.sampling import GREEDY, draw_noise

from .conftest import TableModel, table_params

V = 20


def propose(
    source: list[int], text: list[int], gamma: int = 4, wanted: int | None = None, **k: Any
) -> list[int]:
    """The guesses after the start token and `text`."""
    drafter = LookupDrafter(V, **k)
    inputs = jnp.asarray([source])
    tokens = jnp.zeros((1, 12), int).at[0, 1 : len(text) + 1].set(jnp.asarray(text, int))
    state = drafter.init((), inputs, 12, gamma=gamma, target_cache=())
    draft, _ = drafter.propose(
        (),
        state,
        tokens,
        jnp.asarray([len(text) + 1]),
        None,
        Budget(jnp.asarray([gamma if wanted is None else wanted])),
        gamma=gamma,
        vocab_size=V,
        sampling=None,
    )
    valid = np.asarray(draft.valid[0])
    made = int(valid.sum())
    assert valid[:made].all()
    one_hot = np.eye(V)[np.asarray(draft.tokens[0, :made])]
    np.testing.assert_array_equal(draft.q[0, :made], one_hot.reshape(made, V))
    assert not np.asarray(draft.q[0, made:]).any()
    return draft.tokens[0, :made].tolist()


@pytest.mark.parametrize(
    ("source", "text", "guesses"),
    [
        ([5, 6, 7, 8, 1], [5], [6, 7, 8, 1]),  # up to the end of the source
        ([5, 6, 7, 8, 9, 1], [5], [6, 7, 8, 9]),
        ([5, 6, 7, 1, 0, 0], [6], [7, 1]),  # and not its padding
        ([5, 6, 9, 5, 7, 1], [5], [7, 1]),  # of two the last
        ([5, 6, 9, 4, 6, 7, 1], [5, 6], [9, 4, 6, 7]),  # unless the other is longer
        ([9, 1], [5, 6, 7, 5], [6, 7, 5]),  # the text so far, and no further
        ([5, 8, 1], [5, 6, 5], [8, 1]),  # as long: the source first
        ([9, 8, 1], [5, 6, 7], []),
        ([9, 8, 1], [], []),  # the start token is no text
        ([0, 9, 1], [1], []),
    ],
)
def test_what_follows_the_longest_match(
    source: list[int], text: list[int], guesses: list[int]
) -> None:
    assert propose(source, text) == guesses


def test_how_much_must_match() -> None:
    source, text = [4, 6, 7, 8, 1], [5, 6, 7]
    assert propose(source, text) == [8, 1]
    assert propose(source, text, min_ngram=3) == []
    assert propose([3, 7, 9, 6, 7, 1], [6, 7], max_ngram=1) == [1]
    assert propose([6, 7, 9, 3, 7, 1], [6, 7], max_ngram=1) == [1]
    assert propose([6, 7, 9, 3, 7, 1], [6, 7], max_ngram=2) == [9, 3, 7, 1]


def test_it_makes_no_more_guesses_than_are_wanted() -> None:
    assert propose([5, 6, 7, 8, 1], [5], wanted=2) == [6, 7]
    assert propose([5, 6, 7, 8, 1], [5], wanted=0) == []


TARGET, PARAMS = TableModel(V), table_params(0, V)
INPUTS = jnp.asarray([[3, 9, 5, 1], [4, 7, 7, 1]])


def decode(drafter: Any, params: Any, inputs: Array = INPUTS) -> Any:
    return speculative_decode(
        TARGET, PARAMS, drafter, params, inputs, gamma=3, max_new_tokens=30, eos_id=-1
    )


def test_the_tokens_are_the_targets_alone() -> None:
    alone = autoregressive_decode(TARGET, PARAMS, INPUTS, max_new_tokens=30, eos_id=-1)
    result = decode(LookupDrafter(V), ())
    np.testing.assert_array_equal(result.tokens, alone.tokens)
    assert (result.drafted[:, 0] < result.rounds).all()  # it passes, at times


def test_where_it_finds_nothing_the_fallback_guesses() -> None:
    # Skipped for rounds on end, a copy of the target still guesses as the target does: it
    # has read all that it missed.
    drafter = LookupDrafter(V, min_ngram=2, fallback=ModelDrafter(TARGET))
    result = decode(drafter, PARAMS)
    alone = autoregressive_decode(TARGET, PARAMS, INPUTS, max_new_tokens=30, eos_id=-1)
    np.testing.assert_array_equal(result.tokens, alone.tokens)
    copies = decode(LookupDrafter(V, min_ngram=2), ())
    rejected = (result.examined - result.accepted).sum()
    assert rejected <= (copies.examined - copies.accepted).sum()
    assert result.rounds.sum() < copies.rounds.sum()
    assert (result.drafted[:, 0] >= result.rounds - 1).all()


@pytest.mark.parametrize(
    ("text", "wanted", "fed"), [([3], 3, 0), ([8], 3, 4), ([8], 1, 2), ([8], 0, 0)]
)
def test_a_guess_that_is_not_asked_of_it_costs_the_fallback_nothing(
    text: list[int], wanted: int, fed: int
) -> None:
    drafter = LookupDrafter(V, fallback=ModelDrafter(TARGET))
    tokens = jnp.zeros((1, 12), int).at[0, 1 : len(text) + 1].set(jnp.asarray(text))
    state = drafter.init(PARAMS, INPUTS[:1], 12, gamma=3, target_cache=())
    draft, state = drafter.propose(
        PARAMS,
        state,
        tokens,
        jnp.asarray([len(text) + 1]),
        draw_noise(jax.random.split(jax.random.key(0), 1), 4),
        Budget(jnp.asarray([wanted])),
        gamma=3,
        vocab_size=V,
        sampling=GREEDY,
    )
    # Its cache shows what it was fed: the prefix, and all guesses but the last.
    _, slots = state.fallback.cache
    assert int((slots >= 0).sum()) == fed
    assert int(draft.valid.sum()) == wanted


def test_what_may_pass() -> None:
    assert not LookupDrafter(V, fallback=ModelDrafter(TARGET)).may_pass
    assert LookupDrafter(V).may_pass and LookupDrafter(V, fallback=LookupDrafter(V)).may_pass


def test_wrong_lengths_are_refused() -> None:
    for lengths in ((0, 3), (4, 3)):
        with pytest.raises(ValueError, match="min_ngram must be from 1"):
            LookupDrafter(V, min_ngram=lengths[0], max_ngram=lengths[1])
