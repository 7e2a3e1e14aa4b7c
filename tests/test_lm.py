"""The decoder-only language model: its cache against the uncached forward, and its decodes."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from specdec_jax import checkpoints
from specdec_jax.beam import beam_decode, speculative_beam_decode
from specdec_jax.decoding import autoregressive_decode, speculative_decode
from specdec_jax.drafters.model import ModelDrafter
from specdec_jax.drafters.prompt_lookup import LookupDrafter
from specdec_jax.lm import LM, LMConfig
from specdec_jax.model import LMModel
from specdec_jax.ngram import count_ngrams
from specdec_jax.sampling import Sampling
from specdec_jax.verification import MultiDraftRule

CONFIG = LMConfig(vocab_size=40, emb_dim=16, num_heads=2, num_layers=2, head_dim=8, mlp_dim=24)
EOS = 1
PROMPTS = jnp.array(  # with and without an end of sequence, and two that are empty
    [[5, 9, 7, EOS, 0, 0], [3, 8, 2, 6, 4, EOS], [EOS, 0, 0, 0, 0, 0], [0] * 6, [4, 4, 2, 0, 0, 0]]
)
LENGTHS = (3, 5, 0, 0, 3)


@functools.cache
def params(seed: int, config: LMConfig = CONFIG) -> Any:
    """A random model whose output varies."""
    rng = np.random.default_rng(seed)
    shapes = checkpoints.expected_params(config)
    return jax.tree.map(lambda x: (0.3 * rng.normal(size=x.shape)).astype(np.float32), shapes)


@functools.cache
def tiny(seed: int, feature_major: bool = True, noise: float = 0.0) -> tuple[LMModel, Any]:
    """A random language model; with noise, one that is near it."""
    model = LMModel(CONFIG, feature_major)
    drawn = jax.tree.map(lambda x, n: x + noise * n, params(seed), params(seed + 1))
    return model, model.prepare(drawn)


def joined(row: int, continuation: Array) -> Array:
    """float32[k, V], of the uncached forward over prompt and continuation as one sequence."""
    n, k = LENGTHS[row], len(continuation)
    # The loop's own start token is not in the sequence: the prompt's last stands there.
    read = jnp.concatenate([jnp.zeros(1, jnp.int32), PROMPTS[row, :n], continuation[1:]])
    logits = LM(CONFIG).apply({"params": params(0)}, jnp.zeros((1, 1), jnp.int32), read[None])
    assert isinstance(logits, jax.Array)
    return logits[0, -k:]


CONTINUATION = jnp.asarray(np.random.default_rng(0).integers(2, 40, (5, 8))).at[:, 0].set(0)


@pytest.mark.parametrize("feature_major", [False, True])
def test_extending_by_k_is_the_uncached_forward(feature_major: bool) -> None:
    model, weights = tiny(0, feature_major)
    want = jnp.stack([joined(row, CONTINUATION[row]) for row in range(5)])
    taught = model.module.apply({"params": weights}, PROMPTS, CONTINUATION)
    np.testing.assert_allclose(taught, want, atol=2e-4)
    prefill, extend = jax.jit(model.prefill, static_argnums=2), jax.jit(model.extend)
    for k in (1, 4):
        cache = prefill(weights, PROMPTS, 12)
        for at in range(0, 8, k):
            positions = jnp.broadcast_to(at + jnp.arange(k), (5, k))
            logits, cache = extend(weights, cache, CONTINUATION[:, at : at + k], positions)
            np.testing.assert_allclose(logits, want[:, at : at + k], atol=2e-4)


def test_a_rejected_guess_leaves_no_trace() -> None:
    model, weights = tiny(0)
    extend = jax.jit(model.extend)
    cache = model.prefill(weights, PROMPTS, 12)
    positions = jnp.broadcast_to(jnp.arange(4), (5, 4))
    _, cache = extend(weights, cache, CONTINUATION[:, :4].at[:, 2:].set(33), positions)
    for at in (0, 2):  # position 0 is fed again too
        logits, cache = extend(weights, cache, CONTINUATION[:, at : at + 4], at + positions)
    want = jnp.stack([joined(row, CONTINUATION[row])[2:6] for row in range(5)])
    np.testing.assert_allclose(logits, want, atol=2e-4)


@functools.cache
def plain() -> Any:
    model, weights = tiny(0)
    return autoregressive_decode(model, weights, PROMPTS, max_new_tokens=10)


def _drafters() -> dict[str, tuple[Any, Any]]:
    texts = np.random.default_rng(1).integers(2, 40, (30, 8)).tolist()
    ngrams, table = count_ngrams(texts, vocab_size=40, order=2, min_count=1)
    return {
        "lm": (ModelDrafter(tiny(0)[0]), tiny(0, noise=0.1)[1]),
        "bigram": (ModelDrafter(ngrams), table),
        "lookup": (LookupDrafter(40), ()),
    }


@pytest.mark.parametrize(
    "name", ["lm", *(pytest.param(name, marks=pytest.mark.slow) for name in ("bigram", "lookup"))]
)
def test_greedy_speculative_decoding_is_greedy_decoding(name: str) -> None:
    model, weights = tiny(0)
    drafter, draft_params = _drafters()[name]
    result = speculative_decode(
        model, weights, drafter, draft_params, PROMPTS, gamma=3, max_new_tokens=10
    )
    np.testing.assert_array_equal(result.tokens, plain().tokens)
    np.testing.assert_allclose(result.log_probs, plain().log_probs, atol=1e-3)
    assert len(np.unique(plain().tokens)) > 5, "the model says more than one thing"
    if name == "lm":
        assert 0 < int(result.accepted.sum()) < int(result.examined.sum())


def test_a_row_in_a_batch_is_the_row_alone() -> None:
    model, weights = tiny(0)
    for row, n in enumerate(LENGTHS):
        alone = PROMPTS[row : row + 1, : max(n, 1)]  # not even padded
        result = autoregressive_decode(model, weights, alone, max_new_tokens=10)
        np.testing.assert_array_equal(result.tokens[0], plain().tokens[row])


@pytest.mark.slow
def test_speculative_beam_search_is_beam_search() -> None:
    model, weights = tiny(0)
    _, draft = tiny(0, noise=0.1)
    want = beam_decode(model, weights, PROMPTS, num_beams=2, max_new_tokens=8)
    got = speculative_beam_decode(
        model, weights, model, draft, PROMPTS, num_beams=2, gamma=2, max_new_tokens=8
    )
    np.testing.assert_array_equal(got.tokens, want.tokens)
    np.testing.assert_allclose(got.scores, want.scores, atol=1e-3)
    assert int(got.target_calls) < int(want.target_calls)
    one = beam_decode(model, weights, PROMPTS[:1, :3], num_beams=2, max_new_tokens=8)
    np.testing.assert_array_equal(one.tokens[0], want.tokens[0])


@pytest.mark.slow
def test_of_several_drafts_the_chosen_one_goes_on() -> None:
    model, weights = tiny(0)
    _, draft = tiny(0, noise=0.1)
    result = speculative_decode(
        model,
        weights,
        ModelDrafter(model),
        draft,
        PROMPTS,
        key=jax.random.key(0),
        gamma=3,
        max_new_tokens=10,
        sampling=Sampling(temperature=1.0),
        rule=MultiDraftRule(2),
    )
    # The scores the decode kept are those of its tokens: the caches held the right prefixes.
    for row in range(5):
        size = int(result.lengths[row])
        tokens = result.tokens[row, :size]
        read = jnp.concatenate([jnp.zeros(1, jnp.int32), result.tokens[row, :9]])
        log_p = jax.nn.log_softmax(joined(row, read))[jnp.arange(size), tokens]
        np.testing.assert_allclose(result.log_probs[row, :size], log_p, atol=1e-3)


def test_parameter_names_are_t5xs_decoder_only() -> None:
    from specdec_jax.stored import flat

    layer = {
        *(f"self_attention/{name}/kernel" for name in ("query", "key", "value", "out")),
        *("pre_self_attention_layer_norm/scale", "pre_mlp_layer_norm/scale"),
        *("mlp/wi/kernel", "mlp/wo/kernel"),
    }
    want = {f"decoder/layers_{i}/{name}" for i in range(2) for name in layer}
    want |= {"decoder/token_embedder/embedding", "decoder/relpos_bias/rel_embedding"}
    assert set(flat(checkpoints.expected_params(CONFIG))) == want | {"decoder/decoder_norm/scale"}
