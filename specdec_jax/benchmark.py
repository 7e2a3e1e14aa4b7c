"""The paper's Table 2 for a pair of one's own, as a job configured by gin (gin/runs/benchmark.gin).

    RUN_DIR/rows.jsonl        a measurement a line; a rerun goes on after the last one
    RUN_DIR/benchmark.md      the table; benchmark.csv has all the figures
    RUN_DIR/environment.json  versions, devices, threads, flags

Every way to decode is timed in turn on the same batches, in another order each time, in one
process: T5X's own loop where T5X is installed (t5x_decoding.py), the target alone in ours, and
speculation. A time is of a whole decode, the encoder and the draft in it, until its result is
ready. What has not run before runs once untimed: compilation is outside, and reported apart.
"""

import dataclasses
import datetime
import functools
import json
import os
import platform
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from specdec_jax import __version__, partitioning, pretrained, t5x_adapter, t5x_decoding
from specdec_jax.analysis import walltime_improvement
from specdec_jax.benchmark_table import (
    OURS,
    SPECULATIVE,
    T5X,
    T5X_GATHER,
    BenchmarkRow,
    Speedup,
    as_csv,
    table,
)
from specdec_jax.costs import Costs, measure_costs
from specdec_jax.errors import UserError
from specdec_jax.generate import (
    Batch,
    Settings,
    batches,
    check_lengths,
    decode,
    decode_plain,
    decoders,
)
from specdec_jax.model import T5Model
from specdec_jax.pretrained import Pair
from specdec_jax.sampling import Sampling
from specdec_jax.speed import timed
from specdec_jax.tasks import Task
from specdec_jax.terminal import JobProgress, say

_RESAMPLES = 1000  # of the batches, for the intervals


def benchmark(
    *,
    run_dir: str,
    model: str,
    task: Task,
    settings: Settings,
    drafts: Sequence[str] = ("model",),
    temperatures: Sequence[float] = (0.0, 1.0),
    gammas: Sequence[int] = (3, 5, 7),
    max_examples: int = 20,
    repeats: int = 5,
    dtype: str = "float32",
    model_parallel: int = 1,
    num_devices: int | None = None,
) -> list[BenchmarkRow]:
    """Measures every draft, temperature and gamma on the task's first examples.

    Args:
      run_dir: where the output goes.
      model: a pair, by its name or directory.
      task: what to decode.
      settings: lengths, batch size and seed; gamma and temperature are set here.
      drafts: names, of `pretrained.DRAFTS`.
      temperatures: of the sampling.
      gammas: guesses a round.
      max_examples: so many of the task's examples.
      repeats: timed runs of each batch, each way; their median counts.
      dtype: of weights and activations.
      model_parallel: see `partitioning.load_pair`.
      num_devices: of this process; None: all.

    Raises:
      UserError: the directory holds another benchmark; or there is nothing to measure.
      ValueError, FileNotFoundError: as the parts raise.
    """
    if repeats < 1 or max_examples < 1 or not (drafts and temperatures and gammas):
        raise UserError("A benchmark needs repeats, max_examples, drafts, temperatures and gammas.")
    lines = [example.inputs for example in task.examples()[:max_examples]]
    devices = jax.local_devices()[:num_devices]
    load = functools.partial(
        partitioning.load_pair, model, dtype=dtype, model_parallel=model_parallel, devices=devices
    )
    pairs = {draft: load(draft=draft) for draft in drafts}  # a wrong name is told before the work
    check_lengths(next(iter(pairs.values())), lines, settings)
    asked = [
        (draft, temperature, gamma)
        for draft in drafts
        for temperature in temperatures
        for gamma in gammas
    ]
    record = _Record(Path(run_dir), _about(model, task, settings, lines, repeats, dtype))
    with JobProgress(len(asked)) as progress:
        progress.skip(len(record.rows))
        for draft, temperature, gamma in asked:
            if (draft, temperature, gamma) in record.done:
                continue
            now = dataclasses.replace(settings, gamma=gamma, sampling=Sampling(temperature))
            row = _measure(pairs[draft], draft, task.name, lines, now, repeats)
            record.add(row)
            progress.add(rows=1, tokens=0, examined=0, accepted=0)
    record.finish()
    say(table(record.rows))
    return record.rows


def _measure(
    pair: Pair, draft: str, task: str, lines: Sequence[str], settings: Settings, repeats: int
) -> BenchmarkRow:
    """Times every way on every batch."""
    shuffle = random.Random(settings.seed)
    t5x = _t5x_ways(pair)
    tokens: dict[str, list[int]] = {}
    seconds: dict[str, list[float]] = {}
    compiling: dict[str, float] = {}
    accepted = examined = rounds = identical = rows = 0
    shapes, costs = set(), None
    for batch in batches(pair, lines, settings):
        ways: dict[str, Callable[[], Any]] = {
            SPECULATIVE: functools.partial(decode, pair, batch, settings),
            OURS: functools.partial(decode_plain, pair, batch, settings),
        }
        ways |= {name: functools.partial(way, batch, settings) for name, way in t5x.items()}
        first = {name: timed(way) for name, way in ways.items()}
        if batch.inputs.shape not in shapes:
            shapes.add(batch.inputs.shape)
            for name, (_, took) in first.items():
                compiling[name] = compiling.get(name, 0.0) + took
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(repeats):
            for name in shuffle.sample(list(ways), len(ways)):
                times[name].append(timed(ways[name])[1])
        real = np.flatnonzero(batch.has_text)
        results = {name: jax.device_get(result) for name, (result, _) in first.items()}
        for name, result in results.items():
            tokens.setdefault(name, []).append(int(result.lengths[real].sum()))
            seconds.setdefault(name, []).append(float(np.median(times[name])))
        speculative = results[SPECULATIVE]
        accepted += int(speculative.accepted[real].sum())
        examined += int(speculative.examined[real].sum())
        rounds += int(speculative.rounds[real].sum())
        rows += len(real)
        identical += sum(
            all(np.array_equal(speculative.tokens[i], r.tokens[i]) for r in results.values())
            for i in real
        )
        costs = costs or _costs(pair, batch, settings)
    assert costs is not None
    assert isinstance(settings.gamma, int)
    alpha = accepted / examined if examined else float("nan")
    gamma, verification = settings.gamma, costs.verification[settings.gamma]
    speedups = {name: _speedup(tokens, seconds, name, settings.seed) for name in (OURS, *t5x)}
    expected = walltime_improvement(alpha, gamma, costs.draft, verification)
    return BenchmarkRow(
        task=task,
        draft=draft,
        temperature=settings.sampling.temperature,
        gamma=gamma,
        batch_size=settings.batch_size,
        alpha=alpha,
        c=costs.draft,
        verification=verification,
        theorem=walltime_improvement(alpha, gamma, costs.draft),
        expected=expected,
        tokens_per_call=sum(tokens[SPECULATIVE]) / max(rounds, 1),
        speedups=speedups,
        tokens_per_second={
            name: float(np.median(np.divide(tokens[name], seconds[name]))) for name in tokens
        },
        compile_seconds=compiling,
        identical=identical if settings.sampling.temperature == 0 else None,
        rows=rows,
        reason="" if speedups[OURS].ratio >= 1 else _reason(alpha, gamma, costs),
    )


def _t5x_ways(pair: Pair) -> dict[str, Callable[[Batch, Settings], Any]]:
    """T5X's own decoding of the same parameters, where T5X is installed."""
    if not t5x_adapter.is_installed() or pair.partitioner is not None:
        return {}
    if not isinstance(pair.target, T5Model):
        return {}
    model, params = t5x_adapter.to_t5x(pair.target, pair.target_params)

    def way(model: Any) -> Callable[[Batch, Settings], Any]:
        return lambda batch, settings: t5x_decoding.t5x_decode(
            model,
            params,
            batch.inputs,
            batch.keys[0],
            max_new_tokens=settings.max_new_tokens,
            sampling=settings.sampling,
        )

    return {T5X: way(model), T5X_GATHER: way(t5x_adapter.with_gather(model))}


def _costs(pair: Pair, batch: Batch, settings: Settings) -> Costs:
    assert isinstance(settings.gamma, int)
    return measure_costs(
        decoders(pair),
        batch.inputs,
        batch.keys,
        gammas=[settings.gamma],
        max_new_tokens=settings.max_new_tokens,
        sampling=settings.sampling,
    )


def _speedup(
    tokens: dict[str, list[int]], seconds: dict[str, list[float]], baseline: str, seed: int
) -> Speedup:
    """Tokens/s over the baseline's, of all batches together; batches are resampled."""
    of, over = (
        np.asarray([tokens[name], seconds[name]], np.float64) for name in (SPECULATIVE, baseline)
    )

    def ratio(chosen: np.ndarray) -> np.ndarray:
        """int[..., M] places of batches -> [...]."""
        here, there = (sums[:, chosen].sum(axis=-1) for sums in (of, over))
        return (here[0] / here[1]) / (there[0] / there[1])

    places = np.arange(of.shape[1])
    resampled = np.random.default_rng(seed).choice(places, (_RESAMPLES, len(places)))
    low, high = np.quantile(ratio(resampled), (0.025, 0.975))
    return Speedup(float(ratio(places)), float(low), float(high))


def _reason(alpha: float, gamma: int, costs: Costs) -> str:
    """Why speculation does not pay, and what would."""
    verification = costs.verification[gamma]
    needed = next(
        (
            percent / 100
            for percent in range(100)
            if walltime_improvement(percent / 100, gamma, costs.draft, verification) >= 1
        ),
        None,
    )
    cost = (
        f"a round costs {gamma * costs.draft + verification:.1f} calls of one token, the guesses "
        f"{gamma * costs.draft:.1f} and their verification {verification:.1f}"
    )
    if needed is None:
        return f"{cost}, more than the {gamma + 1} tokens that it can give: no draft would pay"
    if alpha >= needed:
        return (
            f"{cost}: at alpha {alpha:.2f} that should pay, if barely; so short a decode also "
            "pays for the draft's reading of the source"
        )
    return f"{cost}: alpha would have to be {needed:.2f}, and is {alpha:.2f}"


class _Record:
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
        text = json.dumps(environment(), indent=1) + "\n"
        (self.run_dir / "environment.json").write_text(text, "utf-8")


def _about(
    model: str, task: Task, settings: Settings, lines: Sequence[str], repeats: int, dtype: str
) -> dict[str, Any]:
    kept = dataclasses.asdict(settings)
    del kept["gamma"], kept["sampling"]
    names = {"model": model, "checkpoint": pretrained.fingerprint(model), "task": task.name}
    return {**names, **kept, "examples": len(lines), "repeats": repeats, "dtype": dtype}


def environment() -> dict[str, Any]:
    """What a measurement depends on, beside what was asked for."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "specdec_jax": __version__,
        **{f"version of {name}": version for name, version in t5x_adapter.versions().items()},
        "python": platform.python_version(),
        "back end": jax.default_backend(),
        "devices": [device.device_kind for device in jax.local_devices()],
        "processor": platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "load before": os.getloadavg()[0],
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
    }
