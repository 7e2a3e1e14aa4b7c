"""A training run in its loop: making steps, logging, validating, saving, stopping."""

import json
import math
import os
import signal
import threading
import time
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging
from jax import Array

from specdec_jax import checkpoints
from specdec_jax.layers import Params
from specdec_jax.lm import Config
from specdec_jax.optimization import Schedule
from specdec_jax.train_step import StepFunctions, TrainState


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


class Progress(NamedTuple):
    """What a checkpoint says beside the state."""

    tokens: int = 0  # seen so far, without padding
    best: float = math.inf  # the lowest cost of a validation so far
    fingerprint: str = ""  # of the mixture: a resumed run must see the same batches


class Batch(Protocol):
    """The arrays of one step, in the order in which the step takes them."""

    def __iter__(self) -> Iterator[Any]: ...

    @property
    def num_tokens(self) -> int:
        """Tokens that are not padding, both sides."""


class TrainingRun:
    """A run in its loop: where it stands, and how it logs, validates and saves."""

    def __init__(
        self,
        run_dir: str,
        model: Config,
        manager: ocp.CheckpointManager,
        functions: StepFunctions,
        schedule: Schedule,
        learning_rate: float,
        *,
        validate: Callable[[Params], dict[str, float]],
        cost: Callable[[Mapping[str, float]], float] = lambda scores: scores["mean"],
        state: TrainState,
        progress: Progress,
    ):
        """Takes a run up.

        Args:
          run_dir: where it lives.
          model: the network.
          manager: of its checkpoints.
          functions: its steps.
          schedule: the learning rate's, and the number of steps.
          learning_rate: the schedule's top, for the log.
          validate: parameters -> scores.
          cost: of scores; `best/` is where it was lowest.
          state: where it stands.
          progress: what is known beside the state.
        """
        self._run_dir, self._model, self._manager = run_dir, model, manager
        self._functions, self._schedule = functions, schedule
        self._learning_rate = learning_rate
        self._validate_params, self._cost = validate, cost
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
        batch: Callable[[int, Params], Batch],
        *,
        eval_first: bool = False,
        save_every: int,
        save_seconds: float,
        eval_every: int,
        log_every: int,
        max_minutes: float | None,
    ) -> str | None:
        """Makes steps until the schedule ends -> None, or what stopped it before.

        Args:
          batch: the batch of a step, and of the parameters before it.
          eval_first: whether to validate before the first step, too.
          save_every: steps between checkpoints.
          save_seconds: the most seconds between checkpoints.
          eval_every: steps between validations.
          log_every: steps between lines of the log.
          max_minutes: stop after so long.
        """
        started, total = time.monotonic(), self._schedule.total_steps
        with _StopRequest() as stop:
            if eval_first and self._validated < 0:
                self._validate()
                self._open_window()
            while self.step < total and stop.name is None:
                if max_minutes is not None and time.monotonic() - started > 60 * max_minutes:
                    return f"max_minutes = {max_minutes:g}"
                self._make_step(batch(self.step, self.state.params))
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

    def _make_step(self, batch: Batch) -> None:
        loss, grads = self._functions.gradients(self.state.params, self.state.step, *batch)
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
        self.scores = self._validate_params(self.state.params)
        self._validated = self.step
        self._log.write(step=self.step, tokens=self._progress.tokens, validation=self.scores)
        shown = "  ".join(f"{k} {v:.3f}" for k, v in self.scores.items())
        logging.info("step %d  validation  %s", self.step, shown)
        cost = self._cost(self.scores)
        if cost < self._progress.best:
            self._progress = self._progress._replace(best=cost)
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


def export_best(
    run_dir: str, config: Config, params: Params, *, step: int, scores: Mapping[str, float]
) -> None:
    """Replaces `<run_dir>/best` by these weights (`checkpoints.load_params` reads them)."""
    checkpoints.save_params(
        os.path.join(run_dir, "best"), config, params, extra={"step": step, **scores}
    )
