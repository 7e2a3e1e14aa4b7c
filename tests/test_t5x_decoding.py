"""T5X's own decoding against ours, where it is installed."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_jax import (
    ModelDrafter,
    Sampling,
    autoregressive_decode,
    beam_decode,
    pretrained,
    speculative_decode,
)
from specdec_jax.beam import NOTHING
from specdec_jax.sampling import distribution
from specdec_jax.t5x_adapter import from_t5x, to_t5x, with_gather
from specdec_jax.t5x_decoding import t5x_beam_decode, t5x_decode
from specdec_jax.vocabulary import encode_sources
from tests.conftest import TINY, tiny_t5
from tests.t5x_models import CONFIGS, SMALL, T5_1_1, both, inputs_of

pytestmark = pytest.mark.usefixtures("t5x")

N = 24


@functools.cache
def greedy(config, eos_id):
    """What T5X decodes, and an id that it emits in the midst of its first row."""
    theirs, their_params, *_ = both(config)
    return t5x_decode(theirs, their_params, inputs_of(config), max_new_tokens=N, eos_id=eos_id)


def some_id(config):
    return int(greedy(config, -1).tokens[0, N // 3])


@CONFIGS
def test_greedy_tokens_and_scores_are_t5xs(config):
    *_, model, params = both(config)
    eos_id = some_id(config)
    want = greedy(config, eos_id)
    plain = autoregressive_decode(model, params, inputs_of(config), max_new_tokens=N, eos_id=eos_id)
    np.testing.assert_array_equal(plain.tokens, want.tokens)
    np.testing.assert_array_equal(plain.lengths, want.lengths)
    np.testing.assert_allclose(plain.scores, want.scores, rtol=1e-5, atol=1e-5)
    assert want.lengths.min() < N == greedy(config, -1).lengths.min()


@CONFIGS
def test_speculative_tokens_of_a_t5x_target_are_t5xs_own(config):
    *_, target, target_params = both(config)
    draft, draft_params = tiny_t5(8, dataclasses.replace(TINY, vocab_size=config.vocab_size))
    result = speculative_decode(
        target,
        target_params,
        ModelDrafter(draft),
        draft_params,
        inputs_of(config),
        gamma=3,
        max_new_tokens=N,
        eos_id=some_id(config),
    )
    np.testing.assert_array_equal(result.tokens, greedy(config, some_id(config)).tokens)


@CONFIGS
def test_hypotheses_and_scores_are_t5xs(config):
    theirs, their_params, model, params = both(config)
    num_beams = 3 if config == SMALL else 4
    options = {"num_beams": num_beams, "max_new_tokens": N, "eos_id": some_id(config)}
    want = t5x_beam_decode(theirs, their_params, inputs_of(config), **options)
    have = beam_decode(model, params, inputs_of(config), **options)
    assert np.all(np.diff(want.scores, axis=1) <= 0)
    np.testing.assert_allclose(have.scores, want.scores, rtol=1e-5, atol=1e-5)
    there = np.asarray(want.scores) > NOTHING / 2
    np.testing.assert_array_equal(have.tokens[there], want.tokens[there])
    np.testing.assert_array_equal(have.lengths, want.lengths)
    # Some of these hypotheses ended, others did not, and some there are not.
    assert np.all(want.lengths[there] > 0)
    assert want.lengths[there].min() < N


def test_a_gather_changes_only_how_tokens_are_looked_up():
    theirs, their_params, *_ = both(SMALL)
    inputs = inputs_of(SMALL)
    gathered = with_gather(theirs)
    assert gathered.module is not theirs.module
    assert from_t5x(gathered, their_params)[0].config == SMALL

    def products(model):
        encode = functools.partial(model.module.apply, enable_dropout=False, method="encode")
        jaxpr = str(jax.make_jaxpr(encode)({"params": their_params}, inputs))
        return jaxpr.count("dot_general"), jaxpr.count(" gather[")

    assert products(theirs) == (products(gathered)[0] + 1, products(gathered)[1] - 1)
    have = t5x_decode(gathered, their_params, inputs, max_new_tokens=N, eos_id=-1)
    want = greedy(SMALL, -1)
    np.testing.assert_array_equal(have.tokens, want.tokens)
    np.testing.assert_allclose(have.scores, want.scores, rtol=1e-5)


@pytest.mark.parametrize(
    "sampling", [Sampling(0.7), Sampling(1.0, top_k=5), Sampling(1.0, top_p=0.6)], ids=str
)
def test_samples_are_of_our_distribution(sampling):
    theirs, their_params, model, params = both(T5_1_1)
    rows = 2000
    inputs = jnp.tile(inputs_of(T5_1_1)[:1], (rows, 1))
    drawn = t5x_decode(
        theirs, their_params, inputs, jax.random.key(1), max_new_tokens=2, sampling=sampling
    )
    shifted = jnp.pad(drawn.tokens[:, :1], ((0, 0), (1, 0)))
    logits = model.module.apply({"params": params}, inputs, shifted)

    p = np.asarray(distribution(logits[0, 0], sampling))
    counts = np.bincount(np.asarray(drawn.tokens[:, 0]), minlength=len(p))
    assert counts[p == 0].sum() == 0
    likely = rows * p > 5
    chi2 = np.sum((counts - rows * p)[likely] ** 2 / (rows * p)[likely])
    assert chi2 < likely.sum() + 6 * np.sqrt(2 * likely.sum())

    # The score is of the unadjusted model; a row that ended with its first token has no other.
    log_p = jax.nn.log_softmax(logits)
    each = jnp.take_along_axis(log_p, drawn.tokens[..., None], axis=-1)[..., 0]
    each = jnp.where(jnp.arange(2) < drawn.lengths[:, None], each, 0.0)
    np.testing.assert_allclose(drawn.scores, each.sum(axis=-1), rtol=1e-4)


def test_arguments_that_t5x_does_not_take_are_refused():
    theirs, their_params, *_ = both(T5_1_1)
    inputs = inputs_of(T5_1_1)
    decode = functools.partial(t5x_decode, theirs, their_params)
    with pytest.raises(ValueError, match="top_k or with top_p"):
        decode(inputs, jax.random.key(0), sampling=Sampling(1.0, top_k=2, top_p=0.5))
    with pytest.raises(ValueError, match="one key"):
        decode(inputs, jax.random.split(jax.random.key(0), 4), sampling=Sampling())
    with pytest.raises(ValueError, match="Sampling needs a key"):
        decode(inputs, sampling=Sampling())
    with pytest.raises(ValueError, match="inputs hold the id 99"):
        decode(jnp.full((1, 2), 99))
    with pytest.raises(ValueError, match="num_beams"):
        t5x_beam_decode(theirs, their_params, inputs, num_beams=0)


def test_the_shipped_pair_speculates_as_t5x_decodes():
    pair = pretrained.load()
    theirs, their_params = to_t5x(pair.target, pair.target_params)
    lines = {row["task"]: row["inputs"] for row in pretrained.held_out()}
    inputs = encode_sources(pair.vocabulary, list(lines.values()), 64)
    want = t5x_decode(theirs, their_params, inputs)
    fast = speculative_decode(
        pair.target, pair.target_params, pair.drafter, pair.draft_params, inputs, gamma=7
    )
    np.testing.assert_array_equal(fast.tokens, want.tokens)
    np.testing.assert_array_equal(fast.lengths, want.lengths)
    np.testing.assert_allclose(fast.scores, want.scores, rtol=1e-4, atol=1e-4)
    assert want.lengths.min() > 3
    assert want.lengths.max() < 64  # they all end
