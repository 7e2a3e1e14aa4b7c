"""Weights on disk: an Orbax directory of parameters with a readable `config.json`.

* `<path>/config.json`: the T5Config's fields;
* `<path>/params/`: Orbax, the parameter tree, named as T5X names it.
"""

import dataclasses
import json
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from specdec_jax.layers import Params
from specdec_jax.replacing import replacing
from specdec_jax.t5 import T5, T5Config

_CONFIG = "config.json"
_PARAMS = "params"
_NAMED = 5  # how many offending parameters an error names


def _flat(params: Params) -> dict[str, Any]:
    """A tree as {"a/b/kernel": leaf}."""
    paths = jax.tree_util.tree_flatten_with_path(params)[0]
    return {"/".join(str(k.key) for k in path): leaf for path, leaf in paths}


def expected_params(config: T5Config) -> Params:
    """The tree that a config asks for, as `jax.ShapeDtypeStruct`s (float32)."""
    tokens = jnp.zeros((1, 1), jnp.int32)
    variables = jax.eval_shape(T5(config).init, jax.random.key(0), tokens, tokens)
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.float32), variables["params"])


def _some(names: list[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" * (len(names) > _NAMED))


def check_params(config: T5Config, params: Params, where: str = "The parameters") -> None:
    """Checks names and shapes of a parameter tree against a config.

    Args:
      config: what the parameters should belong to.
      params: a tree of arrays or of shapes.
      where: begins the error's sentence.

    Raises:
      ValueError: parameters are missing, or too many, or of another shape; the first
        of them are named, with what was expected.
    """
    want, have = _flat(expected_params(config)), _flat(params)
    missing = sorted(want.keys() - have.keys())
    extra = sorted(have.keys() - want.keys())
    wrong = [
        f"{name} is {tuple(have[name].shape)}, expected {tuple(want[name].shape)}"
        for name in sorted(want.keys() & have.keys())
        if tuple(have[name].shape) != tuple(want[name].shape)
    ]
    complaints = []
    if missing:
        complaints.append(f"lack {_some([f'{m} {tuple(want[m].shape)}' for m in missing])}")
    if extra:
        complaints.append(f"have unknown {_some(extra)}")
    if wrong:
        complaints.append(f"have wrong shapes: {_some(wrong)}")
    if complaints:
        raise ValueError(f"{where} don't fit the config: they {'; they '.join(complaints)}.")


def save_params(
    path: str | os.PathLike[str],
    config: T5Config,
    params: Params,
    *,
    dtype: str = "float32",
    extra: dict[str, Any] | None = None,
) -> None:
    """Writes a model's weights; what was at `path` before is replaced as a whole (replacing.py).

    Args:
      path: the directory to write.
      config: the model's.
      params: its parameters, as checkpoints hold them (kernels `[in, out]`).
      dtype: what the weights are stored in; "bfloat16" halves the files.
      extra: more JSON to keep in `config.json`, under "about" (step, scores).

    Raises:
      ValueError: the parameters don't fit the config.
    """
    check_params(config, params)
    with replacing(path) as partial:
        stored = jax.tree.map(lambda x: np.asarray(x).astype(jnp.dtype(dtype)), params)
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
            checkpointer.save(partial / _PARAMS, stored)
        # A note that names the directory written to, which is not where the weights will be.
        (partial / _PARAMS / "commit_success.txt").unlink(missing_ok=True)
        fields = dataclasses.asdict(config)
        if extra:
            fields["about"] = extra
        (partial / _CONFIG).write_text(json.dumps(fields, indent=2) + "\n", "utf-8")


def load_config(path: str | os.PathLike[str]) -> T5Config:
    """Reads the config of a directory that `save_params` wrote.

    Raises:
      FileNotFoundError: no such directory, or no `config.json` in it.
      ValueError: `config.json` does not hold a T5Config's fields.
    """
    path = os.fspath(path)
    if not os.path.isdir(path):
        raise FileNotFoundError(f"No checkpoint directory at {path!r}.")
    file = os.path.join(path, _CONFIG)
    if not os.path.isfile(file):
        raise FileNotFoundError(
            f"{path!r} is not a specdec_jax checkpoint: it has no {_CONFIG} "
            f"(it holds {_some(sorted(os.listdir(path))) or 'nothing'})."
        )
    try:
        with open(file, encoding="utf-8") as f:
            fields = json.load(f)
        fields.pop("about", None)
        return T5Config(**fields)
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{file!r} does not hold a T5Config's fields: {error}.") from error


def load_params(
    path: str | os.PathLike[str], *, dtype: str | None = "float32"
) -> tuple[T5Config, Params]:
    """Reads a model's weights; nothing is written, so `path` may be read-only.

    Args:
      path: a directory that `save_params` wrote.
      dtype: what to load the weights as; None keeps what they are stored in.

    Returns:
      The config, and the parameter tree as JAX arrays (kernels `[in, out]`).

    Raises:
      FileNotFoundError: there is no such directory, or it is incomplete.
      ValueError: it is not readable as such, or the parameters don't fit the config.
    """
    config = load_config(path)
    where = os.path.join(os.path.abspath(os.fspath(path)), _PARAMS)
    if not os.path.isdir(where):
        raise FileNotFoundError(f"{os.fspath(path)!r} is incomplete: it has no {_PARAMS}/.")
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        try:
            metadata = checkpointer.metadata(where)
            tree = metadata.item_metadata.tree
        except Exception as error:
            raise ValueError(f"{where!r} is not readable as an Orbax checkpoint.") from error
        check_params(config, tree, f"The parameters in {where!r}")
        as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
        try:
            params = checkpointer.restore(where, restore_args=as_numpy)
        except Exception as error:  # TensorStore's own, of many lines
            raise ValueError(f"The weights in {where!r} are damaged or incomplete.") from error
    return config, jax.tree.map(lambda x: jnp.asarray(x, dtype and jnp.dtype(dtype)), params)
