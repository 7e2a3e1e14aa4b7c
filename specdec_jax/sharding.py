"""A T5 over a mesh of devices, data x model, by the logical axis names of T5X.

Every parameter's axes have names (`embed`, `heads`, `mlp`, `vocab`, ...), and `RULES` says
which axis of the mesh each is split over: Megatron's scheme, in which a layer's first product
splits its features and its second sums over them, so that each sublayer ends in one
all-reduce of activations and no weight is ever gathered. XLA derives the rest.
"""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from specdec_jax.layers import Params

DATA, MODEL = "data", "model"

RULES: dict[str, str | None] = {
    "batch": DATA,
    "heads": MODEL,
    "joined_kv": MODEL,  # heads x head_dim
    "mlp": MODEL,
    "vocab": MODEL,
    "embed": None,
    "kv": None,
    "length": None,
    "relpos_buckets": None,
}

# The logical axes of each parameter, as T5X names them, in a checkpoint's orientation.
_AXES = {
    r"(decoder/)?token_embedder/embedding": ("vocab", "embed"),
    r".*/rel_embedding": ("heads", "relpos_buckets"),
    r".*/scale": ("embed",),
    r".*/(query|key|value)/kernel": ("embed", "joined_kv"),
    r".*/out/kernel": ("joined_kv", "embed"),
    r".*/wi(_\d+)?/kernel": ("embed", "mlp"),
    r".*/wo/kernel": ("mlp", "embed"),
    r".*/logits_dense/kernel": ("embed", "vocab"),
}


def logical_axes(name: str) -> tuple[str, ...]:
    """The names of a parameter's axes, by its own name, "decoder/layers_0/mlp/wo/kernel"."""
    for pattern, axes in _AXES.items():
        if re.fullmatch(pattern, name):
            return axes
    raise ValueError(f"There is no rule for the axes of a parameter {name!r}.")


def make_mesh(model_parallel: int = 1, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh of this process's devices, data x model.

    Args:
      model_parallel: how many devices hold one copy of the target's weights.
      devices: default, `jax.local_devices()`.

    Raises:
      ValueError: the devices don't divide into groups of `model_parallel`.
    """
    devices = list(devices or jax.local_devices())
    if model_parallel < 1 or len(devices) % model_parallel:
        raise ValueError(
            f"model_parallel must divide the number of devices of a process, {len(devices)}, "
            f"not be {model_parallel}."
        )
    return Mesh(np.reshape(devices, (-1, model_parallel)), (DATA, MODEL))


@dataclasses.dataclass(frozen=True)
class Partition:
    """How a model lies on a mesh. Hashable: it is part of a `T5Model`.

    Attributes:
      mesh: with the axes "data" and "model".
      split: whether "model" splits the weights; a small draft is whole on each device
        instead, and computed by each for itself without a word to the others.
    """

    mesh: Mesh
    split: bool = True

    def spec(self, axes: Sequence[str]) -> PartitionSpec:
        """Where an array with these logical axes lies."""
        of_mesh = [RULES[axis] for axis in axes]
        return PartitionSpec(*(a if self.split or a == DATA else None for a in of_mesh))

    def param_shardings(self, params: Params, *, feature_major: bool = False) -> Params:
        """A sharding for each parameter.

        Args:
          params: a tree of arrays, or of anything that has a shape.
          feature_major: whether kernels lie `[out, in]` (layers.py).

        Raises:
          ValueError: an axis other than the vocabulary's is not divisible by the mesh's; an
            odd vocabulary is left whole.
        """

        def sharding(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
            name = "/".join(str(key.key) for key in path)
            axes = logical_axes(name)
            if feature_major and name.endswith("/kernel"):
                axes = axes[::-1]
            return NamedSharding(self.mesh, self._dividing(axes, leaf.shape, name))

        return jax.tree_util.tree_map_with_path(sharding, params)

    def _dividing(self, axes: tuple[str, ...], shape: tuple[int, ...], name: str) -> PartitionSpec:
        spec = list(self.spec(axes))
        for i, (axis, over, size) in enumerate(zip(axes, spec, shape, strict=True)):
            if over is None or size % self.mesh.shape[over] == 0:
                continue
            if axis != "vocab":
                raise ValueError(
                    f"{axis} of {name} has size {size}, which {self.mesh.shape[over]} devices "
                    "can't share evenly: choose another model_parallel."
                )
            spec[i] = None
        return PartitionSpec(*spec)

    def constrain_cache(self, cache: Any) -> Any:
        """Keeps a decoder's cache by rows and heads: `[B, H, ...]`; its heads of 1 are all."""

        def constrain(leaf: jax.Array) -> jax.Array:
            axes = ("batch", "heads" if leaf.shape[1] > 1 else "kv")
            sharding = NamedSharding(self.mesh, self.spec(axes))
            return jax.lax.with_sharding_constraint(leaf, sharding)

        return jax.tree.map(constrain, cache)

    def constrain_rows(self, array: jax.Array) -> jax.Array:
        """Keeps an array by its rows only, each whole on every device of "model"."""
        sharding = NamedSharding(self.mesh, self.spec(("batch",)))
        return jax.lax.with_sharding_constraint(array, sharding)
