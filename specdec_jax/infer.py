"""A task -> its predictions in shards of JSONL, as a job configured by gin (gin/runs/infer.gin).

    RUN_DIR/<task>-infer.jsonl-00000-of-00004    a shard, as T5X names it: rows 0, 4, 8, ...
    RUN_DIR/summary.json                         counts, acceptance, scores; when all is done
    RUN_DIR/job.json                             what made them: a rerun must be asked the same

A row is T5X's, `{"inputs": ..., "prediction": ..., "aux": {"scores": ...}}`, with `acceptance`.
A shard has its name when it is complete; a rerun passes over it, and goes on with the others
after their last whole batch. Process i of n writes the shards i, i + n, ...
"""

import dataclasses
import hashlib
import importlib
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from specdec_jax import __version__, partitioning, pretrained
from specdec_jax.batch_job import BatchJob
from specdec_jax.errors import UserError
from specdec_jax.generate import Generation, Settings, check_lengths, decode_lines
from specdec_jax.pretrained import Pair
from specdec_jax.tasks import Example, Task
from specdec_jax.terminal import JobProgress, say

MANY = 10_000  # shards: a number beyond it is a slip of the finger


def infer(
    *,
    run_dir: str,
    model: str,
    draft: str | None,
    task: Task,
    settings: Settings,
    dtype: str = "float32",
    num_shards: int | None = None,
    model_parallel: int = 1,
    num_devices: int | None = None,
) -> dict[str, Any] | None:
    """Decodes a task; a run that was killed goes on when the same is asked again.

    Args:
      run_dir: where the output goes.
      model: a pair, by its name or directory.
      draft: another draft, one of `pretrained.DRAFTS`; None is the pair's own.
      task: the examples, and how they are scored.
      settings: how they are decoded; `batch_size` is of all devices of a process together.
      dtype: of weights and activations, "float32" or "bfloat16".
      num_shards: files of output; None: one for each process.
      model_parallel: how many devices hold one target together (partitioning.py).
      num_devices: of each process; None: all.

    Returns:
      The summary; None where other processes are still at work.

    Raises:
      FileNotFoundError: no such file, pair or draft.
      UserError: the run was begun with other settings.
      ValueError: the settings don't go together, or the devices don't divide.
    """
    began = time.monotonic()
    num_shards = jax.process_count() if num_shards is None else num_shards
    if num_devices is not None and not 1 <= num_devices <= jax.local_device_count():
        raise ValueError(
            f"num_devices must be from 1 to {jax.local_device_count()}, the devices of this "
            f"process, not {num_devices}."
        )
    if not jax.process_count() <= num_shards <= MANY:
        raise ValueError(
            f"num_shards must be from {jax.process_count()}, the number of processes, to {MANY}, "
            f"not {num_shards}."
        )
    examples = task.examples()
    if not examples:
        raise UserError(f"The task {task.name} has no examples.")
    about = _about(model, draft, task, examples, settings, dtype, num_shards)
    job = Path(run_dir, "job.json")
    _check_begun(job, about)
    paths = [
        Path(run_dir, f"{task.name}-infer.jsonl-{i:05}-of-{num_shards:05}")
        for i in range(num_shards)
    ]
    mine = range(jax.process_index(), num_shards, jax.process_count())
    to_do = [i for i in mine if not paths[i].exists()]
    if len(to_do) < len(mine):
        say(f"{len(mine) - len(to_do)} of {len(mine)} shards are complete already.")
    if to_do:
        devices = jax.local_devices()[:num_devices]
        pair = partitioning.load_pair(
            model, draft=draft, dtype=dtype, model_parallel=model_parallel, devices=devices
        )
        check_lengths(pair, [example.inputs for example in examples], settings)
        _write(job, about)
        rows = [examples[i::num_shards] for i in to_do]
        with JobProgress(sum(map(len, rows))) as progress:
            for i, some in zip(to_do, rows, strict=True):
                numbers = range(i, len(examples), num_shards)
                _write_shard(pair, paths[i], some, numbers, settings, about, progress)
    return _summarize(Path(run_dir), paths, task, time.monotonic() - began)


def _about(
    model: str,
    draft: str | None,
    task: Task,
    examples: Sequence[Example],
    settings: Settings,
    dtype: str,
    num_shards: int,
) -> dict[str, Any]:
    """What the rows depend on, as JSON; the devices and the batch size are not of it."""
    return {
        "model": model,
        "draft": draft,
        "checkpoint": pretrained.fingerprint(model, draft=draft),
        "task": task.name,
        "examples": hashlib.sha256(json.dumps(examples).encode()).hexdigest(),
        "dtype": dtype,
        "num_shards": num_shards,
        **{k: v for k, v in dataclasses.asdict(settings).items() if k != "batch_size"},
        "version": __version__,
    }


def _check_begun(path: Path, about: dict[str, Any]) -> None:
    """Refuses a run directory of another job."""
    try:
        before = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return
    except ValueError:
        before = {}
    about = json.loads(json.dumps(about))
    differing = sorted(k for k in about.keys() | before.keys() if about.get(k) != before.get(k))
    if differing:
        raise UserError(
            f"{path.parent} holds a run with another {', '.join(differing)}: give the same to go "
            "on with it, or another RUN_DIR."
        )


def _write(path: Path, content: dict[str, Any]) -> None:
    """Writes JSON as a whole, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
    partial.replace(path)


def _write_shard(
    pair: Pair,
    path: Path,
    examples: Sequence[Example],
    numbers: Sequence[int],
    settings: Settings,
    about: dict[str, Any],
    progress: "JobProgress",
) -> None:
    lines = [example.inputs for example in examples]
    with BatchJob(
        path,
        [_shown(example) for example in examples],
        about,
        batch_size=settings.batch_size,
        as_json=_as_json,
    ) as job:
        progress.skip(job.done)
        for batch in job.write(
            decode_lines(pair, lines, settings, first=job.done, numbers=numbers)
        ):
            progress.add(
                rows=len(batch),
                tokens=sum(len(row.tokens) for row in batch),
                examined=sum(row.examined for row in batch),
                accepted=sum(row.accepted for row in batch),
            )


def _shown(example: Example) -> dict[str, str]:
    """What a row says of its example, under T5X's names."""
    shown = {"inputs_pretokenized": example.inputs}
    if example.targets is not None:
        shown["targets_pretokenized"] = example.targets
    return shown


def _as_json(row: Generation) -> dict[str, Any]:
    json_row = row.as_json()
    acceptance = json_row["acceptance"] | {"examined": row.examined, "accepted": row.accepted}
    return {
        "inputs": None,  # comes from the example
        "prediction": row.prediction,
        "aux": {"scores": row.score},
        "acceptance": acceptance,
    }


def _summarize(
    run_dir: Path, paths: Sequence[Path], task: Task, seconds: float
) -> dict[str, Any] | None:
    """Writes the summary, whole, once every shard is there."""
    missing = sum(not path.exists() for path in paths)
    if missing:
        say(f"{missing} of {len(paths)} shards are other processes' and not there yet.")
        return None
    rows = [json.loads(line) for path in paths for line in path.read_bytes().splitlines()]
    sums = {
        name: sum(row["acceptance"][name] for row in rows)
        for name in ("tokens", "rounds", "examined", "accepted")
    }
    scored = [row for row in rows if "targets_pretokenized" in row["inputs"]]
    targets = [row["inputs"]["targets_pretokenized"] for row in scored]
    summary = {
        "task": task.name,
        "rows": len(rows),
        "tokens": sums["tokens"],
        "target_calls": sums["rounds"],
        "tokens_per_call": sums["tokens"] / max(sums["rounds"], 1),
        "alpha": sums["accepted"] / sums["examined"] if sums["examined"] else None,
        "scores": task.score([row["prediction"] for row in scored], targets) if scored else {},
        "seconds": seconds,
        "processes": jax.process_count(),
        "devices": [device.device_kind for device in jax.local_devices()],
        "versions": {"specdec_jax": __version__, "jax": jax.__version__},
    }
    _write(run_dir / "summary.json", summary)
    alpha = f", alpha {summary['alpha']:.2f}" if sums["examined"] else ""
    scores = "".join(f", {name} {value:.1f}" for name, value in summary["scores"].items())
    say(
        f"{len(rows)} rows, {sums['tokens']} tokens in {sums['rounds']} target calls "
        f"({summary['tokens_per_call']:.2f} a call){alpha}{scores}"
    )
    return summary


if __name__ == "__main__":  # python -m specdec_jax.infer, as T5X's jobs are run
    sys.exit(importlib.import_module("specdec_jax.main").run(["infer", *sys.argv[1:]]))
