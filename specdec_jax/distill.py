"""Distillation: a draft learns to guess what its target would write.

The acceptance rate alpha is the mean of beta = sum min(p, q) over the positions of the
target's output (Theorem 3.5 of Leviathan et al. 2023): the draft is trained to be close to
p, position by position, rather than to be right. As in DistillSpec (Zhou et al. 2024,
arXiv:2310.08461), with any of several objectives (distill_losses.py), on any mixture of

* `references`: the corpus's targets,
* `target`: the target's own samples, at a temperature,
* `greedy`: what the target writes at temperature 0,
* `draft`: the draft's own samples, written anew every some steps (on-policy).

The teacher runs once: what it writes, and its probabilities at every position, are kept on
disk (teacher_cache.py), but for the draft's samples. The run directory is train.py's, and so
is what happens when a run is killed and called again.

Validation is teacher-forced, on the references and on samples of the target at temperature
1, with all of p's probabilities: per task and kind `<task>/<kind>/alpha`, the mean of beta,
and `/agreement`, the share of positions where both find the same token likeliest (alpha at
temperature 0). `mean` is the mean of alpha over the target's samples, weighted by the tasks'
rates; `best/` is where it was highest.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging

from specdec_jax import data, distill_data, pretrained, teacher
from specdec_jax.distill_losses import acceptance, mixed
from specdec_jax.model import t5_model
from specdec_jax.optimization import Optimizer, Schedule, make_optimizer
from specdec_jax.resources import ASSETS
from specdec_jax.sampling import Sampling
from specdec_jax.t5 import T5Config
from specdec_jax.train import TrainResult
from specdec_jax.train_step import make_step
from specdec_jax.training_run import TrainingRun
from specdec_jax.training_setup import check_counts, checkpoint_manager, load_pairs, opened, start

KINDS = ("references", "target", "greedy", "draft")
_DEFAULT_OPTIMIZER = Optimizer()


def distill(
    run_dir: str,
    *,
    target: str,
    model: T5Config,
    tasks: Sequence[data.Task],
    vocabulary_path: str,
    schedule: Schedule,
    optimizer: Optimizer = _DEFAULT_OPTIMIZER,
    init_from: str | None = None,
    objective: str | Mapping[str, float] = "forward_kl",
    kinds: str | Mapping[str, float] = "target",
    temperature: float = 1.0,
    examples: int | Mapping[str, int] | None = None,
    eval_examples: int = 192,
    teacher_dir: str | None = None,
    top_k: int = 32,
    shard_size: int = 2048,
    decode_batch: int = 64,
    refresh_every: int = 200,
    seed: int = 0,
    tokens_per_batch: int = 3072,
    num_buckets: int = 6,
    max_source: int = 64,
    max_target: int = 64,
    round_size: int = 16384,
    save_every: int = 500,
    save_minutes: float = 5.0,
    keep: int = 2,
    eval_every: int = 250,
    log_every: int = 10,
    max_minutes: float | None = None,
    cache_dir: str | None = None,
) -> TrainResult:
    """Distils a target into a draft, or goes on with it; see the module's docstring.

    SIGTERM and SIGINT in the loop save a checkpoint and return; while the teacher runs,
    they end the process, and the next goes on behind the last whole shard.

    Args:
      run_dir: where the run lives; see train.py.
      target: weights (`checkpoints.load_params`), or a pair's name or directory.
      model: the draft; its vocab_size must be the target's.
      tasks: the mixture; each needs the splits train and validation.
      vocabulary_path: a SentencePiece model.
      schedule: the learning rate's, and the number of steps.
      optimizer: the optimizer's.
      init_from: weights to start from, or a pair's name or directory, whose draft it is.
      objective: one of `distill_losses.OBJECTIVES`, or their weights.
      kinds: one of `KINDS`, or their weights.
      temperature: of the samples, the target's and the draft's; p and q themselves are
        compared at 1.
      examples: the most training pairs of a task, or of each; chosen at random.
      eval_examples: the most validation pairs of each task and kind.
      teacher_dir: where the teacher's work is kept, for several runs; `<run_dir>/teacher`.
      top_k: how many of p's probabilities are kept; V or above for all.
      shard_size: pairs per shard of the teacher's work.
      decode_batch: rows that are decoded together.
      refresh_every: steps between two writings of the draft.
      seed: of parameters, order, samples and dropout.
      tokens_per_batch: about B x (T + K), padding included.
      num_buckets: how many batch shapes; each is compiled once.
      max_source: T at most; longer sources are cut or their pairs dropped (`Task`).
      max_target: K at most; longer references are dropped, samples cut.
      round_size: examples that are sorted into buckets together.
      save_every: steps between checkpoints.
      save_minutes: the most minutes between checkpoints.
      keep: how many checkpoints to keep.
      eval_every: steps between validations; one is made before the first, one at the end.
      log_every: steps between lines of the log.
      max_minutes: stop the loop after so long, as if by SIGTERM.
      cache_dir: where to keep compiled programs between processes, if anywhere.

    Raises:
      FloatingPointError: the loss is no longer finite; the step is named.
      FileNotFoundError, ValueError: as `train`; or the models' vocabularies differ, the
        teacher's work is that of another one, or there is no such objective or kind.
      UserError: another process trains in `run_dir`.
    """
    check_counts(
        eval_examples=eval_examples,
        top_k=top_k,
        shard_size=shard_size,
        decode_batch=decode_batch,
        refresh_every=refresh_every,
        tokens_per_batch=tokens_per_batch,
        num_buckets=num_buckets,
        max_source=max_source,
        max_target=max_target,
        round_size=round_size,
        save_every=save_every,
        keep=keep,
        eval_every=eval_every,
        log_every=log_every,
    )
    limits = _limits(examples, [task.name for task in tasks])
    losses = mixed({objective: 1.0} if isinstance(objective, str) else objective)
    weights = _weights(kinds)
    Sampling(temperature)  # refuses what is none
    run_dir = os.path.abspath(run_dir)
    with opened(run_dir, cache_dir):
        network = teacher.load(_find(target, "target"))
        if network.model.vocab_size != model.vocab_size:
            raise ValueError(
                f"The target has a vocabulary of {network.model.vocab_size}, the draft of "
                f"{model.vocab_size}: they must share one."
            )
        train_pairs, validation_pairs = (
            load_pairs(tasks, split, vocabulary_path, model, max_source, max_target)
            for split in ("train", "validation")
        )
        rates = {task.name: task.rate for task in tasks}
        samples: dict[str, Any] = dict(
            temperature=temperature, max_target=max_target, batch_size=decode_batch, seed=seed
        )
        work = teacher.Work(
            network,
            teacher_dir or os.path.join(run_dir, "teacher"),
            shard_size=shard_size,
            **samples,
        )
        cached = {
            (name, kind): work.of(name, "train", kind, pairs, limits[name], top_k)
            for kind in weights
            if kind != "draft"
            for name, pairs in train_pairs.items()
        }
        mixture = data.Mixture(
            # The draft's own samples take the shapes of the references.
            [part.pairs for part in cached.values()] or list(train_pairs.values()),
            [rates[name] * weights[kind] for name, kind in cached] or list(rates.values()),
            seed=seed,
            tokens_per_batch=tokens_per_batch,
            num_buckets=num_buckets,
            round_size=round_size,
        )
        padding = 100 * mixture.padding_fraction()
        logging.info("%d batch shapes, %.0f%% padding", len(mixture.buckets), padding)

        transform = make_optimizer(optimizer, schedule)
        functions = make_step(model, transform, seed=seed, losses=losses, scores=acceptance)
        manager = checkpoint_manager(run_dir, keep)
        state, progress = start(
            manager,
            model,
            transform,
            data.fingerprint(
                [],
                mixture.fingerprint,
                network.fingerprint,
                weights,
                top_k,
                refresh_every,
                temperature,
            ),
            seed=seed,
            init_from=_find(init_from, "draft") if init_from else None,
        )
        on_policy = None
        if "draft" in weights:
            longest = np.array([[max_source, max_target]])
            on_policy = distill_data.OnPolicy(
                os.path.join(run_dir, "draft_samples"),
                list(train_pairs.values()),
                list(rates.values()),
                draft=t5_model(model),
                target=network,
                buckets=data.cover(mixture.buckets, longest, tokens_per_batch),
                every=refresh_every,
                top_k=top_k,
                oldest=lambda: min(manager.all_steps(), default=0),
                **samples,
            )
            on_policy.clear(since=int(state.step))
        stream = distill_data.Stream(
            distill_data.Cached(list(cached.values()), mixture) if cached else None,
            on_policy,
            weights.get("draft", 0.0) / sum(weights.values()),
        )
        batches = {
            name: {
                kind: distill_data.eval_batches(
                    work.of(name, "validation", kind, pairs, eval_examples, model.vocab_size),
                    mixture.buckets,
                )
                for kind in ("references", "target")
            }
            for name, pairs in validation_pairs.items()
        }
        run = TrainingRun(
            run_dir,
            model,
            manager,
            functions,
            schedule,
            optimizer.learning_rate,
            validate=lambda params: distill_data.validate(functions.scores, params, batches, rates),
            cost=lambda scores: 1.0 - scores["mean"],
            state=state,
            progress=progress,
        )
        reason = run.loop(
            stream.batch,
            eval_first=True,
            save_every=save_every,
            save_seconds=60 * save_minutes,
            eval_every=eval_every,
            log_every=log_every,
            max_minutes=max_minutes,
        )
        run.finish(reason)
        return TrainResult(run.step, run.state.params, reason is None, run.scores)


def _weights(kinds: str | Mapping[str, float]) -> dict[str, float]:
    """The weights above 0 of the kinds of data."""
    weights = {kinds: 1.0} if isinstance(kinds, str) else dict(kinds)
    for kind, weight in weights.items():
        if kind not in KINDS:
            raise ValueError(f"There is no kind of data {kind!r}; there are {', '.join(KINDS)}.")
        if weight < 0:
            raise ValueError(f"The weight of {kind!r} must be 0 or above, not {weight}.")
    weights = {kind: weights[kind] for kind in KINDS if weights.get(kind)}
    if not weights:
        raise ValueError("Distillation needs a kind of data with a weight above 0.")
    return weights


def _find(name: str, part: str) -> str:
    """Weights by their path, or by the name or directory of a pair: its `part`."""
    if name in pretrained.available():
        return str(ASSETS / name / part)
    inner = Path(name, part)
    return str(inner) if inner.is_dir() else name


def _limits(
    examples: int | Mapping[str, int] | None, tasks: Sequence[str]
) -> dict[str, int | None]:
    """The most training pairs of every task; None: all."""
    if not isinstance(examples, Mapping):
        examples = {} if examples is None else dict.fromkeys(tasks, examples)
    for task, count in examples.items():
        if task not in tasks:
            raise ValueError(f"examples: no task {task!r}; there are {', '.join(tasks)}.")
        check_counts(examples=count)
    return {task: examples.get(task) for task in tasks}
