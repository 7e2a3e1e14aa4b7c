"""The run directory of a benchmark: its rows as they come, and what they were measured on."""

import dataclasses
import datetime
import importlib.metadata
import json
import os
import platform
from pathlib import Path
from typing import Any

import jax

from specdec_jax import __version__, t5x_adapter
from specdec_jax.benchmark_table import BenchmarkRow, Speedup, as_csv, table
from specdec_jax.errors import UserError


class Record:
    """The run directory: rows as they come."""

    def __init__(self, run_dir: Path, about: dict[str, Any]):
        """Reads what an interrupted run has left; refuses another benchmark's."""
        self.run_dir, self._file = run_dir, run_dir / "rows.jsonl"
        run_dir.mkdir(parents=True, exist_ok=True)
        job = run_dir / "job.json"
        text = json.dumps(about, indent=1) + "\n"
        if job.exists() and json.loads(job.read_text("utf-8")) != json.loads(text):
            raise UserError(
                f"{run_dir} holds the benchmark of another model, task or setting: give another "
                "RUN_DIR."
            )
        job.write_text(text, "utf-8")
        self.rows = self._read()

    def _read(self) -> list[BenchmarkRow]:
        rows = []
        lines = self._file.read_bytes().split(b"\n") if self._file.exists() else []
        for line in lines[:-1]:  # a line that was cut off is measured again
            fields = json.loads(line)
            fields["speedups"] = {k: Speedup(*v) for k, v in fields["speedups"].items()}
            rows.append(BenchmarkRow(**fields))
        self._file.write_bytes(b"".join(line + b"\n" for line in lines[:-1]))
        return rows

    @property
    def done(self) -> set[tuple[str, float, int]]:
        """The drafts, temperatures and gammas that were measured."""
        return {(row.draft, row.temperature, row.gamma) for row in self.rows}

    def add(self, row: BenchmarkRow) -> None:
        """Keeps a measurement."""
        self.rows.append(row)
        with self._file.open("ab") as f:
            f.write(json.dumps(dataclasses.asdict(row)).encode() + b"\n")

    def finish(self) -> None:
        """Writes the tables, and what they were measured on."""
        (self.run_dir / "benchmark.md").write_text(table(self.rows) + "\n", "utf-8")
        (self.run_dir / "benchmark.csv").write_text(as_csv(self.rows), "utf-8")
        write_environment(self.run_dir)


def write_environment(run_dir: Path) -> None:
    """Writes RUN_DIR/environment.json."""
    text = json.dumps(environment(), indent=1) + "\n"
    (run_dir / "environment.json").write_text(text, "utf-8")


def environment() -> dict[str, Any]:
    """What a measurement depends on, beside what was asked for."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "specdec_jax": __version__,
        **{f"version of {name}": version for name, version in _versions().items()},
        "python": platform.python_version(),
        "back end": jax.default_backend(),
        "devices": [device.device_kind for device in jax.local_devices()],
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "load before": os.getloadavg()[0],
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
    }


def _versions() -> dict[str, str | None]:
    """Of all that may take part; None of what is not installed."""
    found = t5x_adapter.versions()
    for name in ("torch", "transformers", "ctranslate2"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def _processor() -> str:
    """Its model, where Linux tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
