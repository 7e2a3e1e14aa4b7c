"""Every drafter with every rule, sampling and batch size, from one table.

What applies is tested: at temperature 0 the tokens of the target alone; above it their
enumerated distribution; by the Gumbel rule both, whatever the draft; of the lenient rule
its bound.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
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
    Drafter,
    EarlyExitDrafter,
    ExactRule,
    FixedGamma,
    GammaPolicy,
    GumbelRule,
    LenientRule,
    LookupDrafter,
    Model,
    ModelDrafter,
    MultiDraftRule,
    Sampling,
    VerifyRule,
    autoregressive_decode,
    speculative_decode,
)
from specdec_jax.ngram import count_ngrams
from specdec_jax.types import Params

from .conftest import TINY, TableModel, table_params, tiny_t5
from .test_distribution import EOS, enumerate_sequences, p_value, standardized

V, LENGTH, SOURCE = 5, 3, 3
SAMPLES = 12_000
TARGET, TARGET_PARAMS = TableModel(V), table_params(0, V, scale=1.0)
NEAR_PARAMS = TARGET_PARAMS + table_params(1, V, scale=0.7)


@dataclasses.dataclass(frozen=True)
class Setting:
    """A target, and a drafter for it."""

    target: Model
    target_params: Params
    drafter: Drafter
    draft_params: Params

    def decode(self, inputs: Array, keys: Array, **settings: Any) -> Array:
        return speculative_decode(
            self.target, self.target_params, self.drafter, self.draft_params, inputs, keys,
            **{"max_new_tokens": LENGTH, "eos_id": EOS, "gamma": 2} | settings,
        ).tokens  # fmt: skip

    def plain(self, inputs: Array, keys: Array, **settings: Any) -> Array:
        return autoregressive_decode(
            self.target, self.target_params, inputs, keys,
            **{"max_new_tokens": LENGTH, "eos_id": EOS} | settings,
        ).tokens  # fmt: skip


def _table(drafter: Drafter, draft_params: Params = NEAR_PARAMS) -> Setting:
    return Setting(TARGET, TARGET_PARAMS, drafter, draft_params)


def _early_exit() -> Setting:
    config = dataclasses.replace(TINY, vocab_size=V, num_decoder_layers=2)
    target, params = tiny_t5(0, config)
    return Setting(target, params, EarlyExitDrafter(target, 1), params)


SMALLER = TableModel(V - 1)
MODEL = ModelDrafter(TARGET)


def _ngrams(order: int) -> Setting:
    """n-grams of texts in which every token has a favourite successor."""
    rng = np.random.default_rng(0)
    texts = [(np.arange(4) * rng.integers(1, 3) + rng.integers(5)) % V for _ in range(200)]
    model, table = count_ngrams(texts, vocab_size=V, order=order, min_count=2)
    return _table(ModelDrafter(model), table)


DRAFTERS = {
    "model": _table(MODEL),
    "smaller vocabulary": _table(ModelDrafter(SMALLER), NEAR_PARAMS[:, :-1, :-1, :-1]),
    "argmax": _table(ModelDrafter(TARGET, Sampling(0.0))),
    "lookup": _table(LookupDrafter(V), ()),
    "lookup, else model": _table(LookupDrafter(V, min_ngram=2, fallback=MODEL)),
    "early exit": _early_exit(),
    "unigram": _ngrams(1),
    "bigram": _ngrams(2),
    "trigram": _ngrams(3),
}
RULES: dict[str, VerifyRule] = {
    "exact": ExactRule(),
    "lenient": LenientRule(0.5),
    "gumbel": GumbelRule(),
    "multi-draft": MultiDraftRule(3),
}
SAMPLINGS = {
    "greedy": Sampling(0.0),
    "temperature 1": Sampling(1.0),
    "top-k": Sampling(0.8, top_k=3),
    "top-p": Sampling(1.2, top_p=0.7),
}
GAMMAS: dict[str, GammaPolicy] = {
    "fixed": FixedGamma(3),
    "adaptive": AdaptiveGamma(jnp.asarray([1.0, 1.4, 2.2]), (0, 1, 3)),
    "confident": ConfidentGamma((0, 1, 3), 0.5),
    "assisted": AssistedGamma((1, 3), 2),
}


@functools.cache
def logits_after(name: str) -> dict[tuple[int, ...], np.ndarray]:
    """The target's logits after every prefix of the source 3."""
    setting = DRAFTERS[name]
    prefixes = [()] + [p for n in range(1, LENGTH) for p in itertools.product(range(V), repeat=n)]
    fed = np.zeros((len(prefixes), LENGTH), np.int32)
    for row, prefix in zip(fed, prefixes, strict=True):
        row[1 : len(prefix) + 1] = prefix
    inputs = jnp.full((len(prefixes), 1), SOURCE)
    cache = setting.target.prefill(setting.target_params, inputs, LENGTH)
    places = jnp.broadcast_to(jnp.arange(LENGTH), fed.shape)
    logits, _ = setting.target.extend(setting.target_params, cache, jnp.asarray(fed), places)
    return {p: row[len(p)] for p, row in zip(prefixes, np.asarray(logits), strict=True)}


@functools.cache
def expected(name: str, sampling: Sampling) -> dict[tuple[int, ...], float]:
    return enumerate_sequences(logits_after(name).__getitem__, LENGTH, sampling)


def sample(decode: Callable[..., Array], batch: int, **settings: Any) -> np.ndarray:
    """The tokens of many decodes of `batch` rows."""
    inputs = jnp.full((batch, 1), SOURCE)
    keys = jax.random.split(jax.random.key(0), (SAMPLES // batch, batch))
    decodes = jax.jit(jax.vmap(lambda keys: decode(inputs, keys, **settings))).lower(keys)
    # Most of the time goes to compilation: as little of it as will do.
    tokens = decodes.compile({"xla_backend_optimization_level": 0})(keys)
    return np.asarray(tokens).reshape(-1, LENGTH)


def check(name: str, rule: VerifyRule, sampling: Sampling, batch: int, **settings: Any) -> None:
    setting = DRAFTERS[name]
    tokens = sample(setting.decode, batch, rule=rule, sampling=sampling, **settings)
    if isinstance(rule, LenientRule):
        check_lenience(name, rule.lenience, sampling, tokens)
        return
    if isinstance(rule, GumbelRule):
        plain = sample(setting.plain, batch, rule=rule, sampling=sampling)
        np.testing.assert_array_equal(tokens, plain)
    # At temperature 0 a single sequence is possible: the target's own.
    assert p_value(tokens, expected(name, sampling)) > 1e-4


def check_lenience(name: str, lenience: float, sampling: Sampling, tokens: np.ndarray) -> None:
    """After every prefix, no token comes more often than p / l; greedily, none below l max p."""
    for at in range(LENGTH):
        for prefix in {tuple(row) for row in tokens[:, :at].tolist()}:
            if EOS in prefix:
                continue
            drawn = tokens[(tokens[:, :at] == prefix).all(axis=1), at]
            share = np.bincount(drawn, minlength=V) / len(drawn)
            logits = logits_after(name)[prefix]
            if sampling.temperature == 0:
                p = standardized(logits, Sampling(1.0))
                assert (p[share > 0] >= lenience * p.max() * (1 - 1e-5)).all()
                continue
            bound = np.minimum(standardized(logits, sampling) / lenience, 1)
            spread = np.sqrt(bound * (1 - bound) / len(drawn))
            assert (share <= bound + 4.5 * spread).all(), (prefix, share, bound)


def _every_combination() -> Iterator[Any]:
    """The table; what differs from the rest in one thing less is left to `make slow`."""
    for drafter, rule, sampling in itertools.product(DRAFTERS, RULES, SAMPLINGS):
        for batch in (1, 4):
            plain = sampling == "temperature 1" or (rule, sampling) == ("exact", "greedy")
            often = batch == 4 and (drafter == "model" or plain)
            marks = [] if often else [pytest.mark.slow]
            yield pytest.param(drafter, rule, sampling, batch, marks=marks)


@pytest.mark.parametrize(("drafter", "rule", "sampling", "batch"), [*_every_combination()])
def test_every_combination(drafter: str, rule: str, sampling: str, batch: int) -> None:
    check(drafter, RULES[rule], SAMPLINGS[sampling], batch=batch)


@pytest.mark.parametrize(
    ("rule", "sampling"),
    [
        pytest.param(rule, sampling, marks=[] if rule in often else pytest.mark.slow)
        for sampling, often in (("greedy", ["exact"]), ("temperature 1", ["exact", "gumbel"]))
        for rule in RULES
    ],
)
@pytest.mark.parametrize("gamma", GAMMAS)
def test_every_gamma_policy(gamma: str, rule: str, sampling: str) -> None:
    check("model", RULES[rule], SAMPLINGS[sampling], batch=4, gamma=GAMMAS[gamma])
