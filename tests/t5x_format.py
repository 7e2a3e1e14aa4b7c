"""Writes checkpoints as T5X writes them, with msgpack and TensorStore only."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.serialization
import numpy as np
import tensorstore as ts

from specdec_jax.stored import flat, nested

# What no reader may look into: arrays whose bytes are no arrays, and a zarr that is not there.
GARBAGE = flax.serialization.msgpack.ExtType(1, b"not an array")
ABSENT = {
    "driver": "zarr",
    "dtype": "float32",
    "kvstore": {"driver": "file", "path": "state.param_states.absent/"},
    "metadata": {"shape": [3], "chunks": [3]},
}


def write_legacy(
    folder: Path,
    params: Any,
    *,
    inline: Callable[[str], bool] = lambda name: False,
    form: str = "kvstore",
    chunk: int = 10**9,
    compressor: Any = None,
) -> Path:
    """Writes `folder/checkpoint` and zarr arrays beside it.

    Args:
      folder: `checkpoint_<step>`.
      params: the tree, in the dtype to store.
      inline: which arrays the index holds itself.
      form: how the index says where an array is: "kvstore" and "gfile", a path in it with
        that driver; "path", the older form; "gcs", what a job in a cloud writes.
      chunk: the longest side of a chunk.
      compressor: zarr's; None is T5X's gzip.
    """
    folder.mkdir(parents=True)
    target = {}
    for name, array in flat(params).items():
        array = np.asarray(array)
        path = "target." + name.replace("/", ".")
        target[name] = array
        if not inline(name):
            target[name] = _leaf(form, path, array, chunk)
            _write_zarr(folder / path, array, chunk, compressor or {"id": "gzip", "level": 1})
    state = {"step": np.int32(7), "param_states": {"a": {"v": GARBAGE}, "b": ABSENT}}
    tree = {"version": 3, "optimizer": {"state": state, "target": nested(target)}}
    (folder / "checkpoint").write_bytes(_pack(tree))
    return folder


def _pack(tree: Any) -> bytes:
    """`flax.serialization.msgpack_serialize`, which would refuse the garbage."""
    pack = flax.serialization
    tree = pack._chunk_array_leaves_in_place(tree)
    return pack.msgpack.packb(tree, default=pack._msgpack_ext_pack)


def _leaf(form: str, path: str, array: np.ndarray, chunk: int) -> dict[str, Any]:
    stores = {
        "kvstore": {"driver": "file", "path": f"{path}/"},
        "gfile": {"driver": "gfile", "path": f"{path}/"},
        "gcs": {"driver": "gcs", "bucket": "t5x-dummy-bucket", "path": f"{path}/"},
        "path": {"driver": "file"},
    }
    chunks = [min(chunk, size) for size in array.shape]
    leaf = {
        "driver": "zarr",
        "dtype": array.dtype.name,
        "kvstore": stores[form],
        "metadata": {"shape": list(array.shape), "chunks": chunks},
    }
    return {**leaf, "path": path} if form == "path" else leaf


def _write_zarr(path: Path, array: np.ndarray, chunk: int, compressor: Any) -> None:
    metadata = {
        "shape": array.shape,
        "chunks": [min(chunk, size) for size in array.shape],
        "dtype": "bfloat16" if array.dtype.name == "bfloat16" else array.dtype.str,
        "compressor": compressor,
    }
    kvstore = {"driver": "file", "path": f"{path}/"}
    spec = {"driver": "zarr", "kvstore": kvstore, "metadata": metadata, "create": True}
    ts.open(spec).result().write(array).result()
