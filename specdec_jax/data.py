"""Batches for training: text pairs, mixed by rate, sorted into buckets of equal shape.

A batch is a pure function of (seed, step): what resumes at a step sees what an
unbroken run would have seen. numpy only.

Every batch comes in one of a handful of static shapes, one compilation each, with
about the same number of tokens. The shapes are chosen from the lengths themselves
so that little of a batch is padding; `padding_fraction` says how little.

Shapes: B rows, T source length, K target length; they differ between buckets.
"""

import dataclasses
import hashlib
import os
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from specdec_jax.vocabulary import EOS_ID, PAD_ID, Vocabulary

_CACHE_FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Task:
    """One task of a mixture.

    Attributes:
      name: its name.
      prefix: put before every source, as T5 does ("summarize: ").
      directory: where its pairs lie, one `source<TAB>target` a line.
      rate: its share of the mixture's examples, relative to the others'.
      cut_source: an overlong source is cut if True (it stays a fair task when only
        the beginning matters, as in summaries); else the pair is dropped.
      file: the file of a split (train, validation or test) in `directory`.
      source: False for lines of text alone, each a target without a source, which is what
        language models train on.
    """

    name: str
    prefix: str
    directory: str
    rate: float = 1.0
    cut_source: bool = False
    file: str = "{name}-{split}.tsv"
    source: bool = True

    def path(self, split: str) -> str:
        """The file of a split."""
        return os.path.join(self.directory, self.file.format(name=self.name, split=split))


@dataclasses.dataclass(frozen=True, eq=False)
class Ragged:
    """Sequences of unequal length, end to end; `ragged[i]` is the i-th, int32[length]."""

    tokens: np.ndarray  # int32[total]
    offsets: np.ndarray  # int64[N + 1]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> np.ndarray:
        return self.tokens[self.offsets[i] : self.offsets[i + 1]]

    @property
    def lengths(self) -> np.ndarray:
        """int64[N]."""
        return np.diff(self.offsets)


def ragged(rows: Sequence[Any]) -> Ragged:
    """Packs rows of ids end to end."""
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    tokens = np.fromiter((i for row in rows for i in row), np.int32, int(offsets[-1]))
    return Ragged(tokens, offsets)


class Pairs(NamedTuple):
    """A task's tokenized pairs, each side ended by an end of sequence."""

    sources: Ragged
    targets: Ragged


def take(pairs: Pairs, rows: Sequence[int] | np.ndarray) -> Pairs:
    """Some pairs, in the order given."""
    return Pairs(*(ragged([side[i] for i in rows]) for side in pairs))


class Batch(NamedTuple):
    """One training batch; rows that only fill up are all padding."""

    inputs: np.ndarray  # int32[B, T]
    targets: np.ndarray  # int32[B, K]

    @property
    def num_tokens(self) -> int:
        """Tokens that are not padding, both sides."""
        return int(np.count_nonzero(self.inputs) + np.count_nonzero(self.targets))


class Bucket(NamedTuple):
    """A batch's static shape."""

    batch: int
    source: int
    target: int


def read_pairs(path: str, *, source: bool = True) -> tuple[list[str], list[str]]:
    """Reads `source<TAB>target` lines -> (sources, targets); without `source`, targets alone.

    Raises:
      FileNotFoundError: no such file.
      ValueError: a line is not UTF-8 or does not hold exactly one tab; it is named.
    """
    if not os.path.isfile(path):
        raise FileNotFoundError(f"No text pairs at {path!r} (lines of source<TAB>target).")
    sources, targets = [], []
    with open(path, "rb") as f:
        for number, line in enumerate(f, 1):
            try:
                text = line.decode().rstrip("\n")
            except UnicodeDecodeError as error:
                raise ValueError(f"{path}:{number} is not UTF-8 text.") from error
            fields = text.split("\t") if source else ["", text]
            if len(fields) != 2:
                raise ValueError(
                    f"{path}:{number} has {len(fields)} tab-separated fields, not "
                    "a source and a target."
                )
            sources.append(fields[0])
            targets.append(fields[1])
    return sources, targets


def _hash(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()[:16]


def fingerprint(pairs: Sequence[Pairs], *more: object) -> str:
    """Tells pairs apart, and what is given beside them; equal ones have the same."""
    arrays = (a for p in pairs for side in p for a in (side.tokens, side.offsets))
    return _hash(repr(more).encode(), *(a.tobytes() for a in arrays))


def _read_bytes(path: str) -> bytes:
    with open(path, "rb") as f:
        return f.read()


def _read_cache(kept: str) -> Pairs | None:
    """What `tokenize` has kept; None where the file is damaged."""
    try:
        with np.load(kept) as z:
            return Pairs(Ragged(z["s"], z["s_offsets"]), Ragged(z["t"], z["t_offsets"]))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        logging.warning("%s is damaged: the text is tokenized again.", kept)
        return None


def tokenize(
    path: str, prefix: str, vocabulary: Vocabulary, *, source: bool = True, cache: bool = True
) -> Pairs:
    """Tokenizes a file of pairs, and keeps the result beside it.

    The cache, `<path>.<hash>.npz`, is keyed by the contents of the text and of the
    vocabulary and by the prefix, and is written atomically; where the directory
    can't be written to, nothing is kept.

    Args:
      path: a file of `source<TAB>target` lines.
      prefix: put before every source.
      vocabulary: what encodes both sides.
      source: False for lines of text alone: targets without a source.
      cache: whether to read and write the cache.

    Returns:
      Pairs, uncut, each side with an end of sequence.
    """
    sources, targets = read_pairs(path, source=source)
    read = (_read_bytes(path), _read_bytes(vocabulary.path), prefix.encode())
    key = _hash(bytes([_CACHE_FORMAT]), *read, *([] if source else [b"no source"]))
    kept = f"{path}.{key}.npz"
    known = _read_cache(kept) if cache and os.path.isfile(kept) else None
    if known:
        return known
    pairs = Pairs(
        ragged([r + [EOS_ID] for r in vocabulary.encode_batch([prefix + s for s in sources])]),
        ragged([r + [EOS_ID] for r in vocabulary.encode_batch(targets)]),
    )
    if cache and os.access(os.path.dirname(kept) or ".", os.W_OK):
        handle, partial = tempfile.mkstemp(dir=os.path.dirname(kept) or ".", suffix=".partial")
        with os.fdopen(handle, "wb") as f:
            np.savez(
                f,
                s=pairs.sources.tokens,
                s_offsets=pairs.sources.offsets,
                t=pairs.targets.tokens,
                t_offsets=pairs.targets.offsets,
            )
        os.chmod(partial, 0o644)
        os.replace(partial, kept)
    return pairs


def fit(
    pairs: Pairs, max_source: int, max_target: int, *, cut_source: bool, name: str = "pairs"
) -> Pairs:
    """Drops pairs that are too long or empty; cuts sources instead if told to.

    A cut source keeps its beginning and an end of sequence. A target is never cut:
    that would teach the model to stop in mid-sentence.

    Args:
      pairs: tokenized pairs, N of them.
      max_source: the most tokens of a source, its end of sequence included.
      max_target: the same of a target.
      cut_source: whether an overlong source is cut rather than the pair dropped.
      name: for the log, which says how many were cut and dropped.

    Returns:
      At most N pairs, in the same order.
    """
    long_source = pairs.sources.lengths > max_source
    bad = (pairs.targets.lengths > max_target) | (pairs.targets.lengths < 2)
    if not cut_source:
        bad |= long_source
    sources, targets = [], []
    for i in np.flatnonzero(~bad).tolist():
        source = pairs.sources[i]
        if len(source) > max_source:
            source = np.append(source[: max_source - 1], EOS_ID)
        sources.append(source)
        targets.append(pairs.targets[i])
    logging.info(
        "%s: %d pairs of %d; %d dropped for length or an empty target, %d sources cut",
        name, len(sources), len(bad), int(bad.sum()), int((long_source & ~bad).sum()),
    )  # fmt: skip
    return Pairs(ragged(sources), ragged(targets))


def choose_buckets(
    lengths: np.ndarray, *, count: int, tokens_per_batch: int, multiple: int = 8
) -> tuple[Bucket, ...]:
    """Chooses shapes that waste little on padding.

    Starts from every shape that occurs (rounded up to `multiple`) and merges the two
    whose union costs least, until `count` are left: agglomerative clustering, with
    the padded tokens that a merge adds as its distance.

    Args:
      lengths: int[N, 2], source and target lengths; repeat them to weigh them.
      count: how many shapes to end with.
      tokens_per_batch: about B x (T + K).
      multiple: T and K are multiples of this, B of 4.

    Returns:
      Buckets, cheapest row first; the last one holds every pair.

    Raises:
      ValueError: there are no lengths.
    """
    if not len(lengths):
        raise ValueError("No pairs to choose buckets for.")
    rounded = -(-np.asarray(lengths) // multiple) * multiple
    shapes, weights = np.unique(rounded, axis=0, return_counts=True)
    shapes, weights = shapes.astype(np.int64), weights.astype(np.int64)
    while len(shapes) > count:
        union = np.maximum(shapes[:, None], shapes[None]).sum(-1)  # [C, C]
        own = shapes.sum(-1)
        cost = weights[:, None] * (union - own[:, None]) + weights[None] * (union - own[None])
        np.fill_diagonal(cost, np.iinfo(np.int64).max)
        i, j = divmod(int(cost.argmin()), len(shapes))
        shapes[i] = np.maximum(shapes[i], shapes[j])
        weights[i] += weights[j]
        shapes, weights = np.delete(shapes, j, 0), np.delete(weights, j)
    # The largest shape must hold what overflows from all others.
    shapes = shapes[np.lexsort((shapes[:, 0], shapes.sum(-1)))]
    shapes[-1] = shapes.max(0)
    return tuple(
        Bucket(max(4, int(tokens_per_batch / (s + t)) // 4 * 4), int(s), int(t))
        for s, t in np.unique(shapes, axis=0)[np.argsort(np.unique(shapes, axis=0).sum(-1))]
    )


def cover(
    buckets: tuple[Bucket, ...], lengths: np.ndarray, tokens_per_batch: int
) -> tuple[Bucket, ...]:
    """The buckets, and if one of the lengths, int[N, 2], exceeds the last, a larger one."""
    largest, shape = lengths.max(0), buckets[-1][1:]
    if (largest <= shape).all():
        return buckets
    s, t = (int(-(-max(a, b) // 8) * 8) for a, b in zip(largest, shape, strict=True))
    return (*buckets, Bucket(max(4, tokens_per_batch // (s + t) // 4 * 4), s, t))


def assign(lengths: np.ndarray, buckets: Sequence[Bucket]) -> np.ndarray:
    """The cheapest bucket that holds each pair: int[N, 2] -> int64[N]."""
    shapes = np.array([(b.source, b.target) for b in buckets])
    holds = np.all(lengths[:, None] <= shapes[None], axis=-1)
    if not holds.any(1).all():
        raise ValueError(f"Some pairs are longer than the largest bucket, {buckets[-1]}.")
    return holds.argmax(1)


def _rng(*key: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(key))


def fill(bucket: Bucket, rows: Sequence[tuple[Pairs, int]]) -> Batch:
    """Lays pairs out in a bucket's shape."""
    inputs = np.full((bucket.batch, bucket.source), PAD_ID, np.int32)
    targets = np.full((bucket.batch, bucket.target), PAD_ID, np.int32)
    for row, (pairs, i) in enumerate(rows):
        source, target = pairs.sources[i], pairs.targets[i]
        inputs[row, : len(source)] = source
        targets[row, : len(target)] = target
    return Batch(inputs, targets)


class Mixture:
    """An endless, shuffled, bucketed stream of batches over some tasks.

    Examples are drawn in rounds of `round_size`: each task gives its share, taken
    from its own endless sequence of reshuffled passes, so that no example repeats
    before all of its task's were seen. A round's examples are sorted into buckets
    and cut into batches, in random order. What is left of a bucket moves to the next
    that holds it; the last batch of a round may be part padding.

    Args:
      pairs: per task, tokenized pairs that fit the buckets.
      rates: per task, its share.
      seed: the stream's.
      tokens_per_batch: about B x (T + K).
      num_buckets: how many shapes.
      round_size: examples per round.
      buckets: the shapes, where they are not to be chosen; they must hold every pair.

    Attributes:
      buckets: the shapes.
      fingerprint: tells streams apart; equal ones give the same batches.
    """

    def __init__(
        self,
        pairs: Sequence[Pairs],
        rates: Sequence[float],
        *,
        seed: int = 0,
        tokens_per_batch: int = 4096,
        num_buckets: int = 8,
        round_size: int = 16384,
        buckets: tuple[Bucket, ...] | None = None,
    ):
        if not pairs or not all(len(p.sources) for p in pairs):
            raise ValueError("Every task of a mixture needs at least one pair that fits.")
        if len(rates) != len(pairs) or min(rates) <= 0:
            raise ValueError(f"A mixture needs one positive rate per task; got {list(rates)}.")
        self._pairs = tuple(pairs)
        self._seed = seed
        shares = np.array(rates) / sum(rates)
        self._counts = np.maximum(1, np.round(shares * round_size)).astype(int)
        self._lengths = [np.stack([p.sources.lengths, p.targets.lengths], -1) for p in pairs]
        self.buckets = buckets or choose_buckets(
            np.concatenate([self._lengths_of(t, 0) for t in range(len(pairs))]),
            count=num_buckets,
            tokens_per_batch=tokens_per_batch,
        )
        # Some may be longer than what the first round drew.
        self.buckets = cover(self.buckets, np.concatenate(self._lengths), tokens_per_batch)
        self.fingerprint = _hash(
            repr([seed, self._counts.tolist(), self.buckets]).encode(),
            *(a.tobytes() for p in pairs for side in p for a in (side.tokens, side.offsets)),
        )
        self._plans: dict[int, list[tuple[Bucket, np.ndarray]]] = {}
        self._starts = [0]  # the first step of each round planned so far

    def _drawn(self, task: int, round_: int) -> np.ndarray:
        """The examples that a task gives to a round: int64[count]."""
        count, size = int(self._counts[task]), len(self._pairs[task].sources)
        start = round_ * count
        passes = range(start // size, (start + count - 1) // size + 1)
        order = np.concatenate([_rng(self._seed, 1, task, p).permutation(size) for p in passes])
        return order[start - passes[0] * size :][:count]

    def _lengths_of(self, task: int, round_: int) -> np.ndarray:
        return self._lengths[task][self._drawn(task, round_)]

    def _plan(self, round_: int) -> list[tuple[Bucket, np.ndarray]]:
        """A round's batches: (bucket, int64[rows, 2] of task and example)."""
        if round_ in self._plans:
            return self._plans[round_]
        drawn = [self._drawn(t, round_) for t in range(len(self._pairs))]
        examples = np.concatenate(
            [np.stack([np.full(len(d), t), d], -1) for t, d in enumerate(drawn)]
        )
        lengths = np.concatenate([self._lengths[t][d] for t, d in enumerate(drawn)])
        rng = _rng(self._seed, 2, round_)
        order = rng.permutation(len(examples))
        examples, bucket_of = examples[order], assign(lengths[order], self.buckets)
        waiting = [examples[bucket_of == b] for b in range(len(self.buckets))]
        plan = []
        for b, bucket in enumerate(self.buckets):
            rows = waiting[b]
            full = len(rows) // bucket.batch * bucket.batch
            plan += [(bucket, rows[i : i + bucket.batch]) for i in range(0, full, bucket.batch)]
            rest = rows[full:]
            for n in range(b + 1, len(self.buckets)):
                if (np.array(self.buckets[n][1:]) >= bucket[1:]).all():
                    waiting[n] = np.concatenate([waiting[n], rest])
                    break
            else:
                if len(rest):
                    plan.append((bucket, rest))
        plan = [plan[i] for i in rng.permutation(len(plan))]
        self._plans = {r: p for r, p in self._plans.items() if r == round_ - 1}
        self._plans[round_] = plan
        return plan

    def rows(self, step: int) -> tuple[Bucket, np.ndarray]:
        """A step's shape, and its rows: int64[rows, 2] of task and example."""
        if step < 0:
            raise ValueError(f"step must not be negative; got {step}.")
        while self._starts[-1] <= step:
            self._starts.append(self._starts[-1] + len(self._plan(len(self._starts) - 1)))
        round_ = int(np.searchsorted(self._starts, step, side="right")) - 1
        return self._plan(round_)[step - self._starts[round_]]

    def batch(self, step: int) -> Batch:
        """The batch of a step: a pure function of the seed and the step."""
        bucket, examples = self.rows(step)
        return fill(bucket, [(self._pairs[task], i) for task, i in examples.tolist()])

    def padding_fraction(self) -> float:
        """The share of the first round's batches that is padding."""
        plan = self._plan(0)
        slots = sum(b.batch * (b.source + b.target) for b, _ in plan)
        used = sum(self._lengths[t][i].sum() for _, rows in plan for t, i in rows)
        return 1.0 - float(used) / slots


def eval_batches(
    pairs: Pairs, buckets: Sequence[Bucket], *, max_batches: int | None = None
) -> Iterator[Batch]:
    """The batches of `eval_rows`."""
    for bucket, members in eval_rows(pairs, buckets, max_batches=max_batches):
        yield fill(bucket, [(pairs, i) for i in members.tolist()])


def eval_rows(
    pairs: Pairs, buckets: Sequence[Bucket], *, max_batches: int | None = None
) -> list[tuple[Bucket, np.ndarray]]:
    """Batches over pairs in order of their buckets, each pair once.

    Args:
      pairs: tokenized pairs, at least one.
      buckets: a mixture's, so that nothing new is compiled; except that pairs longer
        than the last get a bucket of their own.
      max_batches: stop after so many; they are spread evenly over all.

    Returns:
      Shapes and the pairs that they get, int64[rows]; each bucket's last batch may be
      part padding.
    """
    lengths = np.stack([pairs.sources.lengths, pairs.targets.lengths], -1)
    rows, *shape = buckets[-1]
    buckets = cover(tuple(buckets), lengths, rows * sum(shape))
    bucket_of = assign(lengths, buckets)
    plan = []
    for b, bucket in enumerate(buckets):
        members = np.flatnonzero(bucket_of == b)
        plan += [
            (bucket, members[i : i + bucket.batch]) for i in range(0, len(members), bucket.batch)
        ]
    if max_batches is not None and len(plan) > max_batches:
        plan = [plan[i] for i in np.linspace(0, len(plan) - 1, max_batches).astype(int)]
    return plan
