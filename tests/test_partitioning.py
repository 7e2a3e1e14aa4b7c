"""Decoding on many devices: what one can show, and eight_devices.py in a process with eight."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from specdec_jax import ModelDrafter, pretrained, speculative_decode
from specdec_jax.generate import Settings, generate
from specdec_jax.partitioning import DataParallel, MeshParallel, initialize
from specdec_jax.sharding import logical_axes, make_mesh

from .conftest import sources, tiny_t5
from .tiny_pair import tiny_pair

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("which", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_on_eight_devices(which: str) -> None:
    command = ["-q", "--no-header", "-m", which, "tests/eight_devices.py"]
    child = subprocess.run(
        [sys.executable, "-m", "pytest", *command],
        cwd=ROOT,
        env={**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8"},
        capture_output=True,
        text=True,
    )
    assert child.returncode == 0, child.stdout[-5000:]
    assert " passed" in child.stdout and "skipped" not in child.stdout


@pytest.mark.parametrize("partitioner", [DataParallel(), MeshParallel(make_mesh())])
def test_one_device_is_no_special_case(partitioner: DataParallel | MeshParallel) -> None:
    target, params = tiny_t5(0)
    draft, draft_params = tiny_t5(1)
    inputs = sources(3, 9, 40)
    models = (target, params, ModelDrafter(draft), draft_params, inputs)
    result = partitioner.speculative_decode(*models, max_new_tokens=12, gamma=3)
    alone = speculative_decode(*models, max_new_tokens=12, gamma=3)
    np.testing.assert_array_equal(result.tokens, alone.tokens)
    plain = partitioner.autoregressive_decode(target, params, inputs, max_new_tokens=12)
    np.testing.assert_array_equal(plain.tokens, alone.tokens)


def test_beam_search_is_not_shared_by_rows() -> None:
    pair = dataclasses.replace(pretrained.load(tiny_pair()), partitioner=DataParallel())
    with pytest.raises(ValueError, match="on one device or on a mesh"):
        list(generate(pair, ["The quick"], Settings(num_beams=2, gamma=1)))


def test_every_parameter_has_axes() -> None:
    model, params = tiny_t5(0)
    for path, leaf in jax.tree_util.tree_flatten_with_path(model.restore(params))[0]:
        assert len(logical_axes("/".join(key.key for key in path))) == leaf.ndim
    with pytest.raises(ValueError, match="no rule for the axes of a parameter 'decoder/odd'"):
        logical_axes("decoder/odd")


def test_a_mesh_that_the_devices_do_not_fill_is_refused() -> None:
    with pytest.raises(ValueError, match="must divide the number of devices of a process, 1"):
        make_mesh(2)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"process_count": 2}, "all three"),
        (
            {"coordinator_address": "h:1", "process_count": 2, "process_index": 2},
            "process_index must be from 0 to 1",
        ),
        (
            {"coordinator_address": "h", "process_count": 2, "process_index": 1},
            "must be HOST:PORT",
        ),
    ],
)
def test_wrong_flags_of_processes_are_refused(flags: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        initialize(**flags)


def test_who_insists_and_finds_no_cluster_is_told() -> None:
    insist = "from specdec_jax.partitioning import initialize; initialize(multiprocess=True)"
    child = subprocess.run([sys.executable, "-c", insist], cwd=ROOT, capture_output=True, text=True)
    assert child.returncode
    assert child.stderr.splitlines()[-1].startswith("ValueError: No cluster was found: give --coo")


def test_who_is_alone_joins_nobody() -> None:
    initialize()
    initialize(multiprocess=False, process_count=2)
    assert jax.process_count() == 1
