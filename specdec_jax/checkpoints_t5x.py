"""T5X's checkpoints and Orbax's, read with TensorStore: local directories and gs://.

Two layouts, under `checkpoint_<step>/`:

* legacy: `checkpoint`, an index in msgpack, `{version, optimizer: {target, state}}`. A leaf
  of `target` is an array, or says where a zarr array lies:
  `{driver: "zarr", kvstore: {driver: "file" | "gfile" | "gcs", path}, ...}`, in an older
  form with `path` beside `kvstore`.
* Orbax: `state/`, zarr arrays named `target.decoder.….kernel`, inside of an OCDBT database
  or as directories.

Only `target`, the parameters, is opened; the optimizer's slots are passed over.
"""

import io
import os
import re
from collections.abc import Iterable
from typing import Any, BinaryIO, NamedTuple

import msgpack
import numpy as np
import tensorstore as ts
from flax import serialization

from specdec_jax.stored import Index, StoredArray, some
from specdec_jax.t5 import T5Config

INDEX = "checkpoint"
GCS = "gs://"
_OCDBT = "manifest.ocdbt"
_EMBEDDING = "token_embedder/embedding"
_STEP = re.compile(r"checkpoint_(\d+)")
_PLACEHOLDER = "PLACEHOLDER://"  # how Orbax's own msgpack index refers to a zarr array
_LARGEST = 2**31 - 1  # bytes of one msgpack value; flax splits arrays above 2**30

KvSpec = dict[str, Any]  # a TensorStore key-value store: driver, path, bucket


class Place(NamedTuple):
    """Where a checkpoint lies, and in which layout.

    Attributes:
      kind: in words, for messages.
      where: the path, for messages.
      store: its directory.
      index_file: the name of a legacy index; empty for Orbax.
    """

    kind: str
    where: str
    store: KvSpec
    index_file: str


def find(path: str) -> Place | None:
    """Finds the checkpoint at a path -> None where there is nothing of T5X or Orbax.

    Args:
      path: an index; a directory `checkpoint_<step>`; one above several, of which the latest
        is taken; an Orbax directory. Local or gs://bucket/...

    Raises:
      ValueError: a gs:// path that can't be listed.
    """
    if not path.startswith(GCS) and os.path.isfile(path):
        folder, name = os.path.split(os.path.abspath(path))
        return Place("T5X", path, _store(folder), name)
    if path.startswith(GCS):  # where only what is below a path can be listed
        path = path.removesuffix(f"/{INDEX}")
    names = _list(path)
    if _OCDBT in names:
        return Place("Orbax", path, {"driver": "ocdbt", "base": _store(path), "path": ""}, "")
    if INDEX in names:
        return Place("T5X", path, _store(path), INDEX)
    for folder in ("state", "default", "params"):
        if folder in names and (found := find(f"{path}/{folder}")):
            kind = "T5X (Orbax)" if folder == "state" else found.kind
            return found._replace(kind=kind)
    steps = [int(step[1]) for name in names if (step := _STEP.fullmatch(name))]
    if steps:
        return find(f"{path}/checkpoint_{max(steps)}")
    if any(name.endswith(_EMBEDDING.replace("/", ".")) for name in names):
        return Place("Orbax", path, _store(path), "")
    return None


def read(place: Place) -> dict[str, StoredArray]:
    """Opens a checkpoint's parameters -> unread arrays, by T5X's names, "a/b/kernel".

    Raises:
      ValueError: not such a checkpoint, or damaged; one sentence.
    """
    return _read_index(place) if place.index_file else _read_orbax(place)


def infer_config(arrays: dict[str, StoredArray], where: str) -> T5Config:
    """The config that the names and shapes of a T5's parameters tell.

    The activation is the one thing that they don't: one feed-forward input is taken for
    1.0's relu, two for 1.1's gated gelu.

    Args:
      arrays: by name.
      where: begins the error's sentence.

    Raises:
      ValueError: they are not a T5's, or not laid out as T5X's `examples/t5` has it.
    """
    attention = "decoder/layers_0/self_attention/query/kernel"
    position, mlp = "decoder/relpos_bias/rel_embedding", "decoder/layers_0/mlp/wo/kernel"
    needed = (_EMBEDDING, position, attention, mlp)
    missing = [name for name in needed if len(arrays[name].shape if name in arrays else ()) != 2]
    if missing:
        raise ValueError(
            f"{where} is no T5 as T5X's examples/t5 lays it out: it lacks {some(missing)} "
            f"(it holds {some(sorted(arrays)) or 'nothing'})."
        )
    (vocabulary, width), heads = arrays[_EMBEDDING].shape, arrays[position].shape[0]

    def layers(stack: str) -> int:
        numbers = [re.match(rf"{stack}/layers_(\d+)/", name) for name in arrays]
        return 1 + max((int(number[1]) for number in numbers if number), default=0)

    return T5Config(
        vocab_size=vocabulary,
        emb_dim=width,
        num_heads=heads,
        num_encoder_layers=layers("encoder"),
        num_decoder_layers=layers("decoder"),
        head_dim=arrays[attention].shape[1] // heads,
        mlp_dim=arrays[mlp].shape[0],
        mlp_activations=(
            ("gelu", "linear") if "decoder/layers_0/mlp/wi_0/kernel" in arrays else ("relu",)
        ),
        logits_via_embedding="decoder/logits_dense/kernel" not in arrays,
    )


def _store(path: str) -> KvSpec:
    if path.startswith(GCS):
        bucket, _, folder = path.removeprefix(GCS).partition("/")
        return {"driver": "gcs", "bucket": bucket, "path": f"{folder.strip('/')}/".lstrip("/")}
    return {"driver": "file", "path": f"{os.path.abspath(path)}/"}


def _list(path: str) -> set[str]:
    """The names in a directory; empty where there is none."""
    if not path.startswith(GCS):
        return set(os.listdir(path)) if os.path.isdir(path) else set()
    return {key.split("/")[0] for key in _keys(_store(path), path)}


def _keys(store: KvSpec, where: str) -> list[str]:
    try:
        return [key.decode() for key in ts.KvStore.open(store).result().list().result()]
    except Exception as error:
        raise ValueError(f"{where!r} can't be listed: {_reason(error)}.") from error


def _reason(error: Exception) -> str:
    """TensorStore's message without the places in its own source."""
    return re.sub(r"\s*\[(source locations|tensorstore_spec)=.*", "", str(error), flags=re.S)


# The legacy index. ---------------------------------------------------------------------------


class _Span(NamedTuple):
    """The bytes of one value in the index."""

    start: int
    end: int


_Spans = dict[str, Any]  # of _Span, or of these again


def _read_index(place: Place) -> dict[str, StoredArray]:
    file = _open_index(place)
    try:
        start = file.read(21)
        if start == b"model_checkpoint_path":
            raise ValueError(
                f"{place.where!r} is a TensorFlow checkpoint; T5X's convert_tf_checkpoint "
                "makes a T5X checkpoint of it."
            )
        leaves = {"/".join(name): span for name, span in _leaves(_target(file, place), ())}
        futures, arrays = {}, {}
        for name, span in leaves.items():
            leaf = _decode(file, span, place)
            if isinstance(leaf, np.ndarray):
                arrays[name] = _inline(place, span, leaf)
            else:
                futures[name] = _open(_within(place.store, _path_of(leaf, name, place)))
    finally:
        file.close()
    return {**arrays, **_opened(futures, place)}


def _open_index(place: Place) -> BinaryIO:
    """The index as a file; one on gs:// is fetched whole, as it is small unless it is all."""
    if place.store["driver"] == "file":
        return open(place.store["path"] + place.index_file, "rb")
    try:
        found = ts.KvStore.open(place.store).result().read(place.index_file).result()
    except Exception as error:
        raise ValueError(f"{place.where!r} can't be read: {_reason(error)}.") from error
    return io.BytesIO(found.value)


def _target(file: BinaryIO, place: Place) -> _Spans:
    """Where the parameters' leaves are in an index; nothing of it is kept in memory."""
    end = file.seek(0, os.SEEK_END)
    file.seek(0)
    unpacker = msgpack.Unpacker(file, max_buffer_size=_LARGEST, strict_map_key=False)
    try:
        top = _spans(file, unpacker)
    except (msgpack.UnpackException, ValueError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{place.where!r} is no T5X checkpoint: its index is not msgpack, or is cut short "
            f"(it has {end} bytes)."
        ) from error
    names = sorted(top) if isinstance(top, dict) else []
    tree = top.get("optimizer", top) if isinstance(top, dict) else {}
    target = tree.get("target") if isinstance(tree, dict) else None
    if not isinstance(target, dict):
        raise ValueError(
            f"{place.where!r} is no T5X checkpoint: its index has no optimizer/target "
            f"(it has {some(names) or 'a single value'})."
        )
    return target


def _spans(file: BinaryIO, unpacker: Any) -> Any:
    """Passes over the next value -> its bytes, or by name those of what a map holds.

    A map that describes an array, or holds one in chunks, is one value.
    """
    start = unpacker.tell()
    back = file.tell()
    file.seek(start)
    first = file.read(1)
    file.seek(back)
    if not first or not (0x80 <= first[0] <= 0x8F or first[0] in (0xDE, 0xDF)):
        unpacker.skip()
        return _Span(start, unpacker.tell())
    held = {}
    for _ in range(unpacker.read_map_header()):
        name = str(unpacker.unpack())
        held[name] = _spans(file, unpacker)
    if {"driver", "__msgpack_chunked_array__"} & held.keys():
        return _Span(start, unpacker.tell())
    return held


def _leaves(spans: _Spans, path: tuple[str, ...]) -> Iterable[tuple[tuple[str, ...], _Span]]:
    for name, held in spans.items():
        if isinstance(held, dict):
            yield from _leaves(held, (*path, name))
        else:
            yield (*path, name), held


def _decode(file: BinaryIO, span: _Span, place: Place) -> Any:
    file.seek(span.start)
    try:
        return serialization.msgpack_restore(file.read(span.end - span.start))
    except Exception as error:
        raise ValueError(f"{place.where!r} is damaged: its index can't be decoded.") from error


def _inline(place: Place, span: _Span, leaf: np.ndarray) -> StoredArray:
    """An array inside of the index; it is decoded again when it is wanted."""

    def read(index: Index) -> np.ndarray:
        with _open_index(place) as file:
            return _decode(file, span, place)[index]

    return StoredArray(leaf.shape, leaf.dtype, read)


def _path_of(leaf: Any, name: str, place: Place) -> str:
    """The directory of a zarr array that an index refers to, in the checkpoint's own."""
    if isinstance(leaf, str) and leaf.startswith(_PLACEHOLDER):
        return leaf.removeprefix(_PLACEHOLDER)
    if isinstance(leaf, dict) and leaf.get("driver") == "zarr":
        path = leaf.get("path") or leaf.get("kvstore", {}).get("path")
        if path:
            return str(path)
    raise ValueError(
        f"{place.where!r}: its index has {name} as {str(leaf)[:60]!r}, where an array or the "
        "place of a zarr array was expected."
    )


# Orbax. --------------------------------------------------------------------------------------


def _read_orbax(place: Place) -> dict[str, StoredArray]:
    drivers = {"/.zarray": "zarr", "/zarr.json": "zarr3"}
    found = {
        key.removesuffix(end): driver
        for key in _keys(place.store, place.where)
        for end, driver in drivers.items()
        if key.endswith(end)
    }
    embedding = _EMBEDDING.replace("/", ".")
    prefixes = [
        prefix
        for prefix in ("", "target.", "params.")
        # A decoder-only model keeps its embedding with its decoder.
        if prefix + embedding in found or f"{prefix}decoder.{embedding}" in found
    ]
    if not prefixes:
        raise ValueError(
            f"{place.where!r} holds no T5: its Orbax tree has no {_EMBEDDING}, by itself or "
            f"under target or params (it has {some(sorted(found)) or 'nothing'})."
        )
    futures = {
        name.removeprefix(prefixes[0]).replace(".", "/"): _open(_within(place.store, name), driver)
        for name, driver in found.items()
        if name.startswith(prefixes[0])
    }
    return _opened(futures, place)


# Arrays. -------------------------------------------------------------------------------------


def _within(store: KvSpec, name: str) -> KvSpec:
    return {**store, "path": f"{store['path']}{name.strip('/')}/"}


def _open(store: KvSpec, driver: str = "zarr") -> Any:
    spec: dict[str, Any] = {"driver": driver, "kvstore": store}
    if driver == "zarr":  # else a chunk that is gone would read as zeros
        spec["fill_missing_data_reads"] = False
    return ts.open(spec, open=True, read=True)


def _opened(futures: dict[str, Any], place: Place) -> dict[str, StoredArray]:
    """Waits for what was opened together."""
    return {name: _stored(name, future, place) for name, future in futures.items()}


def _stored(name: str, future: Any, place: Place) -> StoredArray:
    def damaged(error: Exception) -> ValueError:
        return ValueError(
            f"{place.where!r} is damaged or incomplete: {name} can't be read: {_reason(error)}."
        )

    try:
        array = future.result()
    except Exception as error:
        raise damaged(error) from error

    def read(index: Index) -> np.ndarray:
        try:
            return array[index].read().result()
        except Exception as error:
            raise damaged(error) from error

    return StoredArray(tuple(array.shape), array.dtype.numpy_dtype, read)
