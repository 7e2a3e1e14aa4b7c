"""What calls cost: a difference of timed decodes, here of made-up times."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from specdec_jax import ExactRule, ModelDrafter, Sampling, costs, speculative_decode
from specdec_jax.decoding import _speculative_decode

from .conftest import TableModel, table_params

V = 8
MODELS = costs.Decoders(
    TableModel(V), table_params(0, V), ModelDrafter(TableModel(V)), table_params(1, V)
)
INPUTS, KEY = jnp.asarray([[3]]), jax.random.key(0)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """Lets a round take 1 s alone, 0.25 s a guess and 1.5 + 0.1 gamma s verified."""
    rounds: list[list[Any]] = []

    def time_rounds(*arguments: Any) -> tuple[Any, list[Any]]:
        found = []
        for decode in arguments[3]:
            result = decode()
            calls, gamma = int(result.target_calls), result.drafted.shape[1]
            guesses = int(result.drafted.sum()) / calls
            verified = 1.5 + 0.1 * gamma if gamma else 1.0
            found.append(costs._Round(verified + 0.25 * guesses, guesses))
        rounds.append(found)
        return costs._Reading(target=4.0, both=4.5), found

    monkeypatch.setattr(costs, "_time_rounds", time_rounds)
    return rounds


@pytest.mark.usefixtures("told")
def test_guesses_and_verification_are_told_apart() -> None:
    found = costs.measure_costs(
        MODELS, INPUTS, KEY, gammas=[1, 3, 5], max_new_tokens=20, sampling=Sampling(0.0)
    )
    assert found.draft == pytest.approx(0.25)
    assert found.verification == pytest.approx({1: 1.6, 3: 1.8, 5: 2.0})
    assert (found.prefill, found.draft_prefill) == (4.0, 0.5)


def test_the_policy_is_measured_in_the_program_it_runs(told: list[list[Any]]) -> None:
    settings = {"max_new_tokens": 12, "sampling": Sampling(0.0)}
    policy = costs.measured_gamma(MODELS, INPUTS, KEY, choices=(0, 1, 3), **settings)
    assert policy.choices == (0, 1, 3) and policy.costs[0] == 1.0
    assert [each.guesses > 0 for each in told[0]] == [False, True, True]
    before = _speculative_decode._cache_size()
    speculative_decode(*MODELS, INPUTS, KEY, gamma=policy, rule=ExactRule(), **settings)
    assert _speculative_decode._cache_size() == before


def test_a_round_is_a_decode_without_its_prefill(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count()
    monkeypatch.setattr(costs.time, "perf_counter", lambda: float(next(clock)) ** 2)
    settings = {"max_new_tokens": 6, "sampling": Sampling(0.0)}
    found = costs.measure_costs(MODELS, INPUTS, KEY, gammas=[2], **settings)
    assert found.verification[2] > 0 and found.draft >= 0


def test_the_median_of_several_sources() -> None:
    several = [
        costs.Costs(c, {3: v, 5: 2 * v}, 10 * c, c) for c, v in ((0.3, 1), (0.1, 9), (0.2, 2))
    ]
    assert costs.median_costs(several) == costs.Costs(0.2, {3: 2, 5: 4}, 2.0, 0.2)
