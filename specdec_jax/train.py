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
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp
from absl import logging

from specdec_jax import checkpoints, data, replacing
from specdec_jax.errors import UserError
from specdec_jax.layers import Params
from specdec_jax.lm import Config
from specdec_jax.optimization import Optimizer, Schedule, make_optimizer
from specdec_jax.train_step import TrainState, init_state, make_step
from specdec_jax.training_run import Progress, TrainingRun
from specdec_jax.vocabulary import Vocabulary

_DEFAULT_OPTIMIZER = Optimizer()


class TrainResult(NamedTuple):
    """Where a run stands when `train` returns."""

    step: int
    params: Params
    finished: bool  # False: stopped by a signal or max_minutes; call again to go on
    validation: Mapping[str, float]  # the last validation's losses per task, and "mean"


def train(
    run_dir: str,
    *,
    model: Config,
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
    """Trains a network, a T5 or a language model, on a mixture of tasks, or goes on with training.

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
            replacing.tidy(os.path.join(run_dir, name))
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
        run = TrainingRun(
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
    model: Config,
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
            data.tokenize(task.path(split), task.prefix, vocabulary, source=task.source),
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
    model: Config,
    transform: optax.GradientTransformation,
    fingerprint: str,
    *,
    seed: int,
    init_from: str | None,
) -> tuple[TrainState, Progress]:
    """The state to go on from, and what is known beside it."""
    newest = manager.latest_step()
    if newest is None:
        params = None
        if init_from:
            _, params = checkpoints.load_params(init_from)
            checkpoints.check_params(model, params, f"The parameters in {init_from!r}")
        state = init_state(model, transform, seed=seed, params=params)
        return state, Progress(fingerprint=fingerprint)
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
    return state, Progress(int(extra["tokens"]), best, fingerprint)


def _restore(manager: ocp.CheckpointManager, step: int, model: Config, abstract: TrainState) -> Any:
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
