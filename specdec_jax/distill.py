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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import logging

from specdec_jax import data, distill_data, pretrained, teacher, teacher_cache
from specdec_jax.distill_losses import Teacher, acceptance, mixed
from specdec_jax.model import t5_model
from specdec_jax.optimization import Optimizer, Schedule, make_optimizer
from specdec_jax.resources import ASSETS
from specdec_jax.t5 import T5Config
from specdec_jax.teacher_cache import Scored
from specdec_jax.train import TrainResult
from specdec_jax.train_step import make_step
from specdec_jax.training_run import TrainingRun
from specdec_jax.training_setup import check_counts, checkpoint_manager, load_pairs, opened, start
from specdec_jax.types import Params

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
    losses = mixed({objective: 1.0} if isinstance(objective, str) else objective)
    weights = _weights(kinds)
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
        work = _Work(
            network,
            teacher_dir or os.path.join(run_dir, "teacher"),
            dict(temperature=temperature, max_target=max_target, seed=seed),
            shard_size,
            decode_batch,
        )
        limits = {task.name: _limit(examples, task.name) for task in tasks}
        cached = [
            (work.of(task.name, "train", kind, train_pairs[task.name], limits[task.name], top_k),
             task.rate * weight)
            for kind, weight in weights.items()
            if kind != "draft"
            for task in tasks
        ]  # fmt: skip
        scored = [part for part, _ in cached]
        shared: dict[str, Any] = dict(
            seed=seed, tokens_per_batch=tokens_per_batch, num_buckets=num_buckets,
            round_size=round_size,
        )  # fmt: skip
        rates = [task.rate for task in tasks]
        if cached:
            mixture = data.Mixture([s.pairs for s in scored], [r for _, r in cached], **shared)
        else:  # whose shapes the draft's own samples take
            mixture = data.Mixture(list(train_pairs.values()), rates, **shared)
        logging.info(
            "%d batch shapes, %.0f%% padding", len(mixture.buckets),
            100 * mixture.padding_fraction(),
        )  # fmt: skip
        on_policy = None
        if "draft" in weights:
            on_policy = distill_data.OnPolicy(
                os.path.join(run_dir, "draft_samples"),
                list(train_pairs.values()),
                rates,
                draft=t5_model(model),
                target=network,
                buckets=data.cover(
                    mixture.buckets, np.array([[max_source, max_target]]), tokens_per_batch
                ),
                rows=int(np.mean([bucket.batch for bucket in mixture.buckets])),
                every=refresh_every,
                temperature=temperature,
                top_k=top_k,
                max_target=max_target,
                batch_size=decode_batch,
                seed=seed,
            )
        share = weights.get("draft", 0.0) / sum(weights.values())
        stream = distill_data.Stream(
            distill_data.Cached(scored, mixture) if cached else None, on_policy, share
        )

        transform = make_optimizer(optimizer, schedule)
        functions = make_step(model, transform, seed=seed, losses=losses, scores=acceptance)
        manager = checkpoint_manager(run_dir, keep)
        fingerprint = data.fingerprint(
            [], mixture.fingerprint, network.fingerprint, top_k, share, refresh_every, temperature
        )
        state, progress = start(
            manager,
            model,
            transform,
            fingerprint,
            seed=seed,
            init_from=_find(init_from, "draft") if init_from else None,
        )
        if on_policy is not None:
            on_policy.clear(before=min(manager.all_steps(), default=0), since=int(state.step))
        batches = {
            task.name: {
                kind: distill_data.eval_batches(
                    work.of(
                        task.name, "validation", kind, validation_pairs[task.name], eval_examples,
                        model.vocab_size,
                    ),
                    mixture.buckets,
                )
                for kind in ("references", "target")
            }
            for task in tasks
        }  # fmt: skip
        run = TrainingRun(
            run_dir,
            model,
            manager,
            functions,
            schedule,
            optimizer.learning_rate,
            validate=lambda params: _validate(
                functions.scores, params, batches, {task.name: task.rate for task in tasks}
            ),
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


def _limit(examples: int | Mapping[str, int] | None, task: str) -> int | None:
    limit = examples.get(task) if isinstance(examples, Mapping) else examples
    if limit is not None:
        check_counts(examples=limit)
    return limit


class _Work:
    """The teacher's work, made where it is not yet on disk."""

    def __init__(
        self,
        network: teacher.Network,
        directory: str,
        settings: dict[str, Any],
        shard_size: int,
        decode_batch: int,
    ):
        self._network, self._directory, self._settings = network, directory, settings
        self._shard_size, self._decode_batch = shard_size, decode_batch

    def of(
        self,
        task: str,
        split: str,
        kind: str,
        pairs: data.Pairs,
        limit: int | None,
        top_k: int,
    ) -> Scored:
        """The teacher's probabilities over one kind of targets of a task's split."""
        total = len(pairs.sources)
        size = min(limit or total, total)
        seed, max_target = self._settings["seed"], self._settings["max_target"]
        # Validation is at temperature 1, whatever is trained on.
        temperature = self._settings["temperature"] if split == "train" else 1.0
        if kind == "greedy":
            temperature = 0.0
        order = np.random.default_rng([seed, 4]).permutation(total)
        key = jax.random.fold_in(jax.random.key(seed), 4)

        def make(numbers: range) -> tuple[data.Pairs, Teacher]:
            part = data.take(pairs, order[numbers.start : numbers.stop])
            if kind != "references":
                keys = jax.vmap(lambda n: jax.random.fold_in(key, n))(np.array(numbers))
                written = teacher.write(
                    self._network,
                    part.sources,
                    keys,
                    temperature=temperature,
                    max_target=max_target,
                    batch_size=self._decode_batch,
                )
                part = data.Pairs(part.sources, written)
            return part, teacher.score(self._network, part, top_k, batch_size=self._decode_batch)

        made_of: dict[str, object] = {
            "target": self._network.fingerprint,
            "data": data.fingerprint([pairs]),
            "top_k": top_k,
            "seed": seed,
        }
        if kind != "references":
            made_of |= {"temperature": temperature, "max_target": max_target}
        whole = min(self._shard_size, 64) if split == "validation" else self._shard_size
        return teacher_cache.build(
            os.path.join(self._directory, f"{task}-{split}-{kind}"),
            size,
            total,
            make,
            made_of=made_of,
            shard_size=whole,
        )


def _validate(
    scores: Callable[..., Any],
    params: Params,
    batches: Mapping[str, Mapping[str, Sequence[Callable[[], distill_data.TeacherBatch]]]],
    rates: Mapping[str, float],
) -> dict[str, float]:
    """Alpha and agreement per task and kind, and `mean`; see the module's docstring."""
    result: dict[str, float] = {}
    for task, by_kind in batches.items():
        for kind, some in by_kind.items():
            sums = np.zeros(3)
            for batch in some:
                sums += [float(x) for x in scores(params, *batch())]
            result[f"{task}/{kind}/alpha"] = float(sums[0] / sums[2])
            result[f"{task}/{kind}/agreement"] = float(sums[1] / sums[2])
    total = sum(rates.values())
    result["mean"] = sum(result[f"{t}/target/alpha"] * rate / total for t, rate in rates.items())
    return result
