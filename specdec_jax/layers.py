"""T5's layers in Flax linen, and the cache that lets them verify many tokens at once.

Activations are two-dimensional throughout: N = batch x tokens, and features.
Their orientation is the one decision of this file, `feature_major`:

* False: activations `[N, E]`, kernels `[in, out]` as in checkpoints, `x @ W`.
  What accelerators want, and what training uses.
* True: activations `[E, N]`, kernels `[out, in]`, `W @ x`. On a CPU a product of
  8 columns then costs about 1.5 times one column instead of 3 to 4 times, which
  alone decides whether verifying gamma + 1 tokens at once pays there.

`prepare_kernels` turns a checkpoint's tree into the one that the layers read. There,
feature-major, kernels that multiply the same activations are joined into one, since a product
costs a CPU's threads a start of their own: queries, keys and values; the two halves of a gated
feed-forward layer. The layers read either tree.

Shapes: B batch, k tokens per call, L buffer (slots), T source length, H heads,
D head dimension, J = H x D, E embedding, M feed-forward.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array

Params = Any  # a pytree of arrays, named as T5X names it

# Added to masked scores; finite, so that a fully masked row stays free of NaN.
MASKED = -1e10


# Kernels that multiply the same activations, and the name of them all; attention to a source
# joins no query, which multiplies other ones.
_JOINED = {
    "query_key_value": ("query", "key", "value"),
    "wi_01": ("wi_0", "wi_1"),
}
_APART = "encoder_decoder_attention"


def prepare_kernels(params: Params, *, feature_major: bool, join: bool = True) -> Params:
    """Lays out a checkpoint's parameters as the layers read them.

    Args:
      params: parameters as checkpoints hold them, every `kernel` `[in, out]`.
      feature_major: whether the layers run feature-major.
      join: whether kernels may be joined; not where a mesh splits them by their outputs.

    Returns:
      The same tree; with `feature_major`, every `kernel` is `[out, in]` in memory, and with
      `join` those of the same activations are one, `[sum of outs, in]`.
    """
    if not feature_major:
        return params

    def lay_out(tree: Params, name: str) -> Params:
        if not isinstance(tree, Mapping):
            return jnp.array(tree.T) if name == "kernel" else tree
        parts = {key: lay_out(part, key) for key, part in tree.items()}
        for joined, names in _JOINED.items():
            if join and name != _APART and all(key in parts for key in names):
                kernels = [parts.pop(key)["kernel"] for key in names]
                parts[joined] = {"kernel": jnp.concatenate(kernels)}
        return parts

    return lay_out(params, "")


def restore_kernels(params: Params, *, feature_major: bool) -> Params:
    """Undoes `prepare_kernels`: parameters as checkpoints hold them."""
    if not feature_major:
        return params

    def lay_out(tree: Params, name: str) -> Params:
        if not isinstance(tree, Mapping):
            return jnp.array(tree.T) if name == "kernel" else tree
        parts = dict(tree)
        for joined, names in _JOINED.items():
            if joined in parts:
                kernels = jnp.split(parts.pop(joined)["kernel"], len(names))
                parts |= {key: {"kernel": k} for key, k in zip(names, kernels, strict=True)}
        return {key: lay_out(part, key) for key, part in parts.items()}

    return lay_out(params, "")


class Dense(nn.Module):
    """A product with a learned matrix, without bias: `[N, in] -> [N, out]`.

    Feature-major, `[in, N] -> [out, N]`, and the kernel is kept `[out, in]`.
    Without a `dtype` the product is taken of what comes, accumulated in float32:
    float32 logits without a float32 copy of a bfloat16 head.
    """

    features: int
    dtype: Any = None
    feature_major: bool = False
    kernel_init: Callable[..., Array] = nn.initializers.variance_scaling(
        1.0, "fan_in", "truncated_normal"
    )

    @nn.compact
    def __call__(self, x: Array) -> Array:
        if self.feature_major:
            shape = (x.shape[0], self.features)
            kernel = self.param("kernel", lambda key: self.kernel_init(key, shape).T)
            return product(kernel, x, self.dtype)
        kernel = self.param("kernel", self.kernel_init, (x.shape[-1], self.features))
        return product(x, kernel, self.dtype)


def product(a: Array, b: Array, dtype: Any = None) -> Array:
    """`a @ b` in `dtype`; without one, as they come but accumulated and left in float32."""
    if dtype is None:
        return jnp.dot(a, b, preferred_element_type=jnp.float32)
    return jnp.dot(a.astype(dtype), b.astype(dtype))


class RMSNorm(nn.Module):
    """T5's layer norm: no mean, no bias, epsilon 1e-6; the statistics in float32."""

    dtype: Any = jnp.float32
    feature_major: bool = False

    @nn.compact
    def __call__(self, x: Array) -> Array:
        axis = 0 if self.feature_major else -1
        x = x.astype(jnp.float32)
        scale = self.param("scale", nn.initializers.ones, (x.shape[axis],))
        variance = jnp.mean(jnp.square(x), axis=axis, keepdims=True)
        normed = (x * jax.lax.rsqrt(variance + 1e-6)).astype(self.dtype)
        scale = scale.astype(self.dtype)
        return normed * (scale[:, None] if self.feature_major else scale)


def relative_position_bucket(
    relative_position: Array,
    *,
    bidirectional: bool,
    num_buckets: int = 32,
    max_distance: int = 128,
) -> Array:
    """T5's buckets: exact for small distances, logarithmic up to `max_distance`.

    Args:
      relative_position: int32, key position minus query position, any shape.
      bidirectional: True in the encoder; False where queries see only the past.

    Returns:
      int32 in [0, num_buckets), the shape of `relative_position`.
    """
    bucket = jnp.zeros_like(relative_position)
    distance = -relative_position
    if bidirectional:
        num_buckets //= 2
        bucket += (distance < 0).astype(jnp.int32) * num_buckets
        distance = jnp.abs(distance)
    else:
        distance = jnp.maximum(distance, 0)
    exact = num_buckets // 2
    # As T5X computes it, in float32: the bucket edges are part of the model.
    eps = jnp.finfo(jnp.float32).eps
    far = exact + (
        jnp.log(distance.astype(jnp.float32) / exact + eps)
        / jnp.log(max_distance / exact)
        * (num_buckets - exact)
    ).astype(jnp.int32)
    return bucket + jnp.where(distance < exact, distance, jnp.minimum(far, num_buckets - 1))


class RelativePositionBias(nn.Module):
    """One learned bias per head and bucket, shared by a stack's layers."""

    num_heads: int
    bidirectional: bool
    num_buckets: int = 32
    max_distance: int = 128

    @nn.compact
    def __call__(self, query_positions: Array, key_positions: Array) -> Array:
        """int32[B, k], int32[B or 1, L] -> float32[B, H, k, L]."""
        table = self.param(
            "rel_embedding",
            nn.initializers.variance_scaling(1.0, "fan_avg", "uniform"),
            (self.num_heads, self.num_buckets),
        )
        bucket = relative_position_bucket(
            key_positions[:, None, :] - query_positions[:, :, None],
            bidirectional=self.bidirectional,
            num_buckets=self.num_buckets,
            max_distance=self.max_distance,
        )
        return jnp.moveaxis(table.astype(jnp.float32)[:, bucket], 0, 1)


class KeysValues(NamedTuple):
    """Keys and values of one attention layer, each `[B, H, L, D]`; slot = position."""

    keys: Array
    values: Array


def write_at(cache: KeysValues, new: KeysValues, start: Array) -> KeysValues:
    """Overwrites the slots of a cache from `start` on: there is no cursor to rewind.

    A rejected guess needs no undoing: the round that follows writes over it.

    Args:
      cache: `[B, H, L, D]` each.
      new: `[B, H, k, D]` each.
      start: int32[B], the first slot; the last, start + k - 1, is below L.
    """

    def write(old: Array, fresh: Array) -> Array:
        fresh = fresh.astype(old.dtype)
        if old.shape[0] == 1:  # a plain slice update, where a scatter would be a loop
            return _write_in_place(old, fresh, start[0])

        def write_row(old: Array, fresh: Array, start: Array) -> Array:
            return jax.lax.dynamic_update_slice(old, fresh, (0, start, 0))

        return jax.vmap(write_row)(old, fresh, start)

    return KeysValues(write(cache.keys, new.keys), write(cache.values, new.values))


def _write_in_place(old: Array, fresh: Array, start: Array) -> Array:
    """Writes `[1, H, k, D]` into a cache of one row, at slot `start`.

    Of one token (k = 1) XLA's CPU compiler would make the write part of whatever reads the
    cache, once for each reader, into copies of the whole. A branch that is always taken is
    closed to that. Elsewhere a branch may cost a word with the host, and there is none.
    """

    def plain(old: Array, fresh: Array, start: Array) -> Array:
        return jax.lax.dynamic_update_slice(old, fresh, (0, 0, start, 0))

    def closed(old: Array, fresh: Array, start: Array) -> Array:
        return jax.lax.cond(start >= 0, plain, lambda old, *_: old, old, fresh, start)

    if fresh.shape[2] > 1:
        return plain(old, fresh, start)
    written: Array = jax.lax.platform_dependent(old, fresh, start, cpu=closed, default=plain)
    return written


class Attention(nn.Module):
    """T5's attention: no bias, no 1/sqrt(D) (it is in the initialization)."""

    num_heads: int
    head_dim: int
    emb_dim: int
    dtype: Any = jnp.float32
    feature_major: bool = False
    dropout_rate: float = 0.0

    def setup(self) -> None:
        def dense(features: int, scale: float = 1.0) -> Dense:
            init = nn.initializers.variance_scaling(scale, "fan_in", "truncated_normal")
            return Dense(features, self.dtype, self.feature_major, init)

        joined = self.num_heads * self.head_dim
        if self.has_variable("params", "query_key_value"):
            self.query_key_value = dense(3 * joined)
        else:
            self.query = dense(joined, scale=1.0 / self.head_dim)
            self.key = dense(joined)
            self.value = dense(joined)
        self.out = dense(self.emb_dim)
        self.dropout = nn.Dropout(self.dropout_rate)

    def _split_heads(self, x: Array, batch: int) -> Array:
        """`[N, J]` or `[J, N]` -> `[B, H, k, D]`."""
        if self.feature_major:
            x = x.reshape(self.num_heads, self.head_dim, batch, -1)
            return x.transpose(2, 0, 3, 1)
        return x.reshape(batch, -1, self.num_heads, self.head_dim).transpose(0, 2, 1, 3)

    def _join_heads(self, x: Array) -> Array:
        """`[B, H, k, D]` -> `[N, J]` or `[J, N]`."""
        joined = self.num_heads * self.head_dim
        if self.feature_major:
            return x.transpose(1, 3, 0, 2).reshape(joined, -1)
        return x.transpose(0, 2, 1, 3).reshape(-1, joined)

    def queries(self, x: Array, batch: int) -> Array:
        """Projects what attends: `[N, E]` or `[E, N]` -> `[B, H, k, D]`."""
        return self._split_heads(self.query(x), batch)

    def keys_values(self, x: Array, batch: int) -> KeysValues:
        """Projects what is attended to: `[N, E]` or `[E, N]` -> `[B, H, k, D]` each."""
        return KeysValues(
            self._split_heads(self.key(x), batch), self._split_heads(self.value(x), batch)
        )

    def project(self, x: Array, batch: int) -> tuple[Array, KeysValues]:
        """Both, of activations that attend to themselves."""
        if not self.has_variable("params", "query_key_value"):
            return self.queries(x, batch), self.keys_values(x, batch)
        parts = jnp.split(self.query_key_value(x), 3)
        query, key, value = (self._split_heads(part, batch) for part in parts)
        return query, KeysValues(key, value)

    def __call__(
        self, query: Array, attended: KeysValues, bias: Array, *, deterministic: bool = True
    ) -> Array:
        """Attends to `attended`.

        Args:
          query: `[B, H, k, D]`.
          attended: keys and values `[B, H, L, D]`.
          bias: float32, broadcastable to `[B, H, k, L]`: position bias plus mask.

        Returns:
          `[N, E]` or `[E, N]`.
        """
        scores = jnp.einsum(
            "bhqd,bhld->bhql", query, attended.keys, preferred_element_type=jnp.float32
        )
        weights = jax.nn.softmax(scores + bias, axis=-1).astype(self.dtype)
        weights = self.dropout(weights, deterministic=deterministic)
        context = jnp.einsum("bhql,bhld->bhqd", weights, attended.values)
        return self.out(self._join_heads(context))


class MlpBlock(nn.Module):
    """The feed-forward layer; two activations make it gated (T5 1.1), one not (1.0)."""

    mlp_dim: int
    emb_dim: int
    activations: Sequence[str] = ("gelu", "linear")
    dtype: Any = jnp.float32
    feature_major: bool = False
    dropout_rate: float = 0.0

    @nn.compact
    def __call__(self, x: Array, *, deterministic: bool = True) -> Array:
        if self.has_variable("params", "wi_01"):
            joined = Dense(2 * self.mlp_dim, self.dtype, self.feature_major, name="wi_01")(x)
            parts = jnp.split(joined, 2)
        else:
            names = ("wi",) if len(self.activations) == 1 else ("wi_0", "wi_1")
            parts = [
                Dense(self.mlp_dim, self.dtype, self.feature_major, name=name)(x) for name in names
            ]
        hidden: Array | float = 1.0
        for name, y in zip(self.activations, parts, strict=True):
            hidden = hidden * (y if name == "linear" else getattr(nn, name)(y))
        hidden = nn.Dropout(self.dropout_rate)(hidden, deterministic=deterministic)
        return Dense(self.emb_dim, self.dtype, self.feature_major, name="wo")(hidden)
