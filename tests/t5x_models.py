"""T5X models with random parameters, and the same as ours; for the tests that T5X takes part in."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import Array

from specdec_jax.t5 import T5Config
from specdec_jax.t5x_adapter import from_t5x, t5x_model
from tests.conftest import TINY, sources

T5_1_1 = dataclasses.replace(TINY, num_decoder_layers=2)
T5_1_0 = dataclasses.replace(
    TINY, num_encoder_layers=2, mlp_activations=("relu",), logits_via_embedding=True
)
SMALL = dataclasses.replace(
    T5_1_1, vocab_size=512, emb_dim=96, num_heads=6, num_encoder_layers=4, head_dim=32, mlp_dim=160
)
CONFIGS = pytest.mark.parametrize("config", [T5_1_1, T5_1_0, SMALL], ids=["1.1", "1.0", "small"])
# A little more than T5X draws, or the greedy output would hardly vary.
SCALE = {T5_1_1: 2.0, T5_1_0: 2.0, SMALL: 1.5}


@functools.cache
def both(config: T5Config) -> tuple[Any, Any, Any, Any]:
    """A T5X model, its parameters, the model as ours, and its parameters."""
    theirs = t5x_model(config)
    shapes = {"encoder_input_tokens": (1, 2), "decoder_input_tokens": (1, 2)}
    dtypes = dict.fromkeys(shapes, jnp.int32)
    drawn = theirs.get_initial_variables(jax.random.key(5), shapes, dtypes)["params"]
    their_params = jax.tree.map(lambda x: x * (SCALE[config] if x.ndim > 1 else 1), drawn)
    return theirs, their_params, *from_t5x(theirs, their_params)


def inputs_of(config: T5Config) -> Array:
    """Four sources of a model's vocabulary."""
    return sources(4, 12, config.vocab_size)
