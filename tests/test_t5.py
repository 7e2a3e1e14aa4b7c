"""T5 against T5X's own numbers, and its cache against the uncached forward pass."""

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from specdec_jax import (
    DecodeResult,
    ModelDrafter,
    T5Config,
    T5Model,
    autoregressive_decode,
    speculative_decode,
    t5_model,
)
from specdec_jax.layers import prepare_kernels, relative_position_bucket, restore_kernels
from specdec_jax.t5 import T5

from .conftest import TINY, sources, tiny_t5

ORIENTATIONS = pytest.mark.parametrize("feature_major", [False, True])


@ORIENTATIONS
def test_logits_are_t5xs(golden: Any, feature_major: bool) -> None:
    config, params, arrays = golden
    model = T5Model(config, feature_major)
    logits = jax.jit(model.module.apply)(
        {"params": model.prepare(params)},
        arrays["encoder_input_tokens"],
        arrays["decoder_input_tokens"],
    )
    np.testing.assert_allclose(
        logits[:, arrays["logits_positions"]], arrays["logits"], rtol=0, atol=1e-4
    )


@ORIENTATIONS
def test_greedy_tokens_and_scores_are_t5xs(golden: Any, feature_major: bool) -> None:
    config, params, arrays = golden
    model = T5Model(config, feature_major)
    result = autoregressive_decode(
        model,
        model.prepare(params),
        jnp.asarray(arrays["encoder_input_tokens"]),
        max_new_tokens=arrays["greedy_tokens"].shape[1],
    )
    np.testing.assert_array_equal(result.tokens, arrays["greedy_tokens"])
    np.testing.assert_allclose(result.scores, arrays["greedy_log_probs"], rtol=0, atol=1e-4)


@ORIENTATIONS
def test_parameter_tree_is_t5xs(golden: Any, feature_major: bool) -> None:
    config, params, _ = golden
    module = T5(config, feature_major)
    tokens = jnp.ones((1, 2), jnp.int32)
    made = jax.eval_shape(module.init, jax.random.key(0), tokens, tokens)["params"]
    read = prepare_kernels(params, feature_major=feature_major, join=False)
    assert jax.tree.map(jnp.shape, made) == jax.tree.map(jnp.shape, read)


@ORIENTATIONS
def test_restored_parameters_are_the_checkpoints(golden: Any, feature_major: bool) -> None:
    _, params, _ = golden
    prepared = prepare_kernels(params, feature_major=feature_major)
    joined = "query_key_value" in prepared["encoder"]["layers_0"]["attention"]
    assert joined == feature_major
    restored = restore_kernels(prepared, feature_major=feature_major)
    jax.tree.map(np.testing.assert_array_equal, restored, params)


def test_joined_kernels_compute_what_they_do_apart(golden: Any) -> None:
    config, params, arrays = golden
    module = T5(config, feature_major=True)
    apart, joined = (prepare_kernels(params, feature_major=True, join=j) for j in (False, True))
    assert "wi_01" not in apart["decoder"]["layers_0"]["mlp"]
    inputs = jnp.asarray(arrays["encoder_input_tokens"])
    tokens = jnp.asarray(arrays["decoder_input_tokens"])[:, :16]
    logits = [module.apply({"params": p}, inputs, tokens) for p in (apart, joined)]
    np.testing.assert_allclose(*logits, rtol=0, atol=1e-4)


@ORIENTATIONS
@pytest.mark.parametrize("step", [1, 3, 8])
def test_extending_by_k_is_the_uncached_forward(
    golden: Any, feature_major: bool, step: int
) -> None:
    config, params, arrays = golden
    model = T5Model(config, feature_major)
    params = model.prepare(params)
    inputs = jnp.asarray(arrays["encoder_input_tokens"])
    tokens = jnp.asarray(arrays["decoder_input_tokens"])[:, :48]
    whole = jax.jit(model.module.apply)({"params": params}, inputs, tokens)
    # Each row at its own place, and more room than is used.
    cache = jax.jit(model.prefill, static_argnums=2)(params, inputs, 60)
    extend = jax.jit(model.extend)
    start = np.array([0, 2, 4, 6])
    for at in range(8):  # catch up token by token, at unequal positions
        positions = jnp.asarray(np.minimum(at, start))[:, None]
        _, cache = extend(params, cache, jnp.take_along_axis(tokens, positions, 1), positions)
    for at in range(0, 24, step):
        positions = jnp.asarray(start[:, None] + at + np.arange(step))
        logits, cache = extend(params, cache, jnp.take_along_axis(tokens, positions, 1), positions)
        expected = jnp.take_along_axis(whole, positions[..., None], 1)
        np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4)


def test_a_rejected_guess_leaves_no_trace(golden: Any) -> None:
    config, params, arrays = golden
    model = t5_model(config)
    params = model.prepare(params)
    inputs = jnp.asarray(arrays["encoder_input_tokens"])
    tokens = jnp.asarray(arrays["decoder_input_tokens"])
    positions = jnp.broadcast_to(jnp.arange(6), (4, 6))
    cache = model.prefill(params, inputs, 12)
    _, cache = model.extend(params, cache, tokens[:, :6], positions)
    clean, _ = model.extend(params, cache, tokens[:, 6:8], positions[:, :2] + 6)
    _, dirty = model.extend(params, cache, tokens[:, 40:46], positions + 6)
    again, _ = model.extend(params, dirty, tokens[:, 6:8], positions[:, :2] + 6)
    np.testing.assert_array_equal(clean, again)


def test_padding_of_the_source_changes_nothing() -> None:
    model, params = tiny_t5(0)
    inputs = sources(3, 9, TINY.vocab_size)
    padded = jnp.pad(inputs, ((0, 0), (0, 7)))
    short = autoregressive_decode(model, params, inputs, max_new_tokens=12)
    long = autoregressive_decode(model, params, padded, max_new_tokens=12)
    np.testing.assert_array_equal(short.tokens, long.tokens)
    np.testing.assert_allclose(short.log_probs, long.log_probs, atol=1e-5)


def test_both_orientations_are_one_model() -> None:
    columns, column_params = tiny_t5(3, TINY, True)
    rows, row_params = tiny_t5(3, TINY, False)
    inputs = sources(2, 7, TINY.vocab_size)
    one, other = (
        jax.jit(model.module.apply)({"params": params}, inputs, inputs)
        for model, params in ((columns, column_params), (rows, row_params))
    )
    np.testing.assert_allclose(one, other, atol=1e-5)


def test_bfloat16_activations_give_float32_logits_near_the_float32_ones() -> None:
    config = dataclasses.replace(TINY, dtype="bfloat16")
    model, params = tiny_t5(1)
    inputs = sources(2, 7, TINY.vocab_size)
    exact = jax.jit(model.module.apply)({"params": params}, inputs, inputs)
    narrow_params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    for given in (params, narrow_params):
        near = T5Model(config, True).module.apply({"params": given}, inputs, inputs)
        assert near.dtype == jnp.float32
        assert 0 < np.abs(near - exact).max() < 0.1 * np.abs(exact).max()


def test_dropout_is_drawn_only_when_training() -> None:
    module = T5(dataclasses.replace(TINY, dropout_rate=0.5))
    inputs = sources(2, 7, TINY.vocab_size)
    params = jax.jit(module.init)(jax.random.key(0), inputs, inputs)
    still = module.apply(params, inputs, inputs)
    drawn = [
        module.apply(
            params, inputs, inputs, deterministic=False, rngs={"dropout": jax.random.key(seed)}
        )
        for seed in (1, 2)
    ]
    np.testing.assert_array_equal(still, T5(TINY).apply(params, inputs, inputs))
    assert not np.allclose(drawn[0], drawn[1])


@pytest.mark.parametrize("bidirectional", [False, True])
def test_buckets_cover_their_range_and_grow_with_distance(bidirectional: bool) -> None:
    past = relative_position_bucket(-jnp.arange(300), bidirectional=bidirectional)
    exact = 8 if bidirectional else 16
    assert list(past[:exact]) == list(range(exact))
    assert (jnp.diff(past) >= 0).all()
    assert past[-1] == past[128] == 2 * exact - 1
    future = relative_position_bucket(jnp.arange(1, 300), bidirectional=bidirectional)
    assert (future >= 16).all() if bidirectional else (future == 0).all()


@pytest.mark.parametrize(
    "field",
    [
        {"vocab_size": "80"},
        {"num_decoder_layers": 0},
        {"head_dim": 8.0},
        {"mlp_activations": ("nope",)},
        {"mlp_activations": ()},
        {"dtype": "float99"},
        {"dropout_rate": 1.0},
    ],
)
def test_a_config_that_is_none_is_refused(field: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(field))):
        T5Config(**{"vocab_size": 8} | field)


def test_lists_in_a_config_are_hashable_and_equal() -> None:
    # gin and JSON give lists; a config must still be a static argument of a jit.
    listed = T5Config(vocab_size=8, mlp_activations=["relu"])  # type: ignore[arg-type]
    assert hash(listed) == hash(T5Config(vocab_size=8, mlp_activations=("relu",)))


def test_a_selected_prefix_goes_on_in_another_row() -> None:
    model, params = tiny_t5(0)
    inputs = jnp.repeat(sources(1, 8, 40), 3, axis=0)
    prefixes = jnp.asarray([[0, 5], [0, 7], [0, 9]])
    places = jnp.broadcast_to(jnp.arange(2), (3, 2))
    _, cache = model.extend(params, model.prefill(params, inputs, 4), prefixes, places)
    rows, last = jnp.asarray([2, 0, 0]), jnp.full((3, 1), 3)
    moved, _ = model.extend(params, model.select(cache, rows), last, last - 1)
    alone, _ = model.extend(params, cache, last, last - 1)
    np.testing.assert_array_equal(moved, alone[rows])


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("gamma", [0, 3])
def test_a_loop_copies_no_cache(gamma: int, batch: int) -> None:
    model, params = tiny_t5(0)
    drafter, draft_params = ModelDrafter(tiny_t5(1)[0]), tiny_t5(1)[1]
    n = 100

    def decode(params: Any, draft_params: Any, inputs: Array) -> DecodeResult:
        if gamma == 0:
            return autoregressive_decode(model, params, inputs, max_new_tokens=n)
        return speculative_decode(
            model, params, drafter, draft_params, inputs, gamma=gamma, max_new_tokens=n
        )

    inputs = sources(batch, 9, TINY.vocab_size)
    text = jax.jit(decode).lower(params, draft_params, inputs).compile().as_text()
    loops = text[: text.index("\nENTRY")]  # what is around them may copy what it begins with
    slots = n + 1 if gamma == 0 else n + gamma + 1
    cache = rf"f32\[{batch},{TINY.num_heads},{slots},{TINY.head_dim}\]"
    assert re.search(cache, loops)
    assert re.findall(rf"{cache}\S* copy\(.*", loops) == []
