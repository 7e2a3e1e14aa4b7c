"""What the hyperparameters of all networks have in common."""

import abc
from typing import Any

ACTIVATIONS = {"gelu", "linear", "relu", "silu"}


class NetworkConfig(abc.ABC):
    """Hyperparameters, named as T5X names them; a subclass is a frozen dataclass.

    `dtype` is that of the activations; norms' statistics, softmaxes and logits
    are float32 in any case.
    """

    vocab_size: int
    emb_dim: int
    num_heads: int
    head_dim: int
    mlp_dim: int
    mlp_activations: tuple[str, ...]
    dropout_rate: float
    logits_via_embedding: bool
    dtype: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "mlp_activations", tuple(self.mlp_activations))
        sizes = ("vocab_size", "emb_dim", "num_heads", "head_dim", "mlp_dim", *self._depths())
        for name in sizes:
            size = getattr(self, name)
            if not isinstance(size, int) or size < 1:
                raise ValueError(f"{name} must be a whole number, 1 or above, not {size!r}.")
        unknown = set(self.mlp_activations) - ACTIVATIONS
        if unknown or not self.mlp_activations:
            raise ValueError(
                f"mlp_activations may hold {', '.join(sorted(ACTIVATIONS))}, not "
                f"{self.mlp_activations!r}."
            )
        if self.dtype not in ("float32", "bfloat16"):
            raise ValueError(f'dtype must be "float32" or "bfloat16", not {self.dtype!r}.')
        if not 0 <= self.dropout_rate < 1:
            raise ValueError(f"dropout_rate must be in [0, 1), not {self.dropout_rate!r}.")

    @abc.abstractmethod
    def _depths(self) -> tuple[str, ...]:
        """The names of its numbers of layers."""

    @abc.abstractmethod
    def network(self, feature_major: bool = False) -> Any:
        """The Flax module, which has `prefill` and `extend` too.

        Called with int32[B, T] sources and int32[B, k] targets behind the start token it
        gives float32[B, k, V] logits.
        """
