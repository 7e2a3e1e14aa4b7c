"""A draft that needs no second checkpoint: the target's own first decoder layers."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jax import Array

from specdec_jax.drafters.model import ModelDrafter, ModelState
from specdec_jax.gamma import Budget
from specdec_jax.layers import KeysValues
from specdec_jax.model import T5Model
from specdec_jax.sampling import Noise, Sampling
from specdec_jax.t5 import DecoderCache
from specdec_jax.types import Draft, Params


@dataclasses.dataclass(frozen=True)
class EarlyExitDrafter:
    """Guesses by the target's first `layers` decoder layers and its own norm and head.

    Its parameters are the target's (pass the same ones), the source is read once, and
    only the keys and values of the prefix are kept a second time, for these layers.

    Attributes:
      target: p.
      layers: how many of its decoder layers, at least 1 and fewer than all.
      sampling: as `ModelDrafter`'s.
    """

    target: T5Model
    layers: int
    sampling: Sampling | None = None

    may_pass = False

    def __post_init__(self) -> None:
        most = self.target.config.num_decoder_layers - 1
        whole = isinstance(self.layers, int) and not isinstance(self.layers, bool)
        if not whole or not 1 <= self.layers <= most:
            raise ValueError(
                f"Early exit takes 1 to {most} of the target's {most + 1} decoder layers, "
                f"not {self.layers}."
            )

    @property
    def vocab_size(self) -> int:
        """The target's."""
        return self.target.vocab_size

    @property
    def _drafter(self) -> ModelDrafter:
        config = dataclasses.replace(self.target.config, num_decoder_layers=self.layers)
        return ModelDrafter(dataclasses.replace(self.target, config=config), self.sampling)

    def init(
        self,
        params: Params,
        inputs: Array,
        length: int,
        *,
        gamma: int,
        target_cache: DecoderCache,
    ) -> ModelState:
        """Takes over the target's reading of the sources."""
        empty = tuple(
            KeysValues(jnp.zeros_like(layer.keys), jnp.zeros_like(layer.values))
            for layer in target_cache.self_attention[: self.layers]
        )
        cache = DecoderCache(
            empty, target_cache.cross_attention[: self.layers], target_cache.source_bias
        )
        return self._drafter.start(cache, inputs.shape[0], gamma)

    def propose(
        self,
        params: Params,
        state: ModelState,
        tokens: Array,
        length: Array,
        noise: Noise,
        budget: Budget,
        **settings: Any,
    ) -> tuple[Draft, ModelState]:
        """See `Drafter.propose`."""
        return self._drafter.propose(params, state, tokens, length, noise, budget, **settings)
