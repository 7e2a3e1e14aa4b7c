"""Small models that every test shares: a table whose decode can be enumerated, and tiny T5s."""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import unflatten_dict
from jax import Array
from jax.experimental.compilation_cache import compilation_cache

from specdec_jax.model import T5Model
from specdec_jax.t5 import T5, T5Config
from specdec_jax.t5x_adapter import require_t5x
from specdec_jax.types import Tree

DATA = pathlib.Path(__file__).parent / "data"


@pytest.fixture(autouse=True, scope="session")
def _compile_anew() -> Iterator[None]:
    """Keeps the tests of a process out of the user's cache, which the command switches on."""
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # it may have been asked, and remembers the answer
    yield
    jax.config.update("jax_enable_compilation_cache", True)


@pytest.fixture(autouse=True, scope="module")
def _forget_programs() -> Iterator[None]:
    """Frees a module's programs: each takes some 20 of the 65,530 maps that Linux allows.

    XLA aborts, at whatever it compiles or serializes next, when a process has no map left.
    """
    yield
    jax.clear_caches()


@dataclasses.dataclass(frozen=True)
class TableModel:
    """A `Model` that looks its logits up: float32[S, V, V, V], of place and last two tokens.

    The place is `(source + position) % S`. Of order 2, so that it reads its cache: a slot
    that is missing or stale changes the output.
    """

    vocab_size: int

    def prefill(self, params: Array, inputs: Array, length: int) -> tuple[Array, Array]:
        return inputs[:, 0], jnp.full((inputs.shape[0], length), -1, jnp.int32)

    def extend(
        self, params: Array, cache: tuple[Array, Array], tokens: Array, positions: Array
    ) -> tuple[Array, Any]:
        source, slots = cache
        rows = jnp.arange(tokens.shape[0])[:, None]
        slots = slots.at[rows, positions].set(tokens)
        previous = jnp.where(positions > 0, slots[rows, positions - 1], 0)
        # A slot that nobody wrote gives NaN, which no test lets pass.
        place = (source[:, None] + positions) % params.shape[0]
        logits = jnp.where((previous >= 0)[..., None], params[place, previous, tokens], jnp.nan)
        return logits, (source, slots)

    def extend_tree(
        self, params: Array, cache: tuple[Array, Array], tokens: Array, positions: Array, tree: Tree
    ) -> tuple[Array, Any]:
        source, slots = cache
        rows, places = jnp.arange(tokens.shape[0])[:, None], jnp.arange(tokens.shape[1])
        slots = slots.at[rows, tree.start[:, None] + places].set(tokens)
        # The token before is the one in sight at the position before.
        before = tree.visible & (tree.positions[:, None] == positions[..., None] - 1)
        previous = jnp.sum(jnp.where(before, slots[:, None], 0), axis=-1)
        is_one = jnp.sum(before, axis=-1) == (positions > 0)
        place = (source[:, None] + positions) % params.shape[0]
        sound = is_one & (previous >= 0)
        logits = jnp.where(sound[..., None], params[place, previous, tokens], jnp.nan)
        return logits, (source, slots)

    def move(self, cache: tuple[Array, Array], slots: Array, start: Array) -> tuple[Array, Array]:
        source, held = cache
        rows = jnp.arange(len(start))[:, None]
        places = start[:, None] + jnp.arange(slots.shape[1])
        return source, held.at[rows, places].set(held[rows, slots])

    def select(self, cache: tuple[Array, Array], rows: Array) -> tuple[Array, Array]:
        source, slots = cache
        return source, slots[rows]


def table_params(seed: int, vocab_size: int, places: int = 7, scale: float = 2.0) -> Array:
    """Random logits for a `TableModel`."""
    shape = (places, vocab_size, vocab_size, vocab_size)
    return scale * jax.random.normal(jax.random.key(seed), shape)


TINY = T5Config(
    vocab_size=40,
    emb_dim=16,
    num_heads=2,
    num_encoder_layers=1,
    num_decoder_layers=1,
    head_dim=8,
    mlp_dim=24,
)


@functools.cache
def tiny_t5(seed: int, config: T5Config = TINY, feature_major: bool = True) -> tuple[T5Model, Any]:
    """A T5 with random parameters, wide enough that its greedy output varies."""
    model = T5Model(config, feature_major)
    tokens = jnp.ones((1, 2), jnp.int32)
    shapes = jax.eval_shape(T5(config).init, jax.random.key(0), tokens, tokens)["params"]
    leaves, tree = jax.tree.flatten(shapes)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    drawn = [0.5 * jax.random.normal(k, x.shape) for k, x in zip(keys, leaves, strict=True)]
    return model, model.prepare(jax.tree.unflatten(tree, drawn))


def sources(batch: int, length: int, vocab_size: int, seed: int = 0) -> Array:
    """Random sources of unequal lengths, ending in EOS and padded with 0."""
    rng = np.random.default_rng(seed)
    rows = np.zeros((batch, length), np.int32)
    for row in rows:
        size = rng.integers(1, length)
        row[:size] = rng.integers(2, vocab_size, size)
        row[size] = 1
    return jnp.asarray(rows)


@pytest.fixture(params=["t5_1_0", "t5_1_1"])
def golden(request: pytest.FixtureRequest) -> tuple[T5Config, Any, dict[str, np.ndarray]]:
    """What T5X itself computes from small random weights: config, parameters, values."""
    arrays = dict(np.load(DATA / f"golden_{request.param}.npz"))
    flat = {
        tuple(name.removeprefix("param:").split("/")): jnp.asarray(value)
        for name, value in arrays.items()
        if name.startswith("param:")
    }
    config = T5Config(**json.loads(str(arrays["config"])))
    return config, unflatten_dict(flat), arrays


@pytest.fixture(scope="session")
def t5x() -> ModuleType:
    """T5X; where it is not installed, the tests that ask for it are skipped."""
    try:
        return require_t5x()
    except ImportError as error:
        pytest.skip(str(error))
