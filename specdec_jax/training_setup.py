"""What a run does before its loop: its directory, its data, and where it goes on.

Shared by `train` and `distill`; the layout of a run directory is train.py's.
"""

import contextlib
import fcntl
import math
import os
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp

from specdec_jax import checkpoints, data, replacing
from specdec_jax.errors import UserError
from specdec_jax.lm import Config
from specdec_jax.train_step import TrainState, init_state
from specdec_jax.training_run import Progress
from specdec_jax.vocabulary import Vocabulary


@contextlib.contextmanager
def opened(run_dir: str, cache_dir: str | None = None) -> Iterator[None]:
    """Holds a run directory against other processes, and clears up after a killed one.

    Args:
      run_dir: where the run lives; made if it is not there.
      cache_dir: where to keep compiled programs between processes, if anywhere.

    Raises:
      UserError: another process trains there.
    """
    os.makedirs(run_dir, exist_ok=True)
    with locked(run_dir):
        for name in ("best", "last"):
            replacing.tidy(os.path.join(run_dir, name))
        if cache_dir:
            jax.config.update("jax_compilation_cache_dir", os.path.abspath(cache_dir))
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
        yield


@contextlib.contextmanager
def locked(directory: str, *, doing: str = "trains") -> Iterator[None]:
    """Holds a directory against other processes; a killed one leaves no lock behind."""
    with open(os.path.join(directory, ".lock"), "w", encoding="utf-8") as f:
        try:
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"Another process {doing} in {directory}: wait for it, or name another directory."
            ) from None
        yield


def check_counts(**counts: int) -> None:
    """Refuses counts below 1."""
    for name, count in counts.items():
        if not isinstance(count, int) or count < 1:
            raise ValueError(f"{name} must be a whole number, 1 or above, not {count!r}.")


def load_pairs(
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


def checkpoint_manager(run_dir: str, keep: int) -> ocp.CheckpointManager:
    """Orbax's, of `<run_dir>/checkpoints`, which keeps the newest `keep`."""
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


def start(
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
