"""Arrays where they are stored: their shapes are known at once, their values read one by one.

Every format of checkpoint comes down to this, so that loading is written once: a leaf at
a time, in part where a device holds a part, cast and placed before the next one is read.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding

from specdec_jax.layers import Params

_NAMED = 5  # how many offenders an error names

Index = tuple[slice, ...]


class StoredArray(NamedTuple):
    """An array that has not been read.

    Attributes:
      shape: its shape.
      dtype: what it is stored in.
      read: a part of it, by slices of every axis, as a NumPy array.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[Index], np.ndarray]

    @property
    def transposed(self) -> "StoredArray":
        """The same with its axes in reverse; a part of it still reads that part only."""
        return StoredArray(
            self.shape[::-1], self.dtype, lambda index: self.read(tuple(index)[::-1]).T
        )

    def read_whole(self) -> np.ndarray:
        """All of it."""
        return self.read(tuple(slice(0, size) for size in self.shape))

    def place(self, dtype: str | None, sharding: Sharding | None) -> jax.Array:
        """Reads it onto the devices; with a sharding, each part once, and no other part."""
        to = jnp.dtype(dtype) if dtype else self.dtype
        if sharding is None:
            return jnp.asarray(self.read_whole().astype(to, copy=False))
        parts: dict[Any, np.ndarray] = {}

        def part(index: Index | None) -> np.ndarray:
            bounds = tuple(s.indices(n)[:2] for s, n in zip(index or (), self.shape, strict=True))
            if bounds not in parts:
                read = self.read(tuple(slice(*bound) for bound in bounds))
                parts[bounds] = read.astype(to, copy=False)
            return parts[bounds]

        return jax.make_array_from_callback(self.shape, sharding, part)


def flat(params: Params) -> dict[str, Any]:
    """A tree as {"a/b/kernel": leaf}."""
    paths = jax.tree_util.tree_flatten_with_path(params)[0]
    return {"/".join(str(k.key) for k in path): leaf for path, leaf in paths}


def nested(leaves: Mapping[str, Any]) -> Params:
    """{"a/b/kernel": leaf} as a tree."""
    tree: dict[str, Any] = {}
    for name, leaf in leaves.items():
        *folders, last = name.split("/")
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
        node[last] = leaf
    return tree


def place(
    arrays: Mapping[str, StoredArray], dtype: str | None, shardings: Sharding | Params | None
) -> Params:
    """Reads arrays onto the devices, leaf by leaf.

    Args:
      arrays: by name, "a/b/kernel".
      dtype: what to cast each to; None keeps what it is stored in.
      shardings: one for all, or a tree of them like the arrays'; None is the default device.

    Returns:
      A tree of `jax.Array`s.

    Raises:
      ValueError: the tree of shardings has no leaf for an array; or an array is damaged.
    """
    if shardings is None or isinstance(shardings, Sharding):
        by_name: dict[str, Sharding | None] = dict.fromkeys(arrays, shardings)
    else:
        by_name = flat(shardings)
    missing = sorted(arrays.keys() - by_name.keys())
    if missing:
        raise ValueError(f"shardings lack {some(missing)}: give one for all, or for each leaf.")
    # The largest first: what reading it takes besides is least felt while little is there.
    largest_first = sorted(arrays, key=lambda name: -math.prod(arrays[name].shape))
    return nested({name: arrays[name].place(dtype, by_name[name]) for name in largest_first})


def some(names: list[str]) -> str:
    """The first few of a list, for an error's sentence."""
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" * (len(names) > _NAMED))
