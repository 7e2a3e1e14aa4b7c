"""A decoder-only language model in Flax linen: T5's decoder without a source.

The parameter tree is that of T5X's `examples/decoder_only`, name for name, and so is the
relative position bias in place of position embeddings.

A source is a prompt, which the model goes on from. The start token 0 and the prompt are one
sequence: of n tokens of prompt, the cache holds the start token and all but the last of them
before decoding begins; the last is read at the decoding loop's position 0, in place of the
loop's own start token. Position j of the loop is thus position n + j of the sequence. Its
slot is T + j: the first T slots hold the prompt, and those behind its end are never seen.

Shapes: B batch, T prompt length, k tokens per call, L buffer, V vocabulary.
"""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
from flax import linen as nn
from jax import Array

from specdec_jax.layers import KeysValues
from specdec_jax.network import NetworkConfig
from specdec_jax.t5 import Decoder, T5Config, TokenEmbedder
from specdec_jax.types import Tree
from specdec_jax.vocabulary import EOS_ID, PAD_ID


@dataclasses.dataclass(frozen=True)
class LMConfig(NetworkConfig):
    """The hyperparameters of a language model, named as T5X names them."""

    vocab_size: int
    emb_dim: int = 512
    num_heads: int = 8
    num_layers: int = 6
    head_dim: int = 64
    mlp_dim: int = 2048
    mlp_activations: tuple[str, ...] = ("gelu",)
    dropout_rate: float = 0.0
    logits_via_embedding: bool = True
    dtype: str = "float32"

    def _depths(self) -> tuple[str, ...]:
        return ("num_layers",)

    def network(self, feature_major: bool = False) -> "LM":
        """The Flax module."""
        return LM(self, feature_major)


Config = T5Config | LMConfig


class LMCache(NamedTuple):
    """What a language model keeps of prompt and prefix; nothing in it is a cursor."""

    self_attention: tuple[KeysValues, ...]  # per layer, [B, H, T + L, D] each
    prompt: Array  # bool[B, 1, T], the slots that hold the prompt: its first n
    last: Array  # int32[B, 1], the prompt's last token, or the start token of an empty one

    @property
    def first(self) -> int:
        """The slot of position 0."""
        return self.prompt.shape[-1]


class _Prompt(NamedTuple):
    """A source as a prompt."""

    tokens: Array  # int32[B, T], the start token and the prompt without its last token
    held: Array  # bool[B, T], which of them those are: the first n
    last: Array  # int32[B, 1]


def _prompt(inputs: Array) -> _Prompt:
    """Sources, int32[B, T], padded with 0; an end of sequence behind the text is dropped."""
    n = jnp.sum(inputs != PAD_ID, axis=1, keepdims=True)
    end = jnp.take_along_axis(inputs, jnp.maximum(n - 1, 0), axis=1)
    n -= end == EOS_ID
    joined = jnp.pad(inputs, ((0, 0), (1, 0)), constant_values=PAD_ID)  # the start token
    tokens = joined[:, :-1]
    held = jnp.arange(tokens.shape[1]) < n
    return _Prompt(tokens, held, jnp.take_along_axis(joined, n, axis=1))


def _joined(held: Array, positions: Array) -> tuple[Array, Array]:
    """Positions in the sequence, of prompt slots and of what follows.

    Args:
      held: bool[B, T].
      positions: int32[B or 1, m], the decoding loop's.

    Returns:
      int32[B, T + m], the prompt's before the others; and n, int32[B, 1].
    """
    n = jnp.sum(held, axis=1, keepdims=True)
    prompt = jnp.broadcast_to(jnp.arange(held.shape[1]), held.shape)
    return jnp.concatenate([prompt, n + positions], axis=1), n


class _Decoder(Decoder):
    """The stack and, as T5X has it here, the embedding within."""

    def setup(self) -> None:
        super().setup()
        self.token_embedder = TokenEmbedder(self.config)


class LM(nn.Module):
    """The language model. `init` with `__call__`; decode with `prefill` and `extend`."""

    config: LMConfig
    feature_major: bool = False

    def setup(self) -> None:
        c = self.config
        self.decoder = _Decoder(c, self.feature_major, c.num_layers, has_source=False)

    def _decode(
        self,
        tokens: Array,
        positions: Array,
        caches: tuple[KeysValues, ...] | None,
        tree: Tree | None,
        deterministic: bool = True,
    ) -> tuple[Array, tuple[KeysValues, ...]]:
        table = self.decoder.token_embedder()
        x = table[tokens.reshape(-1)].astype(self.config.dtype)
        nothing = (None,) * self.config.num_layers
        logits, written = self.decoder(
            x.T if self.feature_major else x,
            positions,
            caches or nothing,
            nothing,
            None,
            table,
            deterministic,
            tree,
        )
        return logits, written

    def __call__(
        self, inputs: Array, decoder_inputs: Array, *, deterministic: bool = True
    ) -> Array:
        """The teacher-forced model, for training and for scoring.

        Args:
          inputs: int32[B, T], prompts, 0 where padded; all 0 for none.
          decoder_inputs: int32[B, k], continuations shifted right behind the start token.
          deterministic: False draws dropout from the `dropout` stream.

        Returns:
          float32[B, k, V], logits of the token that follows each position.
        """
        prompt, k = _prompt(inputs), decoder_inputs.shape[1]
        tokens = jnp.concatenate([prompt.tokens, prompt.last, decoder_inputs[:, 1:]], axis=1)
        positions, _ = _joined(prompt.held, jnp.arange(k)[None])
        seen = jnp.pad(prompt.held, ((0, 0), (0, k)), constant_values=True)[:, None]
        visible = seen & (positions[:, None, :] <= positions[:, :, None])
        tree = Tree(jnp.zeros(len(inputs), jnp.int32), positions, visible)
        logits, _ = self._decode(tokens, positions, None, tree, deterministic)
        return logits[:, -k:]

    def prefill(self, inputs: Array, length: int) -> LMCache:
        """Reads prompts, int32[B, T] -> a cache with room for `length` tokens behind them."""
        c, prompt = self.config, _prompt(inputs)
        size = inputs.shape[1]
        empty = jnp.zeros((len(inputs), c.num_heads, size + length, c.head_dim), c.dtype)
        caches = tuple(KeysValues(empty, empty) for _ in range(c.num_layers))
        positions = jnp.broadcast_to(jnp.arange(size), inputs.shape)
        _, caches = self._decode(prompt.tokens, positions, caches, None)
        return LMCache(caches, prompt.held[:, None], prompt.last)

    def extend(
        self, cache: LMCache, tokens: Array, positions: Array, tree: Tree | None = None
    ) -> tuple[Array, LMCache]:
        """Feeds k tokens at each row's own positions behind its prompt.

        Args:
          cache: of `prefill`, with every slot before `positions` written.
          tokens: int32[B, k]; at position 0 the prompt's last token is read in their place.
          positions: int32[B, k], consecutive in each row, but in a tree.
          tree: for tokens that do not follow one another: where they go, what they see.

        Returns:
          float32[B, k, V], logits of the token after each one, and the cache.
        """
        held, size = cache.prompt[:, 0], cache.first
        if tree is None:
            slots = jnp.arange(cache.self_attention[0].keys.shape[2] - size)[None]
            tree = Tree(positions[:, 0], slots, slots[:, None, :] <= positions[:, :, None])
        of_slots, n = _joined(held, tree.positions)
        prompt = jnp.broadcast_to(cache.prompt, (*tokens.shape, size))
        visible = jnp.concatenate([prompt, tree.visible], axis=2)
        tokens = jnp.where(positions == 0, cache.last, tokens)
        logits, written = self._decode(
            tokens,
            n + positions,
            cache.self_attention,
            Tree(size + tree.start, of_slots, visible),
        )
        return logits, cache._replace(self_attention=written)
