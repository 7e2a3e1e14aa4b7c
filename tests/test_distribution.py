"""The law of what is emitted: chi-squared against the enumerated exact distribution.

Every sequence of N tokens is enumerated with its probability under the target alone,
computed without this project's sampling code. A wrong rule must fail the same test.
"""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from jax import Array

from specdec_jax import (
    Draft,
    ExactRule,
    ModelDrafter,
    Sampling,
    Verdict,
    autoregressive_decode,
    speculative_decode,
)
from specdec_jax.sampling import UniformNoise, draw_noise, sample

from .conftest import TableModel, table_params

SOURCE, ROWS, EOS = 3, 20_000, 1


def standardized(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
    """Section 2.2 for one place, float64[V], written independently of sampling.py."""
    if sampling.temperature == 0:
        return np.eye(len(logits))[logits.argmax()]
    x = logits.astype(np.float64) / sampling.temperature
    p = np.exp(x - x.max())
    order = np.argsort(-p, kind="stable")
    if sampling.top_k:
        p[order[sampling.top_k :]] = 0
    p /= p.sum()
    p[order[1:][np.cumsum(p[order])[:-1] >= sampling.top_p]] = 0
    return p / p.sum()


def enumerate_sequences(
    logits_after: Callable[[tuple[int, ...]], np.ndarray], length: int, sampling: Sampling
) -> dict[tuple[int, ...], float]:
    """Every sequence with its probability; 0 after an EOS."""
    size = len(logits_after(()))
    found = {}
    for tokens in itertools.product(range(size), repeat=length):
        probability = 1.0
        for at, token in enumerate(tokens):
            if EOS in tokens[:at]:
                probability *= token == 0
            else:
                probability *= standardized(logits_after(tokens[:at]), sampling)[token]
        if probability > 0:
            found[tokens] = probability
    return found


def of_table(table: Array) -> Callable[[tuple[int, ...]], np.ndarray]:
    """The logits of a `TableModel` after a prefix of the source `SOURCE`."""
    logits = np.asarray(table)

    def after(prefix: tuple[int, ...]) -> np.ndarray:
        previous, current = (0, 0, *prefix)[-2:]
        return logits[(SOURCE + len(prefix)) % len(logits), previous, current]

    return after


def p_value(samples: Array, expected: dict[tuple[int, ...], float]) -> float:
    """Of a chi-squared test; rare sequences are pooled, an impossible one gives 0."""
    drawn, counts = np.unique(np.asarray(samples), axis=0, return_counts=True)
    observed = {tuple(map(int, row)): int(n) for row, n in zip(drawn, counts, strict=True)}
    if not observed.keys() <= expected.keys():
        return 0.0
    total = len(samples)
    pairs = sorted((probability * total, observed.get(s, 0)) for s, probability in expected.items())
    rare = sum(1 for count, _ in pairs if count < 10)
    pooled = [tuple(map(sum, zip(*pairs[:rare], strict=True)))] if rare else []
    wanted, got = np.array(pooled + pairs[rare:], float).T
    if len(got) == 1:
        return 1.0
    return float(scipy.stats.chisquare(got, wanted * got.sum() / wanted.sum()).pvalue)


def decode(
    size: int = 5, length: int = 3, *, seed: int = 0, draft_size: int | None = None, **settings: Any
) -> tuple[Array, dict[tuple[int, ...], float]]:
    """Samples of a speculative decode, and what they should follow."""
    params = table_params(0, size, scale=1.0)
    near = params + table_params(1, size, scale=0.7)
    draft = TableModel(draft_size or size)
    near = near[:, : draft.vocab_size, : draft.vocab_size, : draft.vocab_size]
    sampling = settings.pop("sampling", Sampling())
    drafter = ModelDrafter(draft, settings.pop("draft_sampling", None))
    result = speculative_decode(
        TableModel(size),
        params,
        drafter,
        settings.pop("draft_params", near),
        jnp.full((settings.pop("rows", ROWS), 1), SOURCE),
        jax.random.key(seed),
        max_new_tokens=length,
        sampling=sampling,
        eos_id=EOS,
        **{"gamma": 2} | settings,
    )
    return result.tokens, enumerate_sequences(of_table(params), length, sampling)


CASES = {
    "temperature 0.5": {"sampling": Sampling(0.5)},  # case 13
    "temperature 1": {"sampling": Sampling(1.0)},
    "temperature 2": {"sampling": Sampling(2.0)},
    "top-k": {"sampling": Sampling(1.0, top_k=3)},  # case 15
    "top-p": {"sampling": Sampling(0.8, top_p=0.7)},
    "own draft temperature": {  # case 16
        "sampling": Sampling(0.7),
        "draft_sampling": Sampling(1.5),
    },
    "greedy draft": {"draft_sampling": Sampling(0.0)},
    "gamma 1": {"gamma": 1},
    "gamma 7": {"gamma": 7},
    "smaller draft vocabulary": {"draft_size": 4},  # case 26
    "a NaN draft": {"draft_params": jnp.full((7, 5, 5, 5), jnp.nan)},  # case 9
    "an unrelated draft": {"draft_params": table_params(9, 5, scale=5.0)},
}


@pytest.mark.parametrize("name", CASES)
def test_sequences_follow_the_target_alone(name: str) -> None:
    samples, expected = decode(**CASES[name])
    assert p_value(samples, expected) > 1e-3


def test_two_tokens_of_sixteen_follow_the_target_alone() -> None:  # case 13
    for temperature in (0.5, 1.0, 2.0):
        samples, expected = decode(16, 2, sampling=Sampling(temperature))
        assert p_value(samples, expected) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_many_long_sequences_follow_the_target_alone(seed: int) -> None:
    samples, expected = decode(4, 5, seed=seed, gamma=3, rows=400_000)
    assert p_value(samples, expected) > 1e-3


def test_plain_sampling_follows_the_target() -> None:
    params = table_params(0, 5, scale=1.0)
    result = autoregressive_decode(
        TableModel(5),
        params,
        jnp.full((ROWS, 1), SOURCE),
        jax.random.key(0),
        max_new_tokens=3,
        sampling=Sampling(),
        eos_id=EOS,
    )
    expected = enumerate_sequences(of_table(params), 3, Sampling())
    assert sum(expected.values()) == pytest.approx(1)
    assert p_value(result.tokens, expected) > 1e-3


@dataclasses.dataclass(frozen=True)
class WrongRule:
    """Rules that were shipped somewhere; each must be caught."""

    fault: str

    num_drafts = 1
    draw_noise = staticmethod(draw_noise)

    def __call__(self, p: Array, draft: Draft, noise: UniformNoise, **_: Any) -> Verdict:
        if self.fault == "swaps p and q":
            return ExactRule()(p.at[:, :-1].set(draft.q), draft._replace(q=p[:, :-1]), noise)
        if self.fault == "has a constant u":
            first = noise.test[:1]
            return ExactRule()(p, draft, noise._replace(test=jnp.broadcast_to(first, p.shape[:2])))
        n = ExactRule()(p, draft, noise).num_accepted
        if self.fault == "corrects from p":
            p_n = jnp.take_along_axis(p, n[:, None, None], axis=1)[:, 0]
            return Verdict(n, sample(p_n, noise.guess[:, -1]))
        if self.fault == "accepts everything":
            last = sample(p[:, -1], noise.token[:, -1])
            return Verdict(jnp.full_like(n, draft.tokens.shape[1]), last)
        raise AssertionError(self.fault)


@pytest.mark.parametrize(
    "fault", ["swaps p and q", "corrects from p", "accepts everything", "has a constant u"]
)
def test_a_wrong_rule_is_caught(fault: str) -> None:
    samples, expected = decode(rule=WrongRule(fault))
    assert p_value(samples, expected) < 1e-6
