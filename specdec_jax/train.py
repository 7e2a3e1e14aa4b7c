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

import contextlib
import fcntl
import json
import math
import os
import signal
import threading
import time
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from absl import logging
from jax import Array

from specdec_jax import checkpoints, data
from specdec_jax.errors import UserError
from specdec_jax.layers import Params
from specdec_jax.optimization import Optimizer, Schedule, make_optimizer
from specdec_jax.t5 import T5Config
from specdec_jax.train_step import StepFunctions, TrainState, init_state, make_step, validate
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
        self.validation: tuple[int, dict[str, float]] = (-1, {})  # the last one: step and scores
        if os.path.isfile(path):
            with open(path, encoding="utf-8") as f:
                for line in f:
                    try:
                        entry = json.loads(line)
                        if entry["step"] <= step:
                            kept.append(line)
                            if "validation" in entry:
                                self.validation = (entry["step"], entry["validation"])
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
        checkpoint are missing, damaged, or don't fit the model.
      UserError: another process trains in `run_dir`.
    """
    _check_counts(
        tokens_per_batch=tokens_per_batch,
        num_buckets=num_buckets,
        max_source=max_source,
        max_target=max_target,
        round_size=round_size,
        save_every=save_every,
        keep=keep,
        eval_every=eval_every,
        eval_batches=eval_batches,
        log_every=log_every,
    )
    run_dir = os.path.abspath(run_dir)
    os.makedirs(run_dir, exist_ok=True)
    with _locked(run_dir):
        for name in ("best", "last"):
            checkpoints.tidy(os.path.join(run_dir, name))
        if cache_dir:
            jax.config.update("jax_compilation_cache_dir", os.path.abspath(cache_dir))
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
        train_pairs, validation_pairs = (
            _load_pairs(tasks, split, vocabulary_path, model, max_source, max_target)
            for split in ("train", "validation")
        )
        mixture = data.Mixture(
            list(train_pairs.values()),
            [task.rate for task in tasks],
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
        transform = make_optimizer(optimizer, schedule)
        functions = make_step(
            model, transform, seed=seed, label_smoothing=label_smoothing, z_loss=z_loss
        )
        manager = _checkpoint_manager(run_dir, keep)
        state, progress = _start(
            manager, model, transform, mixture.fingerprint, seed=seed, init_from=init_from
        )
        run = _Run(
            run_dir,
            model,
            manager,
            functions,
            schedule,
            optimizer.learning_rate,
            validation={
                name: list(data.eval_batches(pairs, mixture.buckets, max_batches=eval_batches))
                for name, pairs in validation_pairs.items()
            },
            rates={task.name: task.rate for task in tasks},
            state=state,
            progress=progress,
        )
        reason = run.loop(
            mixture,
            save_every=save_every,
            save_seconds=60 * save_minutes,
            eval_every=eval_every,
            log_every=log_every,
            max_minutes=max_minutes,
        )
        run.finish(reason)
        return TrainResult(run.step, run.state.params, reason is None, run.scores)


class _Progress(NamedTuple):
    """What a checkpoint says beside the state."""

    tokens: int = 0  # seen so far, without padding
    best: float = math.inf  # the lowest mean validation loss so far
    fingerprint: str = ""  # of the mixture: a resumed run must see the same batches


class _Run:
    """A run in its loop: where it stands, and how it logs, validates and saves."""

    def __init__(
        self,
        run_dir: str,
        model: T5Config,
        manager: ocp.CheckpointManager,
        functions: StepFunctions,
        schedule: Schedule,
        learning_rate: float,
        *,
        validation: Mapping[str, Sequence[data.Batch]],
        rates: Mapping[str, float],
        state: TrainState,
        progress: _Progress,
    ):
        self._run_dir, self._model, self._manager = run_dir, model, manager
        self._functions, self._schedule = functions, schedule
        self._learning_rate = learning_rate
        self._validation, self._rates = validation, rates
        self.state, self._progress = state, progress
        self.step = int(state.step)
        self._log = _Log(os.path.join(run_dir, "metrics.jsonl"), self.step)
        self._validated, self.scores = self._log.validation
        self._last_saved, self._last_save_time = self.step, time.monotonic()
        self._smoothed: float | None = None
        self._open_window()
        size = sum(x.size for x in jax.tree.leaves(state.params))
        logging.info(
            "%.2f M parameters; from step %d to %d", size / 1e6, self.step, schedule.total_steps
        )

    def loop(
        self,
        mixture: data.Mixture,
        *,
        save_every: int,
        save_seconds: float,
        eval_every: int,
        log_every: int,
        max_minutes: float | None,
    ) -> str | None:
        """Makes steps until the schedule ends -> None, or what stopped it before."""
        started, total = time.monotonic(), self._schedule.total_steps
        with _StopRequest() as stop:
            while self.step < total and stop.name is None:
                if max_minutes is not None and time.monotonic() - started > 60 * max_minutes:
                    return f"max_minutes = {max_minutes:g}"
                self._make_step(mixture.batch(self.step))
                evaluates = self.step % eval_every == 0
                saves = (
                    self.step % save_every == 0
                    or time.monotonic() - self._last_save_time > save_seconds
                )
                ends = self.step == total
                if saves or evaluates or ends or self.step % log_every == 0:
                    self._log_window()
                    if evaluates or ends:
                        self._validate()
                    if saves or ends:
                        self._save()
                    self._open_window()
        return stop.name if self.step < total else None

    def finish(self, reason: str | None) -> None:
        """Saves what is not saved; a run that came to its end leaves `last/` too."""
        if reason is None and self._validated != self.step:
            self._validate()
        self._save()
        if reason is None:
            checkpoints.save_params(
                os.path.join(self._run_dir, "last"),
                self._model,
                self.state.params,
                extra={"step": self.step, **self.scores},
            )
            best = os.path.join(self._run_dir, "best")
            logging.info("Finished at step %d; the best weights are in %s", self.step, best)
        else:
            logging.info(
                "Stopped by %s at step %d, which is saved; run again to go on.", reason, self.step
            )
        self._log.close()
        self._manager.close()

    def _open_window(self) -> None:
        """Begins a line of the log."""
        self._losses: list[Array] = []
        self._norm: Array | None = None
        self._window_tokens, self._window_start = 0, time.monotonic()

    def _make_step(self, batch: data.Batch) -> None:
        loss, grads = self._functions.gradients(
            self.state.params, self.state.step, batch.inputs, batch.targets
        )
        self.state, self._norm = self._functions.update(self.state, grads)
        self.step += 1
        self._losses.append(loss)
        self._window_tokens += batch.num_tokens
        tokens = self._progress.tokens + batch.num_tokens
        self._progress = self._progress._replace(tokens=tokens)

    def _log_window(self) -> None:
        """Writes a line of the log; raises where a loss or a gradient is not finite."""
        losses = np.array([float(x) for x in self._losses])
        if not len(losses):
            return
        first, norm = self.step - len(losses), float(self._norm)  # type: ignore[arg-type]
        if not np.isfinite([*losses, norm]).all():
            self._log.close()
            bad = np.flatnonzero(~np.isfinite(losses))
            what, at = ("loss", first + int(bad[0])) if bad.size else ("gradient", self.step - 1)
            raise FloatingPointError(
                f"The {what} of step {at} is not finite: lower the learning rate, and resume "
                f"from step {self._last_saved}'s checkpoint."
            )
        for loss in losses:
            smoothed = loss if self._smoothed is None else 0.98 * self._smoothed + 0.02 * loss
            self._smoothed = float(smoothed)
        seconds = time.monotonic() - self._window_start
        rate = float(self._schedule(self.step - 1)) * self._learning_rate
        self._log.write(
            step=self.step,
            loss=float(losses.mean()),
            losses=losses.tolist(),
            gradient_norm=norm,
            learning_rate=rate,
            tokens=self._progress.tokens,
            tokens_per_second=round(self._window_tokens / seconds, 1),
            time=round(time.time(), 1),
        )
        total = self._schedule.total_steps
        logging.info(
            "step %d/%d  loss %.4f  norm %.2f  rate %.2e  %.2f M tokens, %.0f/s  %s left",
            self.step,
            total,
            self._smoothed,
            norm,
            rate,
            self._progress.tokens / 1e6,
            self._window_tokens / seconds,
            _duration((total - self.step) * seconds / len(losses)),
        )

    def _validate(self) -> None:
        self.scores = validate(
            self._functions.scores, self.state.params, self._validation, self._rates
        )
        self._validated = self.step
        self._log.write(step=self.step, tokens=self._progress.tokens, validation=self.scores)
        shown = "  ".join(f"{k} {v:.3f}" for k, v in self.scores.items())
        logging.info("step %d  validation  %s", self.step, shown)
        if self.scores["mean"] < self._progress.best:
            self._progress = self._progress._replace(best=self.scores["mean"])
            export_best(
                self._run_dir, self._model, self.state.params, step=self.step, scores=self.scores
            )

    def _save(self) -> None:
        self._last_save_time = time.monotonic()
        if self.step == self._last_saved:
            return
        extra = self._progress._asdict()
        if not math.isfinite(self._progress.best):
            extra["best"] = None
        self._manager.save(
            self.step,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(self.state._asdict()), extra=ocp.args.JsonSave(extra)
            ),
        )
        self._last_saved = self.step


@contextlib.contextmanager
def _locked(run_dir: str) -> Iterator[None]:
    """Holds a run directory against other processes; a killed one leaves no lock behind."""
    with open(os.path.join(run_dir, ".lock"), "w", encoding="utf-8") as f:
        try:
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"Another process trains in {run_dir}: wait for it, or name another run directory."
            ) from None
        yield


def _check_counts(**counts: int) -> None:
    """Refuses counts below 1."""
    for name, count in counts.items():
        if not isinstance(count, int) or count < 1:
            raise ValueError(f"{name} must be a whole number, 1 or above, not {count!r}.")


def _load_pairs(
    tasks: Sequence[data.Task],
    split: str,
    vocabulary_path: str,
    model: T5Config,
    max_source: int,
    max_target: int,
) -> dict[str, data.Pairs]:
    """Every task's pairs of a split, as ids, within the lengths; a task without any is refused."""
    vocabulary = Vocabulary(vocabulary_path)
    if vocabulary.size > model.vocab_size:
        raise ValueError(
            f"The vocabulary has {vocabulary.size} pieces, the model's vocab_size is only "
            f"{model.vocab_size}."
        )
    pairs = {
        task.name: data.fit(
            data.tokenize(task.path(split), task.prefix, vocabulary),
            max_source,
            max_target,
            cut_source=task.cut_source,
            name=f"{task.name}-{split}",
        )
        for task in tasks
    }
    for task in tasks:
        if not len(pairs[task.name].sources):
            raise ValueError(
                f"No pair of task {task.name!r} is left of its split {split} "
                f"({task.path(split)}): all are empty or longer than max_source = {max_source} "
                f"or max_target = {max_target} tokens."
            )
    return pairs


def _checkpoint_manager(run_dir: str, keep: int) -> ocp.CheckpointManager:
    return ocp.CheckpointManager(
        os.path.join(run_dir, "checkpoints"),
        options=ocp.CheckpointManagerOptions(
            max_to_keep=keep, enable_async_checkpointing=False, cleanup_tmp_directories=True
        ),
        item_handlers={
            "state": ocp.StandardCheckpointHandler(),
            "extra": ocp.JsonCheckpointHandler(),
        },
    )


def _start(
    manager: ocp.CheckpointManager,
    model: T5Config,
    transform: optax.GradientTransformation,
    fingerprint: str,
    *,
    seed: int,
    init_from: str | None,
) -> tuple[TrainState, _Progress]:
    """The state to go on from, and what is known beside it."""
    newest = manager.latest_step()
    if newest is None:
        params = None
        if init_from:
            _, params = checkpoints.load_params(init_from)
            checkpoints.check_params(model, params, f"The parameters in {init_from!r}")
        state = init_state(model, transform, seed=seed, params=params)
        return state, _Progress(fingerprint=fingerprint)
    abstract = jax.eval_shape(lambda: init_state(model, transform, seed=seed))
    restored = _restore(manager, newest, model, abstract)
    # Fresh buffers: the update donates them, and restored ones may be shared.
    state = jax.tree.map(jnp.array, TrainState(**restored["state"]))
    extra = restored["extra"]
    if extra.get("fingerprint", fingerprint) != fingerprint:
        raise ValueError(
            f"{manager.directory} holds a run on other batches: its data, vocabulary, seed or "
            "batch settings have changed since; restore them, or name a new run directory "
            "(with init_from to start from this run's weights)."
        )
    best = math.inf if extra["best"] is None else float(extra["best"])
    return state, _Progress(int(extra["tokens"]), best, fingerprint)


def _restore(
    manager: ocp.CheckpointManager, step: int, model: T5Config, abstract: TrainState
) -> Any:
    """A checkpoint's `state` and `extra`; one sentence where it is damaged or another model's."""
    try:
        stored = manager.item_metadata(step)["state"]
        params, opt_state = stored["params"], stored["opt_state"]
    except Exception as error:  # Orbax, TensorStore and JSON each raise their own
        raise _damaged(manager, step) from error
    checkpoints.check_params(model, params, f"The parameters of {manager.directory}'s step {step}")
    try:
        return manager.restore(
            step,
            args=ocp.args.Composite(
                state=ocp.args.StandardRestore(abstract._asdict()), extra=ocp.args.JsonRestore()
            ),
        )
    except Exception as error:
        if _names(opt_state) == _names(abstract.opt_state):
            raise _damaged(manager, step) from error
        raise ValueError(
            f"Step {step} in {manager.directory} was written by another optimizer: name a new "
            "run directory."
        ) from error


def _names(tree: Any) -> set[str]:
    """The names of a tree's leaves, whatever holds them: here objects, on disk dicts."""
    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in paths}


def _damaged(manager: ocp.CheckpointManager, step: int) -> ValueError:
    older = [other for other in manager.all_steps() if other < step]
    path = os.path.join(manager.directory, str(step))
    start = f"to go on from step {max(older)}" if older else "to start anew"
    return ValueError(f"The checkpoint {path} is damaged: remove it {start}.")


def export_best(
    run_dir: str, config: T5Config, params: Params, *, step: int, scores: Mapping[str, float]
) -> None:
    """Replaces `<run_dir>/best` by these weights (`checkpoints.load_params` reads them)."""
    checkpoints.save_params(
        os.path.join(run_dir, "best"), config, params, extra={"step": step, **scores}
    )
