"""Training and fine-tuning on a CPU or one accelerator, with optax and Orbax.

`train` is a function of its arguments and of what its run directory holds: killed
at any moment and called again, it goes on from the last checkpoint with the very
numbers of an unbroken run, since a batch is a pure function of the seed and the step
(data.py), dropout keys of the step, and the learning rate of the step.

A run directory:
* `checkpoints/<step>/`: Orbax; parameters, optimizer state, step, tokens seen;
* `best/`: the weights of the best validation so far (`checkpoints.load_params`);
* `last/`: the weights where the run ended;
* `metrics.jsonl`: one JSON object a line, of training or of validation;
* `config.gin`: written by the command, the operative configuration.

Shapes: B rows, T source length, K target length.
"""

import json
import math
import os
import signal
import threading
import time
import types
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from absl import logging
from jax import Array

from specdec_jax import checkpoints, data
from specdec_jax.layers import Params
from specdec_jax.optimization import Optimizer, Schedule, make_optimizer
from specdec_jax.t5 import T5Config
from specdec_jax.train_step import TrainState, init_state, make_step, validate
from specdec_jax.vocabulary import Vocabulary

_DEFAULT_OPTIMIZER = Optimizer()


class _StopRequest:
    """Turns SIGTERM and SIGINT into a flag while a run is in its loop."""

    def __init__(self) -> None:
        self.name: str | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "_StopRequest":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._set)
        return self

    def _set(self, number: int, frame: types.FrameType | None) -> None:
        self.name = signal.Signals(number).name
        signal.signal(number, self._before[number])  # a second one acts at once

    def __exit__(self, *unused: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


class _Log:
    """metrics.jsonl: appended to; what lies beyond the step resumed from is dropped."""

    def __init__(self, path: str, step: int):
        kept = []
        if os.path.isfile(path):
            with open(path, encoding="utf-8") as f:
                for line in f:
                    try:
                        if json.loads(line)["step"] <= step:
                            kept.append(line)
                    except (ValueError, KeyError):
                        pass  # the line that a kill cut off
        with open(f"{path}.partial", "w", encoding="utf-8") as f:
            f.writelines(kept)
        os.replace(f"{path}.partial", path)
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 (closed by `close`)

    def write(self, **fields: Any) -> None:
        self._file.write(json.dumps(fields) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_log(run_dir: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """A run's metrics, oldest first."""
    with open(os.path.join(os.fspath(run_dir), "metrics.jsonl"), encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def _duration(seconds: float) -> str:
    minutes = int(seconds) // 60
    return f"{minutes // 60}h{minutes % 60:02d}m" if minutes >= 60 else f"{minutes}m"


class TrainResult(NamedTuple):
    """Where a run stands when `train` returns."""

    step: int
    params: Params
    finished: bool  # False: stopped by a signal or max_minutes; call again to go on
    validation: Mapping[str, float]  # the last validation's losses per task, and "mean"


def train(
    run_dir: str,
    *,
    model: T5Config,
    tasks: Sequence[data.Task],
    vocabulary_path: str,
    schedule: Schedule,
    optimizer: Optimizer = _DEFAULT_OPTIMIZER,
    init_from: str | None = None,
    seed: int = 0,
    tokens_per_batch: int = 6144,
    num_buckets: int = 10,
    max_source: int = 64,
    max_target: int = 64,
    round_size: int = 16384,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    save_every: int = 500,
    save_minutes: float = 5.0,
    keep: int = 2,
    eval_every: int = 250,
    eval_batches: int = 8,
    log_every: int = 10,
    max_minutes: float | None = None,
    cache_dir: str | None = None,
) -> TrainResult:
    """Trains a T5 on a mixture of tasks, or goes on with training.

    If `run_dir` holds a checkpoint, the run is resumed from the newest one; to start
    anew, name a new directory. SIGTERM and SIGINT save a checkpoint and return.

    Args:
      run_dir: where the run lives; see the module's docstring.
      model: the network; its vocab_size must hold the vocabulary.
      tasks: the mixture; each needs the splits train and validation.
      vocabulary_path: a SentencePiece model.
      schedule: the learning rate's, and the number of steps.
      optimizer: the optimizer's.
      init_from: weights to start from (`checkpoints.load_params`): fine-tuning.
      seed: of parameters, order and dropout.
      tokens_per_batch: about B x (T + K), padding included.
      num_buckets: how many batch shapes; each is compiled once.
      max_source: T at most; longer sources are cut or their pairs dropped (`Task`).
      max_target: K at most; pairs with longer targets are dropped.
      round_size: examples that are sorted into buckets together.
      label_smoothing: see `train_step.cross_entropy`.
      z_loss: see `train_step.cross_entropy`.
      save_every: steps between checkpoints.
      save_minutes: the most minutes between checkpoints.
      keep: how many checkpoints to keep.
      eval_every: steps between validations; one more is made at the end.
      eval_batches: the most batches per task in a validation.
      log_every: steps between lines of the log.
      max_minutes: stop after so long, as if by SIGTERM.
      cache_dir: where to keep compiled programs between processes, if anywhere.

    Returns:
      A `TrainResult`.

    Raises:
      FloatingPointError: the loss is no longer finite; the step is named. The last
        checkpoint is from before.
      FileNotFoundError, ValueError: the data, the vocabulary, `init_from` or the
        checkpoint are missing or don't fit the model.
    """
    started = time.monotonic()
    run_dir = os.path.abspath(run_dir)
    os.makedirs(run_dir, exist_ok=True)
    for name in ("best", "last"):
        checkpoints.tidy(os.path.join(run_dir, name))
    if cache_dir:
        jax.config.update("jax_compilation_cache_dir", os.path.abspath(cache_dir))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    vocabulary = Vocabulary(vocabulary_path)
    if vocabulary.size > model.vocab_size:
        raise ValueError(
            f"The vocabulary has {vocabulary.size} pieces, the model's vocab_size is only "
            f"{model.vocab_size}."
        )

    def load(split: str) -> dict[str, data.Pairs]:
        return {
            task.name: data.fit(
                data.tokenize(task.path(split), task.prefix, vocabulary),
                max_source,
                max_target,
                cut_source=task.cut_source,
                name=f"{task.name}-{split}",
            )
            for task in tasks
        }

    rates = {task.name: task.rate for task in tasks}
    mixture = data.Mixture(
        list(load("train").values()),
        list(rates.values()),
        seed=seed,
        tokens_per_batch=tokens_per_batch,
        num_buckets=num_buckets,
        round_size=round_size,
    )
    logging.info(
        "%d batch shapes, %.0f%% padding: %s",
        len(mixture.buckets),
        100 * mixture.padding_fraction(),
        ", ".join("x".join(map(str, b)) for b in mixture.buckets),
    )
    validation = {
        name: list(data.eval_batches(pairs, mixture.buckets, max_batches=eval_batches))
        for name, pairs in load("validation").items()
    }

    transform = make_optimizer(optimizer, schedule)
    functions = make_step(
        model, transform, seed=seed, label_smoothing=label_smoothing, z_loss=z_loss
    )
    manager = ocp.CheckpointManager(
        os.path.join(run_dir, "checkpoints"),
        options=ocp.CheckpointManagerOptions(
            max_to_keep=keep, enable_async_checkpointing=False, cleanup_tmp_directories=True
        ),
        item_handlers={
            "state": ocp.StandardCheckpointHandler(),
            "extra": ocp.JsonCheckpointHandler(),
        },
    )
    state, tokens_seen, best = _start(manager, model, transform, seed=seed, init_from=init_from)
    step = int(state.step)
    size = sum(x.size for x in jax.tree.leaves(state.params))
    logging.info("%.2f M parameters; from step %d to %d", size / 1e6, step, schedule.total_steps)

    log = _Log(os.path.join(run_dir, "metrics.jsonl"), step)
    last_saved, last_save_time = step, time.monotonic()
    scores: dict[str, float] = {}

    def save() -> None:
        nonlocal last_saved, last_save_time
        if step != last_saved:
            extra = {"tokens": tokens_seen, "best": best if math.isfinite(best) else None}
            manager.save(
                step,
                args=ocp.args.Composite(
                    state=ocp.args.StandardSave(state._asdict()), extra=ocp.args.JsonSave(extra)
                ),
            )
            last_saved = step
        last_save_time = time.monotonic()

    def run_validation() -> None:
        nonlocal scores, best
        scores = validate(functions.scores, state.params, validation, rates)
        log.write(step=step, tokens=tokens_seen, validation=scores)
        shown = "  ".join(f"{k} {v:.3f}" for k, v in scores.items())
        logging.info("step %d  validation  %s", step, shown)
        if scores["mean"] < best:
            best = scores["mean"]
            export_best(run_dir, model, state.params, step=step, scores=scores)

    losses: list[Array] = []
    smoothed: float | None = None
    window_tokens, window_start, window_step = 0, time.monotonic(), step
    with _StopRequest() as stop:
        while step < schedule.total_steps and stop.name is None:
            if max_minutes is not None and time.monotonic() - started > 60 * max_minutes:
                stop.name = f"max_minutes = {max_minutes:g}"
                break
            batch = mixture.batch(step)
            loss, grads = functions.gradients(state.params, state.step, batch.inputs, batch.targets)
            state, norm = functions.update(state, grads)
            step += 1
            losses.append(loss)
            tokens_seen += batch.num_tokens
            window_tokens += batch.num_tokens

            saves = step % save_every == 0 or (
                time.monotonic() - last_save_time > 60 * save_minutes
            )
            evaluates = step % eval_every == 0
            if step % log_every == 0 or saves or evaluates or step == schedule.total_steps:
                values = np.array([float(x) for x in losses])
                if not np.isfinite(values).all():
                    bad = step - len(values) + int(np.flatnonzero(~np.isfinite(values))[0])
                    log.close()
                    raise FloatingPointError(
                        f"The loss of step {bad} is {values[~np.isfinite(values)][0]}: lower "
                        f"the learning rate, and resume from step {last_saved}'s checkpoint."
                    )
                if not math.isfinite(float(norm)):
                    log.close()
                    raise FloatingPointError(
                        f"The gradient of step {step - 1} is not finite: lower the learning "
                        f"rate, and resume from step {last_saved}'s checkpoint."
                    )
                for value in values:
                    smoothed = value if smoothed is None else 0.98 * smoothed + 0.02 * value
                seconds = time.monotonic() - window_start
                pace = (step - window_step) / seconds
                rate = float(schedule(step - 1))
                log.write(
                    step=step,
                    loss=float(values.mean()),
                    losses=[float(v) for v in values],
                    gradient_norm=float(norm),
                    learning_rate=rate * optimizer.learning_rate,
                    tokens=tokens_seen,
                    tokens_per_second=round(window_tokens / seconds, 1),
                    time=round(time.time(), 1),
                )
                logging.info(
                    "step %d/%d  loss %.4f  norm %.2f  rate %.2e  %.2f M tokens, %.0f/s  %s left",
                    step, schedule.total_steps, smoothed, float(norm),
                    rate * optimizer.learning_rate, tokens_seen / 1e6, window_tokens / seconds,
                    _duration((schedule.total_steps - step) / pace),
                )  # fmt: skip
                losses, window_tokens = [], 0
                if evaluates:
                    run_validation()
                if saves:
                    save()
                window_start, window_step = time.monotonic(), step

    finished = step >= schedule.total_steps
    if finished and step % eval_every:
        run_validation()
    save()
    if finished:
        checkpoints.save_params(
            os.path.join(run_dir, "last"), model, state.params, extra={"step": step, **scores}
        )
        logging.info("Finished at step %d; the best weights are in %s", step, run_dir + "/best")
    else:
        logging.info("Stopped by %s at step %d, which is saved; run again to go on.", stop.name,
                     step)  # fmt: skip
    log.close()
    manager.close()
    return TrainResult(step, state.params, finished, scores)


def _start(
    manager: ocp.CheckpointManager,
    model: T5Config,
    transform: optax.GradientTransformation,
    *,
    seed: int,
    init_from: str | None,
) -> tuple[TrainState, int, float]:
    """The state to go on from, the tokens seen, and the best validation so far."""
    newest = manager.latest_step()
    if newest is None:
        params = None
        if init_from:
            _, params = checkpoints.load_params(init_from)
            checkpoints.check_params(model, params, f"The parameters in {init_from!r}")
        return init_state(model, transform, seed=seed, params=params), 0, math.inf
    abstract = jax.eval_shape(lambda: init_state(model, transform, seed=seed))
    stored = manager.item_metadata(newest)["state"]
    checkpoints.check_params(
        model, stored["params"], f"The parameters of {manager.directory}'s step {newest}"
    )
    try:
        restored = manager.restore(
            newest,
            args=ocp.args.Composite(
                state=ocp.args.StandardRestore(abstract._asdict()), extra=ocp.args.JsonRestore()
            ),
        )
    except (ValueError, KeyError) as error:
        raise ValueError(
            f"Step {newest} in {manager.directory} was written by another optimizer or model: "
            f"name a new run directory ({error})."
        ) from error
    # Fresh buffers: the update donates them, and restored ones may be shared.
    state = jax.tree.map(jnp.array, TrainState(**restored["state"]))
    extra = restored["extra"]
    best = math.inf if extra["best"] is None else float(extra["best"])
    return state, int(extra["tokens"]), best


def export_best(
    run_dir: str, config: T5Config, params: Params, *, step: int, scores: Mapping[str, float]
) -> None:
    """Replaces `<run_dir>/best` by these weights (`checkpoints.load_params` reads them)."""
    checkpoints.save_params(
        os.path.join(run_dir, "best"), config, params, extra={"step": step, **scores}
    )
