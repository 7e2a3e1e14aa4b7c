"""The target's own first layers as a draft."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_jax import (
    EarlyExitDrafter,
    ModelDrafter,
    T5Model,
    autoregressive_decode,
    speculative_decode,
)

from .conftest import TINY, sources, tiny_t5

CONFIG = dataclasses.replace(TINY, num_decoder_layers=3)
TARGET, PARAMS = tiny_t5(0, CONFIG)
INPUTS = sources(3, 8, TINY.vocab_size)
SETTINGS = {"gamma": 3, "max_new_tokens": 16, "eos_id": -1}


@pytest.mark.parametrize("layers", [1, 2])
def test_it_guesses_as_a_model_of_so_many_layers(layers: int) -> None:
    exit_early = EarlyExitDrafter(TARGET, layers)
    result = speculative_decode(TARGET, PARAMS, exit_early, PARAMS, INPUTS, **SETTINGS)
    alone = autoregressive_decode(TARGET, PARAMS, INPUTS, max_new_tokens=16, eos_id=-1)
    np.testing.assert_array_equal(result.tokens, alone.tokens)

    config = dataclasses.replace(CONFIG, num_decoder_layers=layers)
    model = ModelDrafter(T5Model(config, TARGET.feature_major))
    expected = speculative_decode(TARGET, PARAMS, model, PARAMS, INPUTS, **SETTINGS)
    for name in ("drafted", "examined", "accepted", "rounds"):
        np.testing.assert_array_equal(getattr(result, name), getattr(expected, name))


def test_the_source_is_read_once() -> None:
    def program(drafter: object) -> str:
        def run(params: object) -> jax.Array:
            return speculative_decode(TARGET, params, drafter, params, INPUTS, **SETTINGS).tokens

        return jax.jit(run).lower(PARAMS).as_text()

    config = dataclasses.replace(CONFIG, num_decoder_layers=1)
    own = program(ModelDrafter(T5Model(config, TARGET.feature_major))).count("dot_general")
    shared = program(EarlyExitDrafter(TARGET, 1)).count("dot_general")
    reading = jax.jit(lambda p: TARGET.prefill(p, INPUTS, 20)).lower(PARAMS).as_text()
    # All products of the encoder, and the layer's keys and values of the source.
    assert own - shared == reading.count("dot_general") - 4


@pytest.mark.parametrize("layers", [0, 3, 1.5, True])
def test_layers_that_there_are_not(layers: object) -> None:
    with pytest.raises(ValueError, match="1 to 2 of the target's 3 decoder layers"):
        EarlyExitDrafter(TARGET, layers)


def test_one_layer_leaves_none_to_skip() -> None:
    target, _ = tiny_t5(0)
    with pytest.raises(ValueError, match="1 to 0 of the target's 1"):
        EarlyExitDrafter(target, 1)
    assert jnp.asarray(INPUTS).shape == (3, 8)
