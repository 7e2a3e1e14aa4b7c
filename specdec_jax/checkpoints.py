"""Weights on disk: read from every format, written as an Orbax directory.

* `<path>/config.json`: the fields of a T5Config; or of an LMConfig, with "kind": "lm";
* `<path>/params/`: Orbax, the parameter tree, named as T5X names it.

`load_params` also reads T5X's checkpoints (checkpoints_t5x.py), other Orbax directories of
such trees, and Hugging Face's (checkpoints_hf.py).
"""

import dataclasses
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from jax.sharding import Sharding

from specdec_jax import checkpoints_hf, checkpoints_t5x
from specdec_jax.layers import Params
from specdec_jax.lm import Config, LMConfig
from specdec_jax.replacing import replacing
from specdec_jax.stored import StoredArray, flat, nested, place, some
from specdec_jax.t5 import T5Config

_CONFIG = "config.json"
_PARAMS = "params"
_LM = "lm"  # the kind of a language model's config; a T5's names none


class Checkpoint(NamedTuple):
    """A checkpoint that has been opened, its arrays unread.

    Attributes:
      kind: its format, in words.
      config: its own, the caller's, or what the shapes tell.
      arrays: by T5X's names, "a/b/kernel"; those that the config asks for, and no other.
    """

    kind: str
    config: Config
    arrays: dict[str, StoredArray]


def expected_params(config: Config) -> Params:
    """The tree that a config asks for, as `jax.ShapeDtypeStruct`s (float32)."""
    tokens = jnp.zeros((1, 1), jnp.int32)
    variables = jax.eval_shape(config.network().init, jax.random.key(0), tokens, tokens)
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.float32), variables["params"])


def check_params(config: Config, params: Params, where: str = "The parameters") -> None:
    """Checks names and shapes of a parameter tree against a config.

    Args:
      config: what the parameters should belong to.
      params: a tree of arrays or of shapes.
      where: begins the error's sentence.

    Raises:
      ValueError: parameters are missing, or too many, or of another shape; the first
        of them are named, with what was expected.
    """
    want, have = flat(expected_params(config)), flat(params)
    missing = sorted(want.keys() - have.keys())
    extra = sorted(have.keys() - want.keys())
    wrong = [
        f"{name} is {tuple(have[name].shape)}, expected {tuple(want[name].shape)}"
        for name in sorted(want.keys() & have.keys())
        if tuple(have[name].shape) != tuple(want[name].shape)
    ]
    complaints = []
    if missing:
        complaints.append(f"lack {some([f'{m} {tuple(want[m].shape)}' for m in missing])}")
    if extra:
        complaints.append(f"have unknown {some(extra)}")
    if wrong:
        complaints.append(f"have wrong shapes: {some(wrong)}")
    if complaints:
        raise ValueError(f"{where} don't fit the config: they {'; they '.join(complaints)}.")


def save_params(
    path: str | os.PathLike[str],
    config: Config,
    params: Params,
    *,
    dtype: str = "float32",
    extra: dict[str, Any] | None = None,
    files: Mapping[str, Path] | None = None,
) -> None:
    """Writes a model's weights; what was at `path` before is replaced as a whole (replacing.py).

    Args:
      path: the directory to write.
      config: the model's.
      params: its parameters, as checkpoints hold them (kernels `[in, out]`).
      dtype: what the weights are stored in; "bfloat16" halves the files.
      extra: more JSON to keep in `config.json`, under "about" (step, scores).
      files: more files to keep beside it, by the names they get.

    Raises:
      ValueError: the parameters don't fit the config.
    """
    check_params(config, params)
    with replacing(path) as partial:
        # As JAX's arrays: Orbax copies the whole of NumPy's before it writes any.
        stored = jax.tree.map(lambda x: jnp.asarray(x, jnp.dtype(dtype)), params)
        at_once = 1 + max(x.nbytes for x in jax.tree.leaves(stored)) // 2**30  # GB
        handler = ocp.PyTreeCheckpointHandler(save_concurrent_gb=at_once)
        with ocp.Checkpointer(handler) as checkpointer:
            checkpointer.save(partial / _PARAMS, stored)
        # A note that names the directory written to, which is not where the weights will be.
        (partial / _PARAMS / "commit_success.txt").unlink(missing_ok=True)
        fields = dataclasses.asdict(config)
        if isinstance(config, LMConfig):
            fields["kind"] = _LM
        if extra:
            fields["about"] = extra
        (partial / _CONFIG).write_text(json.dumps(fields, indent=2) + "\n", "utf-8")
        for name, file in (files or {}).items():
            shutil.copyfile(file, partial / name)


def parse_config(file: str | os.PathLike[str]) -> Config:
    """Reads a `config.json`, of `save_params` or of Hugging Face.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: it does not hold a config's fields, or is another architecture's.
    """
    file = os.fspath(file)
    fields = _read_json(file)
    if checkpoints_hf.is_config(fields):
        return checkpoints_hf.parse_config(fields, file)
    try:
        fields.pop("about", None)
        kind = fields.pop("kind", None)
        if kind not in (None, _LM):
            raise ValueError(f"there is no kind {kind!r}, only {_LM!r} and, without one, T5")
        return LMConfig(**fields) if kind else T5Config(**fields)
    except (ValueError, TypeError, AttributeError) as error:
        reason = str(error).removesuffix(".")
        raise ValueError(f"{file!r} does not hold a config's fields: {reason}.") from error


def _read_json(file: str) -> Any:
    try:
        with open(file, encoding="utf-8") as f:
            return json.load(f)
    except ValueError as error:
        raise ValueError(f"{file!r} does not hold a config's fields: {error}.") from error


def open_checkpoint(path: str | os.PathLike[str], *, config: Config | None = None) -> Checkpoint:
    """Finds out what is at a path and opens it; no array is read yet.

    Args:
      path: what `load_params` takes.
      config: the model's, where the checkpoint has none; it goes before one that has.

    Raises:
      FileNotFoundError: there is no such thing, or it is incomplete.
      ValueError: it is not readable as such, or the parameters don't fit the config.
    """
    path = os.fspath(path)
    found = _open(path.rstrip("/") or path, config)
    shapes = nested(
        {n: jax.ShapeDtypeStruct(a.shape, jnp.float32) for n, a in found.arrays.items()}
    )
    check_params(found.config, shapes, f"The parameters in {path!r}")
    odd = [f"{n} is {a.dtype}" for n, a in found.arrays.items() if a.dtype.kind in "biu"]
    if odd:
        raise ValueError(f"{path!r} holds other than floats: {some(odd)}.")
    return found


def _open(path: str, config: Config | None) -> Checkpoint:
    file = os.path.join(path, _CONFIG)
    if os.path.isfile(file):
        if not checkpoints_hf.is_config(fields := _read_json(file)):
            return _open_own(path, config or parse_config(file))
        theirs, arrays = checkpoints_hf.read(path, fields)
        return Checkpoint("Hugging Face", config or theirs, arrays)
    if path.endswith(".safetensors") or os.path.isfile(os.path.join(path, checkpoints_hf.WEIGHTS)):
        raise FileNotFoundError(
            f"{path!r} has weights of Hugging Face but no {_CONFIG}: give a directory with both."
        )
    if at := checkpoints_t5x.find(path):
        arrays = checkpoints_t5x.read(at)
        told = config or checkpoints_t5x.infer_config(arrays, repr(path))
        return Checkpoint(at.kind, told, arrays)
    if not path.startswith(checkpoints_t5x.GCS) and not os.path.isdir(path):
        raise FileNotFoundError(f"No checkpoint at {path!r}.")
    held = [] if path.startswith(checkpoints_t5x.GCS) else sorted(os.listdir(path))
    raise FileNotFoundError(
        f"{path!r} is no checkpoint: expected {_CONFIG} and {_PARAMS}/ (specdec_jax), {_CONFIG} "
        f"and {checkpoints_hf.WEIGHTS} (Hugging Face), or {checkpoints_t5x.INDEX}, state/ or "
        f"checkpoint_<step>/ (T5X); it holds {some(held) or 'nothing'}."
    )


def _open_own(path: str, config: Config) -> Checkpoint:
    where = os.path.join(os.path.abspath(path), _PARAMS)
    if not os.path.isdir(where):
        raise FileNotFoundError(f"{path!r} is incomplete: it has no {_PARAMS}/.")
    at = checkpoints_t5x.find(where)
    if not at:
        raise ValueError(f"{where!r} is not readable as an Orbax checkpoint.")
    return Checkpoint("specdec_jax", config, checkpoints_t5x.read(at))


def load_config(path: str | os.PathLike[str]) -> Config:
    """The config of a checkpoint: its own, or what its shapes tell; as `load_params` raises."""
    return open_checkpoint(path).config


def load_params(
    path: str | os.PathLike[str],
    *,
    config: Config | None = None,
    dtype: str | None = "float32",
    shardings: Sharding | Params | None = None,
) -> tuple[Config, Params]:
    """Reads a model's weights; nothing is written, so `path` may be read-only.

    They are read leaf by leaf, each cast and placed before the next one; with shardings,
    each device's part by itself. The whole is in memory once.

    Args:
      path: a directory of `save_params`; of T5X, `checkpoint_<step>` or the directory above
        (of which the latest is taken), legacy or Orbax, local or gs://; an Orbax directory
        of a T5X tree; or a directory of Hugging Face's `config.json` and safetensors.
      config: the model's. T5X and Orbax keep none; left out, sizes are told by the shapes,
        and the activation is 1.0's or 1.1's.
      dtype: what to load the weights as; None keeps what they are stored in.
      shardings: where to load them: one for all, or a tree like `expected_params(config)`.

    Returns:
      The config, and the parameter tree as JAX arrays (kernels `[in, out]`).

    Raises:
      FileNotFoundError: there is no such thing, or it is incomplete.
      ValueError: it is not readable as such, or damaged, or the parameters don't fit the
        config; one sentence, which names the first offenders.
    """
    found = open_checkpoint(path, config=config)
    return found.config, place(found.arrays, dtype, shardings)
