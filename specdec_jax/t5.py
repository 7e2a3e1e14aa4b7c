"""T5, versions 1.0 and 1.1, in Flax linen; the parameter tree is T5X's, name for name.

Shapes: B batch, T source length, k tokens per call, L buffer, V vocabulary,
E embedding, H heads, D head dimension. N = B x T or B x k.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array

from specdec_jax.layers import (
    MASKED,
    Attention,
    Dense,
    KeysValues,
    MlpBlock,
    RelativePositionBias,
    RMSNorm,
    product,
    write_at,
)
from specdec_jax.network import NetworkConfig
from specdec_jax.types import Tree
from specdec_jax.vocabulary import PAD_ID


@dataclasses.dataclass(frozen=True)
class T5Config(NetworkConfig):
    """The hyperparameters of a T5, named as T5X names them.

    `mlp_activations` and `logits_via_embedding` tell the versions apart:
    `("relu",)` and True is 1.0, `("gelu", "linear")` and False is 1.1.
    `dtype` is that of the activations; norms' statistics, softmaxes and logits
    are float32 in any case.
    """

    vocab_size: int
    emb_dim: int = 512
    num_heads: int = 8
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    head_dim: int = 64
    mlp_dim: int = 2048
    mlp_activations: tuple[str, ...] = ("gelu", "linear")
    dropout_rate: float = 0.0
    logits_via_embedding: bool = False
    dtype: str = "float32"

    def _depths(self) -> tuple[str, ...]:
        return "num_encoder_layers", "num_decoder_layers"

    def network(self, feature_major: bool = False) -> "T5":
        """The Flax module."""
        return T5(self, feature_major)


class DecoderCache(NamedTuple):
    """What a T5 decoder keeps of a prefix; nothing in it is a cursor."""

    self_attention: tuple[KeysValues, ...]  # per layer, [B, H, L, D] each
    cross_attention: tuple[KeysValues, ...]  # per layer, [B, H, T, D] each
    source_bias: Array  # float32[B, 1, 1, T]: 0, or MASKED where the source is padding

    @property
    def first(self) -> int:
        """The slot of position 0."""
        return 0


class _Block(nn.Module):
    """What encoder and decoder layers share: sublayers by their configuration."""

    config: NetworkConfig
    feature_major: bool

    def _norm(self) -> RMSNorm:
        return RMSNorm(self.config.dtype, self.feature_major)

    def _attention(self) -> Attention:
        c = self.config
        return Attention(
            c.num_heads, c.head_dim, c.emb_dim, c.dtype, self.feature_major, c.dropout_rate
        )

    def _mlp(self) -> MlpBlock:
        c = self.config
        return MlpBlock(
            c.mlp_dim, c.emb_dim, c.mlp_activations, c.dtype, self.feature_major, c.dropout_rate
        )


class EncoderLayer(_Block):
    """Self-attention over the whole source, then the feed-forward layer."""

    def setup(self) -> None:
        self.pre_attention_layer_norm = self._norm()
        self.attention = self._attention()
        self.pre_mlp_layer_norm = self._norm()
        self.mlp = self._mlp()
        self.dropout = nn.Dropout(self.config.dropout_rate)

    def __call__(self, x: Array, bias: Array, batch: int, deterministic: bool) -> Array:
        def residual(y: Array) -> Array:
            return x + self.dropout(y, deterministic=deterministic)

        y = self.pre_attention_layer_norm(x)
        query, attended = self.attention.project(y, batch)
        x = residual(self.attention(query, attended, bias, deterministic=deterministic))
        y = self.pre_mlp_layer_norm(x)
        return residual(self.mlp(y, deterministic=deterministic))


class DecoderLayer(_Block):
    """Self-attention over the prefix, attention over a source if there is one, feed-forward."""

    has_source: bool = True

    def setup(self) -> None:
        self.pre_self_attention_layer_norm = self._norm()
        self.self_attention = self._attention()
        if self.has_source:
            self.pre_cross_attention_layer_norm = self._norm()
            self.encoder_decoder_attention = self._attention()
        self.pre_mlp_layer_norm = self._norm()
        self.mlp = self._mlp()
        self.dropout = nn.Dropout(self.config.dropout_rate)

    def __call__(
        self,
        x: Array,
        start: Array,
        cache: KeysValues | None,
        source: KeysValues | None,
        bias: Array,
        source_bias: Array | None,
        deterministic: bool,
    ) -> tuple[Array, KeysValues]:
        def residual(y: Array) -> Array:
            return x + self.dropout(y, deterministic=deterministic)

        y = self.pre_self_attention_layer_norm(x)
        query, attended = self.self_attention.project(y, start.shape[0])
        if cache is not None:
            attended = write_at(cache, attended, start)
        x = residual(self.self_attention(query, attended, bias, deterministic=deterministic))
        if source is not None and source_bias is not None:
            y = self.pre_cross_attention_layer_norm(x)
            cross = self.encoder_decoder_attention
            query = cross.queries(y, start.shape[0])
            x = residual(cross(query, source, source_bias, deterministic=deterministic))
        y = self.pre_mlp_layer_norm(x)
        x = residual(self.mlp(y, deterministic=deterministic))
        return x, attended


class Encoder(nn.Module):
    """The source, read once."""

    config: T5Config
    feature_major: bool

    def setup(self) -> None:
        c = self.config
        self.relpos_bias = RelativePositionBias(c.num_heads, bidirectional=True)
        self.layers = [EncoderLayer(c, self.feature_major) for _ in range(c.num_encoder_layers)]
        self.encoder_norm = RMSNorm(c.dtype, self.feature_major)
        self.dropout = nn.Dropout(c.dropout_rate)

    def __call__(self, x: Array, source_bias: Array, batch: int, deterministic: bool) -> Array:
        positions = jnp.arange(source_bias.shape[-1])[None]
        bias = self.relpos_bias(positions, positions) + source_bias
        x = self.dropout(x, deterministic=deterministic)
        for layer in self.layers:
            x = layer(x, bias, batch, deterministic)
        return self.dropout(self.encoder_norm(x), deterministic=deterministic)


class Decoder(nn.Module):
    """k tokens per call, at each row's own positions."""

    config: NetworkConfig
    feature_major: bool
    num_layers: int
    has_source: bool = True

    def setup(self) -> None:
        c = self.config
        self.relpos_bias = RelativePositionBias(c.num_heads, bidirectional=False)
        self.layers = [
            DecoderLayer(c, self.feature_major, self.has_source) for _ in range(self.num_layers)
        ]
        self.decoder_norm = RMSNorm(c.dtype, self.feature_major)
        self.dropout = nn.Dropout(c.dropout_rate)
        if not c.logits_via_embedding:
            self.logits_dense = Dense(c.vocab_size, feature_major=self.feature_major)

    def read_source(self, encoded: Array, batch: int) -> tuple[KeysValues, ...]:
        """Every layer's keys and values of the encoded source, computed once."""
        return tuple(
            layer.encoder_decoder_attention.keys_values(encoded, batch) for layer in self.layers
        )

    def __call__(
        self,
        x: Array,
        positions: Array,
        caches: tuple[KeysValues | None, ...],
        sources: tuple[KeysValues | None, ...],
        source_bias: Array | None,
        table: Array,
        deterministic: bool,
        tree: Tree | None = None,
    ) -> tuple[Array, tuple[KeysValues, ...]]:
        """Returns float32[B, k, V] and the caches with these tokens written in."""
        c = self.config
        if tree is not None:
            start, slots, visible = tree.start, tree.positions, tree.visible
        else:
            # A slot is a position, and each token sees those up to its own.
            start, slots = positions[:, 0], positions
            if caches[0] is not None:
                slots = jnp.arange(caches[0].keys.shape[2])[None]
            visible = slots[:, None, :] <= positions[:, :, None]
        bias = self.relpos_bias(positions, slots) + jnp.where(visible[:, None], 0.0, MASKED)
        x = self.dropout(x, deterministic=deterministic)
        written = []
        for layer, cache, source in zip(self.layers, caches, sources, strict=True):
            x, cache = layer(x, start, cache, source, bias, source_bias, deterministic)
            written.append(cache)
        x = self.dropout(self.decoder_norm(x), deterministic=deterministic)
        if c.logits_via_embedding:
            logits = product(table, x) if self.feature_major else product(x, table.T)
            logits /= jnp.sqrt(c.emb_dim)
        else:
            logits = self.logits_dense(x)
        if self.feature_major:
            # The barrier keeps XLA from folding the transpose into the product, which would
            # undo the orientation for the largest matrix of all.
            logits = jax.lax.optimization_barrier(logits).T
        return logits.reshape(*positions.shape, c.vocab_size), tuple(written)


class TokenEmbedder(nn.Module):
    """The table that encoder and decoder (and tied logits) share: `[V, E]`."""

    config: NetworkConfig

    @nn.compact
    def __call__(self) -> Array:
        shape = (self.config.vocab_size, self.config.emb_dim)
        return self.param("embedding", nn.initializers.normal(1.0), shape)


class T5(nn.Module):
    """The encoder-decoder. `init` with `__call__`; decode with `prefill` and `extend`."""

    config: T5Config
    feature_major: bool = False

    def setup(self) -> None:
        self.token_embedder = TokenEmbedder(self.config)
        self.encoder = Encoder(self.config, self.feature_major)
        c = self.config
        self.decoder = Decoder(c, self.feature_major, c.num_decoder_layers)

    def _embed(self, tokens: Array) -> Array:
        """Looks tokens up by a gather: int32[B, k] -> `[N, E]` or `[E, N]`."""
        x = self.token_embedder()[tokens.reshape(-1)].astype(self.config.dtype)
        return x.T if self.feature_major else x

    def _read(self, inputs: Array, deterministic: bool) -> DecoderCache:
        """Encodes a source, int32[B, T], as a cache that holds no prefix yet."""
        source_bias = jnp.where(inputs == PAD_ID, MASKED, 0.0)[:, None, None, :]
        batch = inputs.shape[0]
        encoded = self.encoder(self._embed(inputs), source_bias, batch, deterministic)
        return DecoderCache((), self.decoder.read_source(encoded, batch), source_bias)

    def __call__(
        self, inputs: Array, decoder_inputs: Array, *, deterministic: bool = True
    ) -> Array:
        """The teacher-forced model, for training and for scoring.

        Args:
          inputs: int32[B, T], sources, 0 where padded.
          decoder_inputs: int32[B, k], targets shifted right behind the start token.
          deterministic: False draws dropout from the `dropout` stream.

        Returns:
          float32[B, k, V], logits of the token that follows each position.
        """
        source = self._read(inputs, deterministic)
        positions = jnp.broadcast_to(jnp.arange(decoder_inputs.shape[1]), decoder_inputs.shape)
        logits, _ = self.decoder(
            self._embed(decoder_inputs),
            positions,
            (None,) * self.config.num_decoder_layers,
            source.cross_attention,
            source.source_bias,
            self.token_embedder(),
            deterministic,
        )
        return logits

    def prefill(self, inputs: Array, length: int) -> DecoderCache:
        """Reads sources, int32[B, T] -> a cache with room for `length` tokens."""
        c = self.config
        empty = jnp.zeros((inputs.shape[0], c.num_heads, length, c.head_dim), c.dtype)
        caches = tuple(KeysValues(empty, empty) for _ in range(c.num_decoder_layers))
        return self._read(inputs, deterministic=True)._replace(self_attention=caches)

    def extend(
        self, cache: DecoderCache, tokens: Array, positions: Array, tree: Tree | None = None
    ) -> tuple[Array, DecoderCache]:
        """Feeds k tokens at each row's own positions.

        Args:
          cache: of `prefill`, with every slot before `positions` written.
          tokens: int32[B, k].
          positions: int32[B, k], consecutive in each row, but in a tree.
          tree: for tokens that do not follow one another: where they go, what they see.

        Returns:
          float32[B, k, V], logits of the token after each one, and the cache.
        """
        logits, written = self.decoder(
            self._embed(tokens),
            positions,
            cache.self_attention,
            cache.cross_attention,
            cache.source_bias,
            self.token_embedder(),
            deterministic=True,
            tree=tree,
        )
        return logits, cache._replace(self_attention=written)
