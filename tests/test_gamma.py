"""Policies of gamma: what they decide, and that a decode by them is the same decode."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from specdec_jax import (
    AdaptiveGamma,
    AssistedGamma,
    ConfidentGamma,
    DecodeResult,
    FixedGamma,
    ModelDrafter,
    autoregressive_decode,
    speculative_decode,
)
from specdec_jax.analysis import expected_tokens
from specdec_jax.decoding import _speculative_decode

from .conftest import TableModel, table_params

V = 8
TARGET, PARAMS = TableModel(V), table_params(0, V)
INPUTS = jnp.arange(4)[:, None]
COSTS = jnp.asarray([1.0, 1.5, 2.0])


def decode(gamma: Any, draft: Array = PARAMS, inputs: Array = INPUTS, **k: Any) -> DecodeResult:
    settings = {"max_new_tokens": 24, "eos_id": -1} | k
    drafter = ModelDrafter(TARGET)
    return speculative_decode(TARGET, PARAMS, drafter, draft, inputs, gamma=gamma, **settings)


BAD_DRAFT = -PARAMS
SO_SO = PARAMS + table_params(1, V, scale=2.0)
POLICIES = [
    FixedGamma(3),
    ConfidentGamma((1, 3), 0.6),
    AssistedGamma((1, 3, 7), 2),
    AdaptiveGamma(COSTS, (0, 1, 3)),
    AdaptiveGamma(COSTS[1:], (1, 3)),
]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
@pytest.mark.parametrize("draft", [PARAMS, SO_SO, BAD_DRAFT], ids=["copy", "so-so", "bad"])
def test_the_tokens_are_the_targets_alone(policy: Any, draft: Array) -> None:
    result = decode(policy, draft)
    alone = autoregressive_decode(TARGET, PARAMS, INPUTS, max_new_tokens=24, eos_id=-1)
    np.testing.assert_array_equal(result.tokens, alone.tokens)
    np.testing.assert_allclose(result.scores, alone.scores, rtol=1e-5)
    assert (result.accepted <= result.examined).all()
    assert (result.examined <= result.drafted).all()


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
def test_a_row_decides_for_itself(policy: Any) -> None:
    together = decode(policy, SO_SO)
    for row in range(4):
        alone = decode(policy, SO_SO, INPUTS[row : row + 1])
        assert together.rounds[row] == alone.rounds[0]
        np.testing.assert_array_equal(together.drafted[row], alone.drafted[0])


def test_low_confidence_stops_the_draft() -> None:
    sure = decode(ConfidentGamma((3, 7), 0.0), SO_SO)
    careful = decode(ConfidentGamma((3, 7), 0.5), SO_SO)
    timid = decode(ConfidentGamma((3, 7), 1.1), SO_SO)
    shares = [result.accepted.sum() / result.drafted.sum() for result in (sure, careful)]
    assert shares[0] < shares[1]
    assert careful.drafted.sum() < sure.drafted.sum()
    assert (timid.drafted[:, 1:] == 0).all() and (timid.drafted[:, 0] > 0).all()


def test_confidence_is_the_product_of_the_drafts_largest_probabilities() -> None:
    floor = 0.3
    result = decode(ConfidentGamma((7,), floor), inputs=INPUTS[:1], max_new_tokens=8)
    tokens = [0, 0, *result.tokens[0].tolist()]
    chance, made = 1.0, 1
    for at in range(6):
        logits = PARAMS[at % 7, tokens[at], tokens[at + 1]]
        chance *= float(jnp.exp(logits - logits.max()).max() / jnp.exp(logits - logits.max()).sum())
        if chance < floor:
            break
        made += 1
    first_round = decode(ConfidentGamma((7,), floor), inputs=INPUTS[:1], max_new_tokens=made + 1)
    assert int(first_round.drafted.sum()) == made and int(first_round.rounds[0]) == 1


def test_the_assisted_schedule() -> None:
    policy = AssistedGamma((1, 3, 7), 2)
    state = policy.init(3)
    state = policy.update(state, jnp.asarray([2, 2, 1]), jnp.asarray([2, 1, 0]))
    np.testing.assert_array_equal(policy.budget(state).guesses, [4, 1, 1])
    for _ in range(4):
        state = policy.update(state, jnp.asarray([4, 1, 1]), jnp.asarray([4, 0, 1]))
    np.testing.assert_array_equal(policy.budget(state).guesses, [7, 1, 7])


@pytest.mark.parametrize("examined", [8, 40])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.8, 1.0])
def test_the_adaptive_choice_is_theorem_3_8s(examined: int, share: float) -> None:
    policy = AdaptiveGamma(jnp.asarray([1.0, 1.8, 2.3, 2.6]), (0, 1, 4, 7))
    state = policy.init(1)
    state = policy.update(state, jnp.asarray([examined]), jnp.asarray([share * examined]))
    beta = (share * examined + 0.9 * 8) / (examined + 8)
    gains = [
        expected_tokens(beta, gamma) / cost * (1.0 if gamma else policy.margin)
        for gamma, cost in zip(policy.choices, policy.costs.tolist(), strict=True)
    ]
    assert int(policy.budget(state).guesses[0]) == policy.choices[int(np.argmax(gains))]


def test_who_knows_little_tries_with_few_guesses() -> None:
    policy = AdaptiveGamma(jnp.asarray([1.0, 1.5, 2.0]), (0, 3, 7))
    assert policy.budget(policy.init(1)).guesses[0] == 3
    state = policy.update(policy.init(1), jnp.asarray([8]), jnp.asarray([8]))
    assert policy.budget(state).guesses[0] == 7


def test_a_decode_that_never_guesses_is_the_plain_program() -> None:
    never = AdaptiveGamma(jnp.asarray([1.0, 99.0, 99.0]), (0, 1, 3))
    result = decode(never)
    alone = autoregressive_decode(TARGET, PARAMS, INPUTS, max_new_tokens=24, eos_id=-1)
    np.testing.assert_array_equal(result.tokens, alone.tokens)
    assert result.drafted.shape == (4, 3) and result.drafted.sum() == 0
    program = str(jax.make_jaxpr(lambda params: decode(never, params).tokens)(PARAMS))
    assert "_autoregressive_decode" in program and "_speculative_decode" not in program


def test_where_nothing_pays_it_decodes_plainly() -> None:
    result = decode(AdaptiveGamma(jnp.asarray([1.0, 1.9, 3.0]), (0, 1, 3)), BAD_DRAFT)
    assert (result.drafted[:, 0] <= 6).all()  # a few tries, and no more
    always = decode(AdaptiveGamma(jnp.asarray([1.0, 0.1, 0.1]), (0, 1, 3)), BAD_DRAFT)
    assert (always.drafted[:, 0] > 15).all()


def test_a_row_that_gave_up_stays_so_and_a_later_decode_tries_again() -> None:
    policy = AdaptiveGamma(jnp.asarray([1.0, 2.0]), (0, 3))
    state = policy.update(policy.init(1), jnp.asarray([30]), jnp.asarray([3]))
    for _ in range(100):
        assert policy.budget(state).guesses[0] == 0
        state = policy.update(state, jnp.asarray([0]), jnp.asarray([0]))
    policy = policy.after(30, 3)
    assert policy.budget(policy.init(1)).guesses[0] == 0
    for _ in range(300):
        policy = policy.after(0, 0)
    assert policy.budget(policy.init(1)).guesses[0] == 3


def test_what_one_decode_saw_the_next_begins_with() -> None:
    policy = AdaptiveGamma(COSTS, (0, 1, 3))
    for _ in range(50):
        policy = policy.after(20, 18)
    assert policy.examined <= 64 and policy.accepted / policy.examined == pytest.approx(0.9)
    assert float(policy.init(2).examined[1]) == pytest.approx(policy.examined)


def test_other_costs_are_no_other_program() -> None:
    decode(AdaptiveGamma(COSTS, (0, 1, 3)))
    compiled = _speculative_decode._cache_size()
    decode(AdaptiveGamma(COSTS + 1.0, (0, 1, 3)))
    decode(AdaptiveGamma(COSTS, (0, 1, 3)).after(5, 3))
    assert _speculative_decode._cache_size() == compiled


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AdaptiveGamma(COSTS, (3, 1)), "widths must be ascending"),
        (lambda: ConfidentGamma((0,)), "widths must be ascending"),
        (lambda: AssistedGamma((1, 2.5)), "widths must be ascending"),
        (lambda: AssistedGamma((1, 3), 4), "start must be from 1 to 3"),
    ],
)
def test_wrong_policies_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
