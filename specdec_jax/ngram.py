"""n-gram tables (section 3.6), which are a `Model` like any other: drafts at almost no cost.

    q(x | h) = max(count(h x) - d, 0) / count(h) + rest(h) q(x | h')

interpolated with the shorter context h' down to a smoothed unigram (absolute discounting);
what is discounted or pruned goes to `rest`, so that every q is a distribution. The table is
a trie of sparse rows: an entry of one order, the n-gram h x, is a context of the next.

Shapes: B batch, k tokens per call, L buffer, V vocabulary, N = B x k; E_n entries of order n,
E_1 = V.
"""

import dataclasses
import json
import os
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from specdec_jax.replacing import replacing
from specdec_jax.sampling import first
from specdec_jax.vocabulary import PAD_ID

KIND = "ngram"  # in config.json, which tells these tables from other checkpoints
_CONFIG, _TABLE = "config.json", "table.npz"


class Level(NamedTuple):
    """The rows of order n, one for each entry of order n - 1."""

    starts: Array  # int32[E_{n-1} + 1], where a row begins
    tokens: Array  # int32[E_n], within a row by count
    shares: Array  # float32[E_n], the discounted share of the row's counts
    rest: Array  # float32[E_{n-1}], what a row leaves to the shorter context


class NgramTable(NamedTuple):
    """The parameters of an `NgramModel`."""

    unigram: Array  # float32[V], 0 for padding alone
    levels: tuple[Level, ...]  # orders 2, 3, ...


@dataclasses.dataclass(frozen=True)
class NgramModel:
    """An n-gram language model for decoding; it does not look at the source.

    Attributes:
      order: n; a table of a higher order serves.
      vocab_size: V.
      max_continuations: the most entries of a row.
    """

    order: int
    vocab_size: int
    max_continuations: int

    def prefill(self, params: NgramTable, inputs: Array, length: int) -> Array:
        """Room for the last tokens, by position: int32[B, L]."""
        return jnp.zeros((inputs.shape[0], length if self.order > 2 else 1), jnp.int32)

    def extend(
        self, params: NgramTable, cache: Array, tokens: Array, positions: Array
    ) -> tuple[Array, Array]:
        """Feeds int32[B, k] tokens -> float32[B, k, V], log q, and the cache."""
        flat = [tokens.reshape(-1)]  # the last token of each context, the one before, ...
        if self.order > 2:
            rows = jnp.arange(tokens.shape[0])[:, None]
            cache = cache.at[rows, positions].set(tokens)
            for back in range(1, self.order - 1):
                earlier = cache.at[rows, positions - back].get(mode="clip")
                flat.append(jnp.where(positions >= back, earlier, -1).reshape(-1))
        q = jnp.broadcast_to(params.unigram, (len(flat[0]), self.vocab_size))
        for n in range(2, self.order + 1):
            q = self._interpolate(params, q, flat[: n - 1][::-1])
        return jnp.log(q).reshape(*tokens.shape, self.vocab_size), cache

    def select(self, cache: Array, rows: Array) -> Array:
        """See `Model.select`."""
        return cache[rows]

    def _interpolate(self, params: NgramTable, lower: Array, context: list[Array]) -> Array:
        """Q of the next order, from float32[N, V] of the one below; int32[N] a token."""
        entry, known = jnp.maximum(context[0], 0), context[0] >= 0
        for level, token in zip(params.levels, context[1:], strict=False):
            tokens, _, start = self._row(level, entry)
            here = tokens == token[:, None]
            entry, known = start + first(here), known & jnp.any(here, axis=1)
            entry = jnp.where(known, entry, 0)
        level = params.levels[len(context) - 1]
        tokens, shares, _ = self._row(level, entry)
        shares = jnp.where(known[:, None], shares, 0.0)
        rest = jnp.where(known, level.rest[entry], 1.0)
        rows = jnp.arange(len(entry))[:, None]
        return (rest[:, None] * lower).at[rows, tokens].add(shares)

    def _row(self, level: Level, entry: Array) -> tuple[Array, Array, Array]:
        """The row of each entry, int32[N]: its tokens, -1 behind them, their shares, its start."""
        start, end = level.starts[entry], level.starts[entry + 1]
        places = start[:, None] + jnp.arange(self.max_continuations)
        inside = places < end[:, None]
        places = jnp.where(inside, places, 0)
        tokens = jnp.where(inside, level.tokens[places], -1)
        return tokens, jnp.where(inside, level.shares[places], 0.0), start


def count_ngrams(
    sequences: Iterable[Sequence[int]],
    *,
    vocab_size: int,
    order: int = 3,
    min_count: int = 2,
    max_continuations: int = 64,
    discount: float = 0.75,
) -> tuple[NgramModel, NgramTable]:
    """Counts a corpus.

    Args:
      sequences: token ids of each text, its EOS among them; the decoder's start token is
        put before them here.
      vocab_size: V.
      order: n.
      min_count: rarer n-grams are left to the shorter context.
      max_continuations: and so are all but so many of the most frequent of a context.
      discount: d.

    Raises:
      ValueError: nothing to count, ids outside the vocabulary, or settings out of range.
    """
    for name, value in (
        ("order", order), ("min_count", min_count), ("max_continuations", max_continuations),
    ):  # fmt: skip
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be a whole number, 1 or above, not {value!r}.")
    rows = [np.asarray(row, np.int64) for row in sequences]
    if not sum(map(len, rows)):
        raise ValueError("There is no text to count.")
    begin = np.array([PAD_ID], np.int64)  # T5's decoder starts with it
    stream = np.concatenate([part for row in rows for part in (begin, row)])
    if stream.min() < 0 or stream.max() >= vocab_size:
        raise ValueError(f"The texts hold ids outside the vocabulary of {vocab_size}.")
    is_begin = np.zeros(len(stream), bool)
    is_begin[np.cumsum([0, *(len(row) + 1 for row in rows[:-1])])] = True

    unigram = np.bincount(stream[~is_begin], minlength=vocab_size) + 0.5
    unigram[PAD_ID] = 0.0
    levels, entry, parents = [], stream.copy(), vocab_size
    for _ in range(2, order + 1):
        inside = (entry[:-1] >= 0) & ~is_begin[1:]
        grams = np.where(inside, entry[:-1] * vocab_size + stream[1:], -1)
        keys, counts = np.unique(grams[inside], return_counts=True)
        totals = np.bincount(keys // vocab_size, counts, parents)
        kept = np.flatnonzero(counts >= min_count)
        kept = kept[np.lexsort((-counts[kept], keys[kept] // vocab_size))]
        parent = keys[kept] // vocab_size
        rank = np.arange(len(kept)) - np.searchsorted(parent, parent)
        kept, parent = (x[rank < max_continuations] for x in (kept, parent))
        levels.append(
            _level(
                lengths=np.bincount(parent, minlength=parents),
                tokens=keys[kept] % vocab_size,
                shares=np.maximum(counts[kept] - discount, 0.0) / totals[parent],
            )
        )
        # An n-gram that was kept is a context of the next order.
        by_key = np.argsort(keys[kept])
        sorted_keys = np.append(keys[kept][by_key], -2)
        place = np.searchsorted(sorted_keys[:-1], grams)
        found = sorted_keys[place] == grams
        entry[1:] = np.where(found, np.append(by_key, -1)[place], -1)
        entry[0], parents = -1, len(kept)
        if not parents:
            break
    model = NgramModel(len(levels) + 1, vocab_size, max_continuations)
    return model, NgramTable(jnp.asarray(unigram / unigram.sum(), jnp.float32), tuple(levels))


def _level(lengths: np.ndarray, tokens: np.ndarray, shares: np.ndarray) -> Level:
    """Puts rows together; shares are stored in half precision, and what that changes is rest."""
    shares = shares.astype(np.float16).astype(np.float64)
    ends = np.cumsum(lengths)
    before = np.concatenate([[0.0], np.cumsum(shares)])
    rest = 1.0 - (before[ends] - before[ends - lengths])
    return Level(
        starts=jnp.asarray(np.concatenate([[0], ends]), jnp.int32),
        tokens=jnp.asarray(tokens if len(tokens) else [0], jnp.int32),
        shares=jnp.asarray(shares if len(shares) else [0.0], jnp.float32),
        rest=jnp.asarray(np.clip(rest, 0.0, 1.0), jnp.float32),
    )


def save_ngrams(path: str | os.PathLike[str], model: NgramModel, table: NgramTable) -> None:
    """Writes a table as a directory; one that is there already is replaced as a whole."""
    arrays: dict[str, Any] = {"unigram": np.asarray(table.unigram)}
    for n, level in enumerate(table.levels, 2):
        starts = np.asarray(level.starts)
        arrays[f"lengths_{n}"] = np.diff(starts).astype(np.uint16)
        smallest = np.uint16 if model.vocab_size <= 2**16 else np.int32
        arrays[f"tokens_{n}"] = np.asarray(level.tokens)[: starts[-1]].astype(smallest)
        arrays[f"shares_{n}"] = np.asarray(level.shares)[: starts[-1]].astype(np.float16)
    with replacing(path) as partial:
        np.savez_compressed(partial / _TABLE, **arrays)
        fields = {"kind": KIND, **dataclasses.asdict(model)}
        (partial / _CONFIG).write_text(json.dumps(fields, indent=2) + "\n", "utf-8")


def is_ngrams(path: str | os.PathLike[str]) -> bool:
    """Whether `save_ngrams` wrote this directory."""
    try:
        fields = json.loads(Path(path, _CONFIG).read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(fields, dict) and fields.get("kind") == KIND


def load_ngrams(
    path: str | os.PathLike[str], order: int | None = None
) -> tuple[NgramModel, NgramTable]:
    """Reads a table that `save_ngrams` wrote.

    Args:
      path: the directory.
      order: use no n-grams longer than this; None uses all.

    Raises:
      FileNotFoundError: there is none.
      ValueError: it is damaged, or its order is lower than what is asked for.
    """
    path = Path(path)
    if not is_ngrams(path):
        raise FileNotFoundError(
            f"{str(path)!r} is no n-gram table: `specdec train_ngram` makes one."
        )
    fields = json.loads((path / _CONFIG).read_text("utf-8"))
    try:
        del fields["kind"]
        model = NgramModel(**fields)
        with np.load(path / _TABLE) as arrays:
            levels = tuple(
                _level(
                    arrays[f"lengths_{n}"].astype(np.int64),
                    arrays[f"tokens_{n}"],
                    arrays[f"shares_{n}"],
                )
                for n in range(2, model.order + 1)
            )
            table = NgramTable(jnp.asarray(arrays["unigram"]), levels)
    except (OSError, ValueError, LookupError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"The n-gram table in {str(path)!r} is damaged or incomplete.") from error
    if table.unigram.shape != (model.vocab_size,):
        raise ValueError(
            f"The n-gram table in {str(path)!r} has {len(table.unigram)} unigrams, its config "
            f"{model.vocab_size}."
        )
    if order is not None and not 1 <= order <= model.order:
        raise ValueError(
            f"The n-gram table in {str(path)!r} is of order {model.order}: it has no order {order}."
        )
    return dataclasses.replace(model, order=order or model.order), table


def bits_per_token(
    model: NgramModel, table: NgramTable, sequences: Iterable[Sequence[int]]
) -> float:
    """The cross-entropy of texts, in bits a token; 0 tokens are refused."""
    extend = jax.jit(lambda fed, places: model.extend(table, fed * 0, fed, places)[0])
    total, count = 0.0, 0
    rows = [list(row) for row in sequences if len(row)]
    length = 1 << max((len(row) for row in rows), default=1).bit_length()
    for start in range(0, len(rows), 64):
        some = rows[start : start + 64]
        targets = np.zeros((64, length), np.int32)
        for target, row in zip(targets, some, strict=False):
            target[: len(row)] = row
        fed = np.pad(targets, ((0, 0), (1, 0)))[:, :-1]
        places = np.broadcast_to(np.arange(length), fed.shape)
        logits = np.asarray(extend(jnp.asarray(fed), jnp.asarray(places)))
        chosen = np.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
        total -= float(chosen[targets > 0].sum())
        count += int((targets > 0).sum())
    return total / count / float(np.log(2)) if count else float("nan")
