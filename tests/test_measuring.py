"""measuring.py: races of made-up ways, whose times and tokens are known."""

import dataclasses
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_jax import speculative_decode
from specdec_jax.analysis import decode_improvement
from specdec_jax.costs import Costs
from specdec_jax.decoding import autoregressive_decode
from specdec_jax.drafters.model import ModelDrafter
from specdec_jax.generate import Batch
from specdec_jax.measuring import OURS, SPECULATIVE, Race, as_row, race, speedup

from .conftest import TableModel, table_params

V, GAMMA, N = 8, 3, 24
MODELS = (TableModel(V), table_params(0, V), ModelDrafter(TableModel(V)), table_params(1, V))
COSTS = Costs(0.02, {GAMMA: 1.02}, prefill=3.0, draft_prefill=0.5)


def batch(sources: list[int], spare: int = 0) -> Batch:
    has_text = [True] * (len(sources) - spare) + [False] * spare
    keys = jax.random.split(jax.random.key(0), len(sources))
    return Batch([""] * len(sources), has_text, jnp.asarray(sources)[:, None], keys)


def speculate(b: Batch):
    return speculative_decode(*MODELS, b.inputs, b.keys, gamma=GAMMA, max_new_tokens=N)


def alone(b: Batch):
    return autoregressive_decode(*MODELS[:2], b.inputs, b.keys, max_new_tokens=N)


def slow(b: Batch):
    time.sleep(0.05)
    return alone(b)


@pytest.fixture(scope="module")
def found() -> Race:
    ways = {SPECULATIVE: speculate, OURS: alone, "slow": slow}
    return race(ways, [batch([1, 2, 3]), batch([4, 5, 5], spare=1)], repeats=3, seed=0)


def test_a_race_keeps_what_it_saw(found: Race) -> None:
    assert [len(result.lengths) for result in found.results[OURS]] == [3, 2]  # no spare rows
    assert found.agreement == {OURS: 5, "slow": 5}
    assert found.tokens(OURS) == found.tokens(SPECULATIVE)
    assert all(0.05 <= seconds < 1 for seconds in found.seconds["slow"])
    assert found.compile_seconds["slow"] >= 0.05 and found.compile_seconds[OURS] > 0
    assert speedup(found, "slow", seed=0).ratio > speedup(found, OURS, seed=0).ratio


def test_another_s_tokens_are_told(found: Race) -> None:
    other = found.results["slow"][0]
    wrong = other._replace(tokens=np.where(np.arange(N) == 0, other.tokens + 1, other.tokens))
    results = {**found.results, "slow": [wrong, found.results["slow"][1]]}
    assert dataclasses.replace(found, results=results).agreement == {OURS: 5, "slow": 2}


def row(found: Race, costs: Costs = COSTS):
    names = {"task": "t", "draft": "d", "temperature": 0.0}
    return as_row(found, costs, **names, gamma=GAMMA, batch_size=3, seed=0)


def test_the_row_is_the_race_s(found: Race) -> None:
    made = row(found)
    judged = [result.examined.sum() for result in found.results[SPECULATIVE]]
    stood = [result.accepted.sum() for result in found.results[SPECULATIVE]]
    assert made.alpha == sum(stood) / sum(judged)
    assert made.identical == made.rows == 5
    # Both batches alike: the expectation is that of whole decodes, of each batch's rows.
    first = dataclasses.replace(
        found,
        results={name: results[:1] for name, results in found.results.items()},
        seconds={name: seconds[:1] for name, seconds in found.seconds.items()},
    )
    made = row(first)
    lengths = first.results[OURS][0].lengths
    assert made.expected == pytest.approx(
        decode_improvement(
            made.alpha, GAMMA, 0.02, 1.02, tokens=lengths, prefill=3.0, draft_prefill=0.5
        )
    )
    assert made.generalised < made.theorem


def timed_as(found: Race, ratio: float) -> Race:
    """The race with times of our own, in which speculation is so many times as fast."""
    return dataclasses.replace(found, seconds={OURS: [1.0, 1.0], SPECULATIVE: [1 / ratio] * 2})


def test_what_does_not_pay_says_what_would(found: Race) -> None:
    made = row(timed_as(found, 0.5), Costs(0.2, {GAMMA: 2.2}))
    assert "a round costs 2.8 calls of one token, the guesses 0.6 and their verif" in made.reason
    assert "alpha would have to be 0.7" in made.reason and f"is {made.alpha:.2f}" in made.reason
    assert "no draft would pay" in row(timed_as(found, 0.5), Costs(0.5, {GAMMA: 3.0})).reason
    cheap = Costs(0.01, {GAMMA: 1.01}, prefill=3.0, draft_prefill=9.0)
    assert "should pay, if barely" in row(timed_as(found, 0.5), cheap).reason


def test_an_expectation_that_is_far_off_says_why(found: Race) -> None:
    right = row(found).expected
    assert right > 1 and row(timed_as(found, 1.1 * right)).reason == ""
    far = row(timed_as(found, 2 * right)).reason
    assert far.startswith("EXP is -50 % off") and "the rest is the timing's own" in far
    # Were every guess of a decode rejected but the rounds few, Eq. 1 could not tell.
    results = [r._replace(target_calls=r.target_calls // 2) for r in found.results[SPECULATIVE]]
    fewer = dataclasses.replace(found, results={**found.results, SPECULATIVE: results})
    told = row(timed_as(fewer, 2 * right)).reason
    assert "don't stand independently" in told and "tokens a call that were measured" in told


def test_the_interval_of_a_speedup(found: Race) -> None:
    one = found.results[OURS][0]
    many = {SPECULATIVE: [one] * 40, OURS: [one] * 40}
    seconds = {SPECULATIVE: [1.0, 3.0] * 20, OURS: [4.0] * 40}
    ratio = speedup(Race(seconds, many, {}), OURS, seed=0)
    assert ratio.ratio == pytest.approx(2.0)
    # Of the mean of 40 times 1 or 3: 2 +- 1.96 / sqrt(40).
    assert ratio.low == pytest.approx(4 / 2.31, abs=0.1)
    assert ratio.high == pytest.approx(4 / 1.69, abs=0.1)
