"""Jobs in shards: the same rows on one device, on eight, and from two processes."""

import json
import os
import socket
import subprocess
import sys
import time
from itertools import chain
from pathlib import Path

import pytest

from specdec_jax.checkpoints import load_params
from tests.t5x_format import write_legacy
from tests.tiny_pair import save_pair

ROOT = Path(__file__).parent.parent
WORDS = ("The quick", "brown fox", "jumps", "over the", "lazy dog", "A package", "with tools")
SHARDS = [f"rows-infer.jsonl-{i:05}-of-00002" for i in range(2)]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pair whose target is a checkpoint of T5X's format, and a TSV of 11 rows."""
    path = tmp_path_factory.mktemp("job")
    own = save_pair(path / "own")
    pair = path / "pair"
    for part in ("target", "draft"):
        write_legacy(pair / part / "checkpoint_7", load_params(own / part)[1])
    (own / "spiece.model").rename(pair / "spiece.model")
    rows = [f"{WORDS[i % 7]} {WORDS[i % 5]}\t{WORDS[i % 3]}" for i in range(11)]
    (path / "rows.tsv").write_text("".join(f"{row}\n" for row in rows))
    return path


def command(job: Path, run_dir: str, *flags: str) -> list[str]:
    return [
        *(sys.executable, "-m", "specdec_jax.infer", "--gin_file=gin/runs/infer.gin"),
        f"--gin.RUN_DIR='{job / run_dir}'",
        f"--gin.MODEL='{job / 'pair'}'",
        f"--gin.INPUTS='{job / 'rows.tsv'}'",
        *("--gin.NUM_SHARDS=2", "--gin.GAMMA=2", "--gin.TEMPERATURE=1.0"),
        *("--gin.MAX_NEW_TOKENS=10", "--gin.INPUT_LENGTH=32", "--gin.METRICS=('bleu',)"),
        *flags,
    ]


def start(devices: int, arguments: list[str]) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "PYTHONPATH": str(ROOT),
    }
    return subprocess.Popen(arguments, cwd=ROOT, env=environment, text=True, stderr=subprocess.PIPE)


def finish(process: subprocess.Popen[str]) -> str:
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return err


def output(job: Path, run_dir: str) -> list[list[dict]]:
    texts = [(job / run_dir / shard).read_text().splitlines() for shard in SHARDS]
    return [[json.loads(line) for line in lines] for lines in texts]


def assert_same(found: list[list[dict]], want: list[list[dict]]) -> None:
    for got, expected in zip(chain(*found), chain(*want), strict=True):
        assert got["aux"].pop("scores") == pytest.approx(expected["aux"]["scores"], abs=1e-4)
        assert got == {**expected, "aux": {}}


@pytest.fixture(scope="module")
def alone(job: Path) -> list[list[dict]]:
    err = finish(start(1, command(job, "one")))
    assert "11 rows" in err and "alpha" in err and "bleu" in err
    return output(job, "one")


def test_rows_are_as_t5x_writes_them(job: Path, alone: list[list[dict]]) -> None:
    assert [len(shard) for shard in alone] == [6, 5]
    row = alone[1][0]
    assert row["inputs"] == {
        "inputs_pretokenized": "brown fox brown fox", "targets_pretokenized": "brown fox",
    }  # fmt: skip
    assert isinstance(row["prediction"], str) and row["aux"]["scores"] < 0
    assert row["acceptance"]["examined"] >= row["acceptance"]["accepted"]
    summary = json.loads((job / "one" / "summary.json").read_text())
    assert summary["rows"] == 11 and 0 < summary["alpha"] < 1 and "bleu" in summary["scores"]
    assert summary["tokens"] == sum(row["acceptance"]["tokens"] for row in chain(*alone))


def test_eight_devices_write_the_same(job: Path, alone: list[list[dict]]) -> None:
    finish(start(8, command(job, "eight", "--gin.BATCH_SIZE=8")))
    assert_same(output(job, "eight"), alone)


@pytest.mark.slow
def test_a_mesh_writes_the_same(job: Path, alone: list[list[dict]]) -> None:
    finish(start(8, command(job, "mesh", "--gin.BATCH_SIZE=4", "--gin.MODEL_PARALLEL=2")))
    assert_same(output(job, "mesh"), alone)


def test_two_processes_write_the_same(job: Path, alone: list[list[dict]]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = [f"--coordinator_address=127.0.0.1:{port}", "--process_count=2"]
    processes = [start(1, command(job, "two", *flags, f"--process_index={i}")) for i in range(2)]
    said = [finish(process) for process in processes]
    assert_same(output(job, "two"), alone)
    assert (job / "two" / "summary.json").exists()
    assert any("11 rows" in err for err in said)


def test_a_killed_run_goes_on(job: Path, alone: list[list[dict]]) -> None:
    arguments = command(job, "killed")
    process = start(1, arguments)
    partial = job / "killed" / f"{SHARDS[0]}.partial"
    while not (partial.exists() and partial.stat().st_size) and process.poll() is None:
        time.sleep(0.01)
    process.kill()
    process.communicate()
    assert not (job / "killed" / "summary.json").exists()
    # What another process would have finished meanwhile is passed over.
    there = job / "killed" / SHARDS[1]
    if not there.exists():
        there.write_bytes((job / "one" / SHARDS[1]).read_bytes())
    for left in (job / "killed").glob(f"{SHARDS[1]}.partial*"):
        left.unlink()
    before = there.stat().st_mtime_ns
    assert "1 of 2 shards are complete already" in finish(start(1, arguments))
    assert_same(output(job, "killed"), alone)
    assert there.stat().st_mtime_ns == before


def test_another_job_in_its_directory_is_refused(job: Path, alone: list[list[dict]]) -> None:
    process = start(1, command(job, "one", "--gin.GAMMA=3"))
    _, err = process.communicate()
    assert process.returncode == 1
    assert "holds a run with another gamma" in err and "Traceback" not in err
