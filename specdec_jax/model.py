"""Networks as `Model`s: two pure functions over parameters and a cache."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from specdec_jax.layers import KeysValues, prepare_kernels, restore_kernels, write_at
from specdec_jax.lm import Config, LMCache, LMConfig
from specdec_jax.network import NetworkConfig
from specdec_jax.sharding import Partition
from specdec_jax.t5 import DecoderCache, T5Config
from specdec_jax.types import Params, Tree

NetworkCache = DecoderCache | LMCache


@dataclasses.dataclass(frozen=True)
class NetworkModel:
    """A network for decoding: a T5 or a language model.

    Attributes:
      config: the hyperparameters.
      feature_major: the orientation of its products (layers.py); `make_model` picks it.
      partition: how it lies on a mesh of devices; None: on one.
    """

    config: NetworkConfig
    feature_major: bool = False
    partition: Partition | None = None

    @property
    def vocab_size(self) -> int:
        """V."""
        return self.config.vocab_size

    @property
    def module(self) -> Any:
        """The Flax module behind it."""
        return self.config.network(self.feature_major)

    def prepare(self, params: Params) -> Params:
        """Lays out a checkpoint's parameters for this model, once, when loaded."""
        whole = self.partition is None
        params = prepare_kernels(params, feature_major=self.feature_major, join=whole)
        if self.partition is None:
            return params
        shardings = self.partition.param_shardings(params, feature_major=self.feature_major)
        return jax.device_put(params, shardings)

    def restore(self, params: Params) -> Params:
        """Undoes `prepare`: parameters as a checkpoint holds them."""
        return restore_kernels(params, feature_major=self.feature_major)

    def prefill(self, params: Params, inputs: Array, length: int) -> NetworkCache:
        """Reads sources, int32[B, T], with room for `length` tokens."""
        cache = self.module.apply({"params": params}, inputs, length, method="prefill")
        return self._placed(cache)

    def extend(
        self, params: Params, cache: NetworkCache, tokens: Array, positions: Array
    ) -> tuple[Array, NetworkCache]:
        """Feeds int32[B, k] tokens -> float32[B, k, V] logits and the cache."""
        return self._extend(params, cache, tokens, positions)

    def _extend(
        self,
        params: Params,
        cache: NetworkCache,
        tokens: Array,
        positions: Array,
        tree: Tree | None = None,
    ) -> tuple[Array, NetworkCache]:
        logits, cache = self.module.apply(
            {"params": params}, cache, tokens, positions, tree, method="extend"
        )
        if self.partition is not None:
            logits = self.partition.constrain_rows(logits)
        return logits, self._placed(cache)

    def _placed(self, cache: NetworkCache) -> NetworkCache:
        """Keeps the cache where the weights that fill it are."""
        return cache if self.partition is None else self.partition.constrain_cache(cache)

    def select(self, cache: NetworkCache, rows: Array) -> NetworkCache:
        """Moves prefixes between rows, int32[B], of one source, whose own part stays put."""
        moved = jax.tree.map(lambda leaf: leaf[rows], cache.self_attention)
        return self._placed(cache._replace(self_attention=moved))

    def extend_tree(
        self, params: Params, cache: NetworkCache, tokens: Array, positions: Array, tree: Tree
    ) -> tuple[Array, NetworkCache]:
        """Feeds int32[B, k] tokens of any branches -> float32[B, k, V] and the cache."""
        return self._extend(params, cache, tokens, positions, tree)

    def move(self, cache: NetworkCache, slots: Array, start: Array) -> NetworkCache:
        """Copies slots, int32[B, m], to others from `start`, int32[B], on."""
        places, start = (slots + cache.first)[:, None, :, None], start + cache.first
        moved = tuple(
            write_at(
                layer, KeysValues(*(jnp.take_along_axis(x, places, axis=2) for x in layer)), start
            )
            for layer in cache.self_attention
        )
        return self._placed(cache._replace(self_attention=moved))


@dataclasses.dataclass(frozen=True)
class T5Model(NetworkModel):
    """A T5 for decoding."""

    config: T5Config


@dataclasses.dataclass(frozen=True)
class LMModel(NetworkModel):
    """A decoder-only language model for decoding, which goes on from its sources (lm.py)."""

    config: LMConfig


def t5_model(config: T5Config, partition: Partition | None = None) -> T5Model:
    """The T5 in the orientation that suits the default back end."""
    return T5Model(config, jax.default_backend() == "cpu", partition)


def lm_model(config: LMConfig, partition: Partition | None = None) -> LMModel:
    """The language model in the orientation that suits the default back end."""
    return LMModel(config, jax.default_backend() == "cpu", partition)


def make_model(config: Config, partition: Partition | None = None) -> NetworkModel:
    """The model of a config, of whichever kind, as `t5_model` and `lm_model` make it."""
    if isinstance(config, LMConfig):
        return lm_model(config, partition)
    return t5_model(config, partition)
