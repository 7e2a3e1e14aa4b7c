"""T5 as a `Model`: two pure functions over parameters and a cache."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import Array

from specdec_jax.layers import KeysValues, prepare_kernels, write_at
from specdec_jax.sharding import Partition
from specdec_jax.t5 import T5, DecoderCache, T5Config
from specdec_jax.types import Params, Tree


@dataclasses.dataclass(frozen=True)
class T5Model:
    """A T5 for decoding.

    Attributes:
      config: the hyperparameters.
      feature_major: the orientation of its products (layers.py); `t5_model` picks it.
      partition: how it lies on a mesh of devices; None: on one.
    """

    config: T5Config
    feature_major: bool = False
    partition: Partition | None = None

    @property
    def vocab_size(self) -> int:
        """V."""
        return self.config.vocab_size

    @property
    def module(self) -> T5:
        """The Flax module behind it."""
        return T5(self.config, self.feature_major)

    def prepare(self, params: Params) -> Params:
        """Lays out a checkpoint's parameters for this model, once, when loaded."""
        params = prepare_kernels(params, feature_major=self.feature_major)
        if self.partition is None:
            return params
        shardings = self.partition.param_shardings(params, feature_major=self.feature_major)
        return jax.device_put(params, shardings)

    def prefill(self, params: Params, inputs: Array, length: int) -> DecoderCache:
        """Reads sources, int32[B, T], with room for `length` tokens."""
        cache = self.module.apply({"params": params}, inputs, length, method="prefill")
        return self._placed(cache)

    def extend(
        self, params: Params, cache: DecoderCache, tokens: Array, positions: Array
    ) -> tuple[Array, DecoderCache]:
        """Feeds int32[B, k] tokens -> float32[B, k, V] logits and the cache."""
        return self._extend(params, cache, tokens, positions)

    def _extend(
        self,
        params: Params,
        cache: DecoderCache,
        tokens: Array,
        positions: Array,
        tree: Tree | None = None,
    ) -> tuple[Array, DecoderCache]:
        logits, cache = self.module.apply(
            {"params": params}, cache, tokens, positions, tree, method="extend"
        )
        if self.partition is not None:
            logits = self.partition.constrain_rows(logits)
        return logits, self._placed(cache)

    def _placed(self, cache: DecoderCache) -> DecoderCache:
        """Keeps the cache where the weights that fill it are."""
        return cache if self.partition is None else self.partition.constrain_cache(cache)

    def select(self, cache: DecoderCache, rows: Array) -> DecoderCache:
        """Moves prefixes between rows, int32[B], of one source, whose own part stays put."""
        moved = jax.tree.map(lambda leaf: leaf[rows], cache.self_attention)
        return self._placed(cache._replace(self_attention=moved))

    def extend_tree(
        self, params: Params, cache: DecoderCache, tokens: Array, positions: Array, tree: Tree
    ) -> tuple[Array, DecoderCache]:
        """Feeds int32[B, k] tokens of any branches -> float32[B, k, V] and the cache."""
        return self._extend(params, cache, tokens, positions, tree)

    def move(self, cache: DecoderCache, slots: Array, start: Array) -> DecoderCache:
        """Copies slots, int32[B, m], to others from `start`, int32[B], on."""
        places = slots[:, None, :, None]
        moved = tuple(
            write_at(
                layer, KeysValues(*(jnp.take_along_axis(x, places, axis=2) for x in layer)), start
            )
            for layer in cache.self_attention
        )
        return self._placed(cache._replace(self_attention=moved))


def t5_model(config: T5Config, partition: Partition | None = None) -> T5Model:
    """The T5 in the orientation that suits the default back end."""
    return T5Model(config, jax.default_backend() == "cpu", partition)
