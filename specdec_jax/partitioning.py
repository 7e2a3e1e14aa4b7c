"""Decoding on several devices: each with its own rows (pmap), or together on a mesh.

* `DataParallel`: the target fits on one device. The whole decode is `pmap`ped: each device
  verifies its share of the batch in a loop of its own, ends when its own rows end, and never
  waits for another.
* `MeshParallel`: it does not. One decode over a mesh, data x model, its weights and caches
  split by `sharding.RULES`, the draft whole on each device.

Both take any batch: rows are added until the devices can share them, and taken off the result.
Several processes (`initialize`) each decode rows of their own on their own devices.
"""

import dataclasses
import functools
import os
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from specdec_jax import pretrained
from specdec_jax.arguments import (
    check_gamma,
    check_plain,
    check_single,
    check_speculative,
    checked,
)
from specdec_jax.decoding import (
    _autoregressive_decode,
    _speculative_decode,
)
from specdec_jax.gamma import GammaPolicy
from specdec_jax.sampling import GREEDY, Sampling
from specdec_jax.sharding import DATA, Partition, make_mesh
from specdec_jax.types import DecodeResult, Drafter, Model, Params, VerifyRule
from specdec_jax.verification import ExactRule
from specdec_jax.vocabulary import EOS_ID


class _ManyDevices:
    """What both partitioners share: arguments are checked, rows filled up, results cut."""

    groups: int  # of devices that share the rows

    def _run(self, decode: Any, arrays: tuple[Any, ...], static: dict[str, Any]) -> DecodeResult:
        """Runs a decode on the devices; the last two of `arrays` are a row each."""
        raise NotImplementedError

    def speculative_decode(
        self,
        target: Model,
        target_params: Params,
        drafter: Drafter,
        draft_params: Params,
        inputs: Array,
        key: Array | None = None,
        *,
        gamma: int | GammaPolicy = 7,
        max_new_tokens: int = 64,
        sampling: Sampling = GREEDY,
        rule: VerifyRule = ExactRule(),
        eos_id: int = EOS_ID,
    ) -> DecodeResult:
        """`decoding.speculative_decode` on the devices, token for token the same.

        Arguments, result and errors are its own. `target_calls` are those of the group of
        devices that made most.
        """
        gamma = check_gamma(gamma)
        inputs, keys = check_speculative(
            target, drafter, inputs, key, max_new_tokens, sampling, eos_id
        )
        static = {
            "target": target, "drafter": drafter, "max_new_tokens": max_new_tokens,
            "sampling": sampling, "rule": rule, "eos_id": eos_id,
        }  # fmt: skip
        arrays = (target_params, draft_params, gamma, inputs, keys)
        return self._filled(_speculative, arrays, static)

    def autoregressive_decode(
        self,
        target: Model,
        target_params: Params,
        inputs: Array,
        key: Array | None = None,
        *,
        max_new_tokens: int = 64,
        sampling: Sampling = GREEDY,
        rule: VerifyRule = ExactRule(),
        eos_id: int = EOS_ID,
    ) -> DecodeResult:
        """`decoding.autoregressive_decode` on the devices; see there."""
        check_single(rule)
        inputs, keys = check_plain(target, inputs, key, max_new_tokens, sampling, eos_id)
        static = {
            "target": target, "max_new_tokens": max_new_tokens, "sampling": sampling,
            "rule": rule, "eos_id": eos_id,
        }  # fmt: skip
        return self._filled(_plain, (target_params, inputs, keys), static)

    def _filled(self, decode: Any, arrays: tuple[Any, ...], static: dict[str, Any]) -> DecodeResult:
        """Runs with rows added, which repeat the first one, until the groups share evenly."""
        *whole, inputs, keys = arrays
        rows = len(inputs)
        at = np.arange(-(-rows // self.groups) * self.groups)
        at[rows:] = 0
        result = self._run(decode, (*whole, inputs[at], keys[at]), static)
        cut = {
            name: value if name == "target_calls" else value[:rows]
            for name, value in result._asdict().items()
        }
        return checked(DecodeResult(**cut))


def _speculative(
    target_params: Params,
    draft_params: Params,
    gamma: GammaPolicy,
    inputs: Array,
    keys: Array,
    *,
    target: Model,
    drafter: Drafter,
    **static: Any,
) -> DecodeResult:
    return _speculative_decode(
        target, target_params, drafter, draft_params, inputs, keys, gamma=gamma, **static
    )


def _plain(
    target_params: Params, inputs: Array, keys: Array, *, target: Model, **static: Any
) -> DecodeResult:
    return _autoregressive_decode(target, target_params, inputs, keys, **static)


class DataParallel(_ManyDevices):
    """Each device decodes a share of the rows by itself, all of a model on each.

    Attributes:
      devices: those that take part.
    """

    def __init__(self, devices: Sequence[jax.Device] | None = None):
        """Takes the devices to run on; default, all of this process."""
        self.devices = tuple(devices or jax.local_devices())
        self.groups = len(self.devices)

    def replicate(self, params: Params) -> Params:
        """Puts parameters on every device, once, when they are loaded."""
        mesh = Mesh(np.asarray(self.devices), (DATA,))
        return jax.device_put(params, NamedSharding(mesh, PartitionSpec()))

    def _run(self, decode: Any, arrays: tuple[Any, ...], static: dict[str, Any]) -> DecodeResult:
        *whole, inputs, keys = arrays
        rows = len(inputs)
        shares = (x.reshape(self.groups, -1, *x.shape[1:]) for x in (inputs, keys))
        program = _pmapped(decode, self.devices, len(whole), tuple(sorted(static.items())))
        result = program(*whole, *shares)
        together = {
            name: value.max() if name == "target_calls" else value.reshape(rows, *value.shape[2:])
            for name, value in result._asdict().items()
        }
        return DecodeResult(**together)


@functools.lru_cache(maxsize=64)  # of programs; pmap keeps none for a function made anew
def _pmapped(
    decode: Any, devices: tuple[jax.Device, ...], whole: int, static: tuple[tuple[str, Any], ...]
) -> Any:
    return jax.pmap(
        functools.partial(decode, **dict(static)),
        axis_name=DATA,
        in_axes=(*(None,) * whole, 0, 0),
        devices=devices,
    )


class MeshParallel(_ManyDevices):
    """One decode over a mesh, data x model (sharding.py), for models that no device can hold.

    The models must lie on it: `dataclasses.replace(model, partition=Partition(mesh))`, and
    their parameters as its `prepare` puts them.

    Attributes:
      mesh: the devices.
    """

    def __init__(self, mesh: Mesh):
        """Takes a mesh, as `sharding.make_mesh` makes it."""
        self.mesh = mesh
        self.groups = mesh.shape[DATA]

    def _run(self, decode: Any, arrays: tuple[Any, ...], static: dict[str, Any]) -> DecodeResult:
        *whole, inputs, keys = arrays
        rows = NamedSharding(self.mesh, PartitionSpec(DATA))
        return decode(*whole, *jax.device_put((inputs, keys), rows), **static)


def load_pair(
    name: str | os.PathLike[str] = pretrained.DEFAULT,
    *,
    draft: str | os.PathLike[str] | None = None,
    dtype: str = "float32",
    model_parallel: int = 1,
    devices: Sequence[jax.Device] | None = None,
) -> pretrained.Pair:
    """`pretrained.load` onto several devices; the pair's decodes run there.

    Args:
      name: the pair.
      draft: another draft than its own.
      dtype: of weights and activations.
      model_parallel: how many devices hold one target together; 1: each holds it all.
      devices: default, all of this process.

    Raises:
      ValueError, FileNotFoundError: as `pretrained.load`; or the devices don't divide.
    """
    mesh = make_mesh(model_parallel, devices)
    if mesh.size == 1:
        return pretrained.load(name, draft=draft, dtype=dtype)
    if model_parallel == 1:
        parallel = DataParallel(tuple(mesh.devices.flat))
        pair = pretrained.load(name, draft=draft, dtype=dtype)
        params = parallel.replicate((pair.target_params, pair.draft_params))
        return dataclasses.replace(
            pair, target_params=params[0], draft_params=params[1], partitioner=parallel
        )
    pair = pretrained.load(name, draft=draft, dtype=dtype, partition=Partition(mesh))
    whole = NamedSharding(mesh, PartitionSpec())  # where tables and what lies on no mesh go
    draft_params = jax.tree.map(
        lambda x: x if isinstance(x.sharding, NamedSharding) else jax.device_put(x, whole),
        pair.draft_params,
    )
    return dataclasses.replace(pair, draft_params=draft_params, partitioner=MeshParallel(mesh))


def initialize(
    *,
    multiprocess: bool | None = None,
    coordinator_address: str | None = None,
    process_count: int | None = None,
    process_index: int | None = None,
) -> None:
    """Joins this process to the others of its job; call it before JAX is used.

    With none of them given, a process of a cluster that JAX knows (Cloud TPU, SLURM, Open
    MPI, ...) finds the others by itself, and any other runs alone.

    Args:
      multiprocess: False never joins; True insists.
      coordinator_address: "host:port" of process 0.
      process_count: how many processes.
      process_index: which of them this is, from 0.

    Raises:
      ValueError: some of the last three are given, but not all; or they make no sense.
      RuntimeError: the others can't be reached.
    """
    given = (coordinator_address, process_count, process_index)
    if multiprocess is False:
        return
    if any(x is not None for x in given):
        if coordinator_address is None or process_count is None or process_index is None:
            raise ValueError(
                "Several processes need --coordinator_address=HOST:PORT, --process_count=N and "
                "--process_index=I, all three."
            )
        if not 0 <= process_index < process_count:
            raise ValueError(
                f"process_index must be from 0 to {process_count - 1}, not {process_index}."
            )
        if ":" not in coordinator_address:
            raise ValueError(f"coordinator_address must be HOST:PORT, not {coordinator_address}.")
        jax.distributed.initialize(coordinator_address, process_count, process_index)
    elif multiprocess or _in_a_cluster():
        try:
            jax.distributed.initialize()
        except ValueError as error:  # JAX found no cluster
            raise ValueError(
                "No cluster was found: give --coordinator_address=HOST:PORT, --process_count=N "
                "and --process_index=I."
            ) from error


def _in_a_cluster() -> bool:
    """Whether the environment says that this is one of several processes."""
    steps = int(os.environ.get("SLURM_NTASKS", "1"))
    workers = os.environ.get("TPU_WORKER_HOSTNAMES", "")
    return (steps > 1 and "SLURM_PROCID" in os.environ) or "," in workers
