"""`import specdec_jax` is light: a laptop's demo pays for no framework it does not use."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import specdec_jax
from specdec_jax.errors import MissingExtraError
from specdec_jax.extras import require

MEASURE = """
import json, sys, time
import jax, jax.numpy
start = time.perf_counter()
import specdec_jax
print(json.dumps([time.perf_counter() - start, sorted({m.split(".")[0] for m in sys.modules})]))
"""
HEAVY = {"tensorflow", "tensorstore", "orbax", "optax", "seqio", "t5x", "torch", "transformers"}


@pytest.fixture(scope="module")
def measured():
    root = Path(specdec_jax.__file__).parents[1]
    runs = []
    for _ in range(3):  # the first may read files from a cold disk
        run = subprocess.run(
            [sys.executable, "-c", MEASURE], cwd=root, capture_output=True, check=True
        )
        runs.append(json.loads(run.stdout))
    return min(runs)


def test_nothing_heavy_is_imported(measured):
    assert not HEAVY & set(measured[1])


def test_it_takes_little_beyond_jax(measured):
    assert measured[0] < 1.0, "0.4 s on an idle machine, the best of three on a busy one"


def test_a_missing_extra_is_one_sentence_with_the_command():
    with pytest.raises(MissingExtraError, match=r"pip install 'specdec_jax\[report\]'") as error:
        require("a_module_that_is_not_there.part", extra="report")
    assert "\n" not in str(error.value)


def test_an_extra_that_is_there():
    assert require("json", extra="report") is json


def test_a_fault_within_an_extra_is_not_called_missing(tmp_path, monkeypatch):
    (tmp_path / "broken_extra.py").write_text("import a_module_that_is_not_there")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_not_there") as error:
        require("broken_extra", extra="report")
    assert not isinstance(error.value, MissingExtraError)
