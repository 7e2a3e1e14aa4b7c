"""Guesses that stand at a given rate, random models of real sizes, and the job over them."""

import dataclasses
from pathlib import Path

import gin
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_jax import GREEDY, ModelDrafter, findings, main, speculative_decode
from specdec_jax.acceptance import of_decodes
from specdec_jax.analysis import expected_tokens
from specdec_jax.benchmark_table import BenchmarkRow, Speedup
from specdec_jax.simulation import GivenRule, Simulation, random_t5

from .conftest import TableModel, table_params

V = 6
MODELS = (TableModel(V), table_params(0, V), ModelDrafter(TableModel(V)), table_params(1, V))
SMALL = """
from __gin__ import dynamic_registration
from specdec_jax import t5
MODEL = @t5.T5Config()
t5.T5Config:
  vocab_size = 64
  emb_dim = 16
  num_heads = 2
  num_encoder_layers = 1
  num_decoder_layers = 1
  head_dim = 8
  mlp_dim = 24
"""


@pytest.mark.parametrize(
    "alpha", [0.6, *(pytest.param(alpha, marks=pytest.mark.slow) for alpha in (0.0, 1.0))]
)
def test_guesses_stand_at_the_given_rate(alpha: float) -> None:
    inputs = jnp.arange(200)[:, None] % 5
    settings = {"gamma": 4, "max_new_tokens": 60, "eos_id": -1, "sampling": GREEDY}
    rule = GivenRule(alpha)
    result = speculative_decode(*MODELS, inputs, jax.random.key(0), rule=rule, **settings)
    found = of_decodes([result]).alpha
    assert found.value == pytest.approx(alpha, abs=0.01)
    assert float(result.tokens_per_call) == pytest.approx(expected_tokens(alpha, 4), rel=0.06)
    with pytest.raises(ValueError, match="alpha must be in"):
        GivenRule(1.1)


def test_random_models_are_of_the_dtype_and_finite(tmp_path: Path) -> None:
    file = tmp_path / "small.gin"
    file.write_text(SMALL)
    model, params = random_t5(str(file), "bfloat16", 0)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(params)} == {"bfloat16"}
    cache = model.prefill(params, jnp.asarray([[5, 6, 1]]), 4)
    logits, _ = model.extend(params, cache, jnp.asarray([[0, 7]]), jnp.asarray([[0, 1]]))
    assert np.isfinite(logits).all() and np.ptp(logits) > 0
    gin.clear_config()


@pytest.mark.slow
def test_the_job_measures_the_paper_s_rows(tmp_path: Path) -> None:
    file = tmp_path / "small.gin"
    file.write_text(SMALL)
    command = [
        *("reproduce", "--level=simulated", f"--run_dir={tmp_path / 'run'}", "--only=speed"),
        *(f"--gin.TARGET='{file}'", f"--gin.DRAFTS=(('small', '{file}'),)"),
        *("--gin.NEW_TOKENS=40", "--gin.INPUT_LENGTH=8", "--gin.REPEATS=1"),
    ]
    assert main.run(command) == 0
    names = {finding.name: finding for finding in findings.load(tmp_path / "run")}
    table = names["table2"]
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert [(row["task"], row["temp"], row["γ"]) for row in rows] == [
        ("EnDe", 0.0, 7), ("EnDe", 1.0, 7), ("CNN/DM", 0.0, 5), ("CNN/DM", 1.0, 5),
    ]  # fmt: skip
    for row in rows:
        assert row["α"] == pytest.approx(row["α "], abs=0.2)  # the paper's, given
        assert row["tokens"] == "sampled"  # noise has no output to compare
    gin.clear_config()


def test_rows_that_are_there_are_not_measured_again(tmp_path: Path, monkeypatch) -> None:
    file = tmp_path / "small.gin"
    file.write_text(SMALL)
    part = Simulation(str(file), (("small", str(file)),), 8, 8, num_batches=1, repeats=1)
    measured, seconds = [], {"speculative": 1.0, "the target alone": 2.0}

    def measure(self, models, row):
        measured.append(row)
        if len(measured) == 3:
            raise KeyboardInterrupt
        values = {field.name: 1.0 for field in dataclasses.fields(BenchmarkRow)}
        values |= {"speedups": {"the target alone": Speedup(2, 2, 2)}, "reason": "", "rows": 1}
        values |= {
            "tokens_per_second": seconds,
            "compile_seconds": seconds,
            "gamma": row.gamma,
            "agreement": {},
        }
        names = {"task": row.task, "draft": row.draft, "temperature": row.temperature}
        return BenchmarkRow(**values | names)

    monkeypatch.setattr(Simulation, "_measure", measure)
    with pytest.raises(KeyboardInterrupt):
        part.findings(tmp_path)
    found = part.findings(tmp_path)
    assert len(measured) == 5  # two before the interruption, the interrupted one, and the rest
    assert len(found[1].rows) == 4
    gin.clear_config()
