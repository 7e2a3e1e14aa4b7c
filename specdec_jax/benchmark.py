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
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from specdec_jax import baselines, measuring, partitioning, pretrained
from specdec_jax.benchmark_table import BenchmarkRow, table
from specdec_jax.costs import measure_costs, median_costs
from specdec_jax.drafters.model import ModelDrafter
from specdec_jax.errors import UserError
from specdec_jax.generate import (
    Settings,
    batches,
    check_lengths,
    decode,
    decode_plain,
    decoders,
)
from specdec_jax.pretrained import Pair
from specdec_jax.record import Record
from specdec_jax.sampling import Sampling
from specdec_jax.tasks import Task
from specdec_jax.terminal import JobProgress, say
from specdec_jax.types import Model, Params

_COST_SOURCES = 3  # batches that costs are measured on; one alone scatters too much


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
    record = Record(Path(run_dir), _about(model, task, settings, lines, repeats, dtype))
    with JobProgress(len(asked)) as progress:
        progress.skip(len(record.rows))
        for draft, temperature, gamma in asked:
            if (draft, temperature, gamma) in record.done:
                continue
            now = dataclasses.replace(settings, gamma=gamma, sampling=Sampling(temperature))
            record.add(measure(pairs[draft], draft, task.name, lines, now, repeats))
            progress.add(rows=1, tokens=0, examined=0, accepted=0)
    record.finish()
    say(table(record.rows))
    return record.rows


def measure(
    pair: Pair, draft: str, task: str, lines: Sequence[str], settings: Settings, repeats: int
) -> BenchmarkRow:
    """Times every way to decode lines, measures costs, and sets what Theorem 3.8 says beside it.

    Args:
      pair: what decodes.
      draft: its draft's name.
      task: the lines' name.
      lines: sources.
      settings: how; a fixed gamma.
      repeats: timed runs of each batch, each way; their median counts.
    """
    assert isinstance(settings.gamma, int)
    work = list(batches(pair, lines, settings))
    ways: dict[str, measuring.Way] = {
        measuring.SPECULATIVE: lambda batch: decode(pair, batch, settings),
        measuring.OURS: lambda batch: decode_plain(pair, batch, settings),
    }
    if pair.partitioner is None:
        ways |= baselines.ways(
            pair.target,
            pair.target_params,
            max_new_tokens=settings.max_new_tokens,
            sampling=settings.sampling,
            draft=_draft_model(pair) if settings.batch_size == 1 else None,
            gamma=settings.gamma,
        )
    race = measuring.race(ways, work, repeats=repeats, seed=settings.seed)
    step = -(-len(work) // _COST_SOURCES)
    costs = median_costs(
        [
            measure_costs(
                decoders(pair),
                batch.inputs,
                batch.keys,
                gammas=[settings.gamma],
                max_new_tokens=settings.max_new_tokens,
                sampling=settings.sampling,
            )
            for batch in work[::step]
        ]
    )
    return measuring.as_row(
        race,
        costs,
        task=task,
        draft=draft,
        temperature=settings.sampling.temperature,
        gamma=settings.gamma,
        batch_size=settings.batch_size,
        seed=settings.seed,
    )


def _draft_model(pair: Pair) -> tuple[Model, Params] | None:
    """A draft that is a model, for those who take no other."""
    drafter = pair.drafter
    return (drafter.model, pair.draft_params) if isinstance(drafter, ModelDrafter) else None


def _about(
    model: str, task: Task, settings: Settings, lines: Sequence[str], repeats: int, dtype: str
) -> dict[str, Any]:
    kept = dataclasses.asdict(settings)
    del kept["gamma"], kept["sampling"]
    names = {"model": model, "checkpoint": pretrained.fingerprint(model), "task": task.name}
    return {**names, **kept, "examples": len(lines), "repeats": repeats, "dtype": dtype}
