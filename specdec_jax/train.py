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

import functools
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from absl import logging

from specdec_jax import data
from specdec_jax.layers import Params
from specdec_jax.lm import Config
from specdec_jax.optimization import Optimizer, Schedule, make_optimizer
from specdec_jax.train_step import cross_entropy, make_step, validate
from specdec_jax.training_run import TrainingRun
from specdec_jax.training_setup import check_counts, checkpoint_manager, load_pairs, opened, start

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
    check_counts(
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
    with opened(run_dir, cache_dir):
        train_pairs, validation_pairs = (
            load_pairs(tasks, split, vocabulary_path, model, max_source, max_target)
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
            model,
            transform,
            seed=seed,
            losses=functools.partial(cross_entropy, label_smoothing=label_smoothing, z_loss=z_loss),
        )
        manager = checkpoint_manager(run_dir, keep)
        state, progress = start(
            manager, model, transform, mixture.fingerprint, seed=seed, init_from=init_from
        )
        batches = {
            name: list(data.eval_batches(pairs, mixture.buckets, max_batches=eval_batches))
            for name, pairs in validation_pairs.items()
        }
        rates = {task.name: task.rate for task in tasks}
        run = TrainingRun(
            run_dir,
            model,
            manager,
            functions,
            schedule,
            optimizer.learning_rate,
            validate=lambda params: validate(functions.scores, params, batches, rates),
            state=state,
            progress=progress,
        )
        reason = run.loop(
            lambda step, params: mixture.batch(step),
            save_every=save_every,
            save_seconds=60 * save_minutes,
            eval_every=eval_every,
            log_every=log_every,
            max_minutes=max_minutes,
        )
        run.finish(reason)
        return TrainResult(run.step, run.state.params, reason is None, run.scores)
