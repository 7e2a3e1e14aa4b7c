"""The benchmark: its figures against the decoders', and its run directory."""

import csv
import dataclasses
import json
from pathlib import Path

import gin
import pytest

from specdec_jax import main, pretrained
from specdec_jax.benchmark_table import BenchmarkRow, Speedup, table
from specdec_jax.generate import Settings, generate
from specdec_jax.t5x_adapter import is_installed
from tests.tiny_pair import tiny_pair

LINES = ("The quick", "brown fox", "jumps over")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A benchmark of a tiny pair, and its flags."""
    path = tmp_path_factory.mktemp("benchmark")
    (path / "lines.txt").write_text("\n".join(LINES))
    arguments = [
        *("benchmark", "--gin_file=gin/runs/benchmark.gin"),
        f"--gin.RUN_DIR='{path / 'run'}'",
        f"--gin.INPUTS='{path / 'lines.txt'}'",
        f"--gin.MODEL='{tiny_pair()}'",
        *("--gin.GAMMAS=(2,)", "--gin.REPEATS=2", "--gin.DRAFTS=('model', 'unigram')"),
        *("--gin.MAX_NEW_TOKENS=8", "--gin.INPUT_LENGTH=32", "--gin.TEMPERATURES=(0.0,)"),
    ]
    assert main.run(arguments) == 0
    gin.clear_config()
    return arguments


def run_dir(job: list[str]) -> Path:
    return Path(job[2].partition("=")[2].strip("'"))


def rows(job: list[str]) -> list[dict]:
    return [json.loads(line) for line in (run_dir(job) / "rows.jsonl").read_text().splitlines()]


def test_the_figures_are_the_decoders(job: list[str]) -> None:
    settings = Settings(gamma=2, max_new_tokens=8, input_length=32)
    pair = pretrained.load(tiny_pair())
    alone = [row for batch in generate(pair, LINES, settings) for row in batch]
    model, unigram = rows(job)
    assert (model["draft"], unigram["draft"]) == ("model", "unigram")
    assert model["alpha"] == sum(r.accepted for r in alone) / sum(r.examined for r in alone)
    calls = sum(r.rounds for r in alone)
    assert model["tokens_per_call"] == sum(len(r.tokens) for r in alone) / calls
    assert model["identical"] == model["rows"] == 3
    assert model["theorem"] >= model["generalised"] > 0 and model["expected"] > 0
    assert model["alpha_low"] <= model["alpha"] <= model["alpha_high"]
    low, ratio, high = (model["speedups"]["the target alone"][i] for i in (1, 0, 2))
    assert 0 < low <= ratio <= high
    assert ("T5X" in model["speedups"]) == is_installed()


def test_what_it_writes(job: list[str]) -> None:
    text = (run_dir(job) / "benchmark.md").read_text()
    assert "| lines | model | 0 | 2 | 1 |" in text and "3 of 3" in text
    assert is_installed() or "T5X is not installed: the baseline is our own loop" in text
    with (run_dir(job) / "benchmark.csv").open() as f:
        lines = list(csv.DictReader(f))
    assert [row["draft"] for row in lines] == ["model", "unigram"]
    assert float(lines[0]["speed-up over the target alone, ratio"]) > 0
    about = json.loads((run_dir(job) / "environment.json").read_text())
    assert about["version of jax"] and about["cores"]


def test_a_run_that_was_cut_off_goes_on(job: list[str], capsys: pytest.CaptureFixture) -> None:
    file = run_dir(job) / "rows.jsonl"
    first, second = file.read_text().splitlines()
    file.write_text(f"{first}\n{second[:40]}")
    assert main.run(job) == 0
    assert [row["draft"] for row in rows(job)] == ["model", "unigram"]
    assert file.read_text().splitlines()[0] == first
    gin.clear_config()


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--gin.MAX_NEW_TOKENS=9", "holds the benchmark of another"),
        ("--gin.DRAFTS=('modle',)", "A draft is model"),
        ("--gin.REPEATS=0", "needs repeats"),
        ("--gin.GAMMAS=()", "needs repeats"),
        ("--gin.GAMMAS=(0,)", "gamma must be 1 or above"),
    ],
)
def test_mistakes(job: list[str], flag: str, message: str, capsys: pytest.CaptureFixture) -> None:
    assert main.run([*job, flag]) == 1
    err = capsys.readouterr().err
    assert message in err and "Traceback" not in err
    gin.clear_config()


def test_t5x_stands_in_the_table_where_it_is() -> None:
    values = {field.name: 0 for field in dataclasses.fields(BenchmarkRow)}
    values |= {"task": "t", "draft": "model", "gamma": 7, "identical": 5, "rows": 5, "reason": ""}
    values |= {"tokens_per_second": {}, "compile_seconds": {}, "agreement": {}}
    speedups = {"the target alone": Speedup(2, 1.9, 2.1), "T5X": Speedup(3, 2.9, 3.1)}
    row = BenchmarkRow(**values | {"speedups": speedups})
    other = dataclasses.replace(row, speedups={"the target alone": Speedup(1, 1, 1)})
    text = table([row, other])
    assert "| over the target alone | over T5X |" in text and "not installed" not in text
    assert "| 2.00X (1.90-2.10) | 3.00X (2.90-3.10) | 5 of 5 |" in text and "| - |" in text
