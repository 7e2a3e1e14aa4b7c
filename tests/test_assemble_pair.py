"""scripts/assemble_pair.py: two runs' weights become a pair that loads by its directory."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from specdec_jax import pretrained
from specdec_jax.checkpoints import load_params
from tests.tiny_pair import tiny_pair

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "assemble_pair.py"


def assemble(output, **parts):
    pair = tiny_pair()
    flags = {
        "target": pair / "target",
        "draft": pair / "draft",
        "vocabulary": pair / "spiece.model",
        "output": output,
    } | parts
    command = [sys.executable, SCRIPT, *(f"--{name}={value}" for name, value in flags.items())]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def test_the_parts_become_a_pair_in_bfloat16(tmp_path):
    run = assemble(tmp_path / "pair")
    assert run.returncode == 0, run.stderr
    pair = pretrained.load(tmp_path / "pair")
    _, whole = load_params(tiny_pair() / "target")
    rounded = jax.tree.map(lambda x: x.astype(jnp.bfloat16).astype(jnp.float32), whole)
    expected = pair.target.prepare(rounded)
    jax.tree.map(np.testing.assert_array_equal, pair.target_params, expected)
    assert pair.vocabulary.size == 80


def test_a_missing_part_is_one_sentence(tmp_path):
    run = assemble(tmp_path / "pair", draft=tmp_path / "nothing")
    assert run.returncode == 1
    assert len(run.stderr.splitlines()) == 1
    assert "nothing" in run.stderr
    assert not (tmp_path / "pair").exists()
