"""Batches of distillation: pairs with the target's distributions, cached or on-policy.

A cached batch is a pure function of the seed and the step, as in data.py. An on-policy
batch holds what the draft itself writes: every some steps it writes anew, the target
scores that, and both are kept in the run directory until no checkpoint needs them, so
that a resumed run sees what an unbroken one would have seen.

Shapes: B rows, T source length, K target length, k kept probabilities.
"""

import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from specdec_jax import data, teacher, teacher_cache
from specdec_jax.model import T5Model
from specdec_jax.teacher_cache import Scored
from specdec_jax.types import Params


class TeacherBatch(NamedTuple):
    """One batch, as the step takes it; rows that only fill up are all padding."""

    inputs: np.ndarray  # int32[B, T]
    targets: np.ndarray  # int32[B, K]
    ids: np.ndarray  # uint16 or int32[B, K, k], or [B, K, 0]: `Teacher`
    probs: np.ndarray  # float16[B, K, k]
    rest: np.ndarray  # float16[B, K]

    @property
    def num_tokens(self) -> int:
        """Tokens that are not padding, both sides."""
        return int(np.count_nonzero(self.inputs) + np.count_nonzero(self.targets))


def fill(bucket: data.Bucket, rows: Sequence[tuple[Scored, int]]) -> TeacherBatch:
    """Lays scored pairs out in a bucket's shape."""
    inputs, targets = data.fill(bucket, [(scored.pairs, i) for scored, i in rows])
    like = rows[0][0].teachers[0]
    laid = [
        np.zeros((bucket.batch, bucket.target, *array.shape[1:]), array.dtype) for array in like
    ]
    for row, (scored, i) in enumerate(rows):
        for to, array in zip(laid, scored.teacher(i), strict=True):
            to[row, : len(array)] = array
    return TeacherBatch(inputs, targets, *laid)


def eval_batches(
    scored: Scored, buckets: tuple[data.Bucket, ...]
) -> list[Callable[[], TeacherBatch]]:
    """All pairs once, each batch laid out when it is called: with k = V they are large."""

    def lay(bucket: data.Bucket, members: np.ndarray) -> Callable[[], TeacherBatch]:
        return lambda: fill(bucket, [(scored, i) for i in members.tolist()])

    return [lay(*plan) for plan in data.eval_rows(scored.pairs, buckets)]


class Cached:
    """An endless stream over scored pairs, mixed as `data.Mixture` does."""

    def __init__(self, scored: Sequence[Scored], mixture: data.Mixture):
        self._scored, self._mixture = scored, mixture

    def batch(self, step: int) -> TeacherBatch:
        """The batch of a step."""
        bucket, rows = self._mixture.rows(step)
        return fill(bucket, [(self._scored[part], i) for part, i in rows.tolist()])


class OnPolicy:
    """What the draft writes, scored by the target.

    Args:
      directory: where to keep it.
      pairs: per task, whose sources are drawn.
      rates: per task, its share.
      draft: the draft, as it decodes.
      target: what scores.
      buckets: shapes, of which the last holds the longest source and output.
      every: steps between two writings.
      temperature: of the draft.
      top_k: probabilities to keep of the target's.
      max_target: the most tokens of an output.
      batch_size: rows written and scored together.
      seed: of the sources and of sampling.
      oldest: the first step that a resumed run may need a batch of.
    """

    def __init__(
        self,
        directory: str,
        pairs: Sequence[data.Pairs],
        rates: Sequence[float],
        *,
        draft: T5Model,
        target: teacher.Network,
        buckets: tuple[data.Bucket, ...],
        every: int,
        temperature: float,
        top_k: int,
        max_target: int,
        batch_size: int,
        seed: int,
        oldest: Callable[[], int],
    ):
        self._directory, self._pairs, self._shares = directory, pairs, np.array(rates) / sum(rates)
        self._draft, self._target, self._buckets = draft, target, buckets
        self.every, self._temperature = every, temperature
        self._rows = round(np.mean([bucket.batch for bucket in buckets]))  # pairs per batch
        self._top_k, self._max_target, self._batch_size = top_k, max_target, batch_size
        self._seed, self._oldest = seed, oldest
        self._round, self._open = -1, None  # type: tuple[int, Cached | None]

    def clear(self, since: int) -> None:
        """Removes what no checkpoint needs any more, and what a step from `since` on made."""
        if not os.path.isdir(self._directory):
            return
        for name in os.listdir(self._directory):
            made_at = int(name) * self.every if name.isdigit() else since
            if made_at + self.every <= self._oldest() or made_at >= since:
                shutil.rmtree(os.path.join(self._directory, name))

    def batch(self, step: int, turn: int, batches: int, params: Params) -> TeacherBatch:
        """The batch of a step.

        Args:
          step: which.
          turn: how many on-policy batches there were since the writing that it belongs to.
          batches: how many there are until the next.
          params: the draft's; they write if this step is the first of a writing.
        """
        round_ = step // self.every
        if round_ != self._round or self._open is None:
            path = os.path.join(self._directory, str(round_))
            if not os.path.isdir(path):
                self.clear(since=step)
                self._write(path, round_, batches * self._rows, params)
            scored = teacher_cache.read([path])
            mixture = data.Mixture(
                [scored.pairs],
                [1.0],
                seed=self._seed + round_,
                round_size=len(scored.pairs.sources),
                buckets=self._buckets,
            )
            self._round, self._open = round_, Cached([scored], mixture)
        return self._open.batch(turn)

    def _write(self, path: str, round_: int, count: int, params: Params) -> None:
        rng = np.random.default_rng([self._seed, 3, round_])
        sources = []
        for pairs, share in zip(self._pairs, self._shares, strict=True):
            size = len(pairs.sources)
            drawn = rng.permutation(size)[: max(1, round(share * count))]
            sources += [pairs.sources[i] for i in drawn]
        packed = data.ragged(sources)
        key = jax.random.fold_in(jax.random.key(self._seed), round_)
        draft = teacher.Network(self._draft, self._draft.prepare(params))
        outputs = teacher.write(
            draft,
            packed,
            jax.random.split(key, len(sources)),
            temperature=self._temperature,
            max_target=self._max_target,
            batch_size=self._batch_size,
        )
        pairs = data.Pairs(packed, outputs)
        scores = teacher.score(self._target, pairs, self._top_k, batch_size=self._batch_size)
        teacher_cache.write_shard(path, pairs, scores)


class Stream:
    """Cached and on-policy batches, a fixed share of each, evenly spread.

    Args:
      cached: the one; needed where the share is below 1.
      on_policy: the other; needed where the share is above 0.
      share: of on-policy batches, 0 to 1.
    """

    def __init__(self, cached: Cached | None, on_policy: OnPolicy | None, share: float):
        self._cached, self._on_policy, self._share = cached, on_policy, share

    def batch(self, step: int, params: Params) -> TeacherBatch:
        """The batch of a step, of the parameters before it."""
        before = self._count(step)
        if self._on_policy is not None and self._count(step + 1) > before:
            start = step // self._on_policy.every * self._on_policy.every
            first, end = self._count(start), self._count(start + self._on_policy.every)
            return self._on_policy.batch(step, before - first, end - first, params)
        assert self._cached is not None
        return self._cached.batch(step - before)

    def _count(self, steps: int) -> int:
        """How many of the first steps are on-policy."""
        return math.floor(steps * self._share + 1e-9)


def validate(
    scores: Callable[..., Any],
    params: Params,
    batches: Mapping[str, Mapping[str, Sequence[Callable[[], TeacherBatch]]]],
    rates: Mapping[str, float],
) -> dict[str, float]:
    """Alpha and agreement, per task and kind of target.

    Args:
      scores: (params, *batch) -> the sums of `distill_losses.acceptance`.
      params: the draft's.
      batches: per task and kind, `eval_batches`.
      rates: the tasks' shares.

    Returns:
      `<task>/<kind>/alpha` and `/agreement`; and `mean`, of alpha over the target's samples.
    """
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
