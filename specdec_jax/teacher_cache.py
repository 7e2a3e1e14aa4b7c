"""What a teacher wrote and how likely it found it, kept on disk: the teacher runs once.

<cache>/meta.json      what the shards were made of and how
<cache>/00000/ ...     shards of `shard_size` pairs, each written as a whole, one .npy an array

A killed build goes on behind its last whole shard. Training maps the shards into memory.

Shapes: k kept probabilities, P positions of a shard.
"""

import dataclasses
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from absl import logging

from specdec_jax import data
from specdec_jax.distill_losses import Teacher
from specdec_jax.replacing import replacing, tidy

_META = "meta.json"
_ARRAYS = ("sources", "source_offsets", "targets", "target_offsets", "ids", "probs", "rest")


@dataclasses.dataclass(frozen=True, eq=False)
class Scored:
    """Pairs, and a teacher's distribution at every position of their targets.

    Attributes:
      pairs: N pairs.
      teachers: per shard, NumPy arrays over [P].
      starts: int64[shards], the first pair of each.
    """

    pairs: data.Pairs
    teachers: tuple[Teacher, ...]
    starts: np.ndarray

    def teacher(self, i: int) -> Teacher:
        """The teacher's arrays over the positions of the i-th pair."""
        shard = int(np.searchsorted(self.starts, i, side="right")) - 1
        offsets = self.pairs.targets.offsets
        start, first = offsets[i], offsets[self.starts[shard]]
        at = slice(int(start - first), int(offsets[i + 1] - first))
        return Teacher(*(array[at] for array in self.teachers[shard]))

    def head(self, count: int) -> "Scored":
        """The first `count` pairs."""
        sides = (
            data.Ragged(s.tokens[: s.offsets[count]], s.offsets[: count + 1]) for s in self.pairs
        )
        return Scored(data.Pairs(*sides), self.teachers, self.starts)


def build(
    path: str,
    size: int,
    total: int,
    make: Callable[[range], tuple[data.Pairs, Teacher]],
    *,
    made_of: dict[str, object],
    shard_size: int,
) -> Scored:
    """Makes what of a cache is missing, and opens it.

    Args:
      path: the cache's directory.
      size: how many pairs are wanted; more may be made, as shards are whole.
      total: how many there are.
      make: makes the pairs of a range, and the teacher's arrays.
      made_of: what it is made of and how: JSON. A cache of something else is refused.
      shard_size: pairs per shard.

    Raises:
      ValueError: the cache was made of something else, or a shard is damaged.
    """
    _check(Path(path), dict(made_of, shard_size=shard_size))
    names = [f"{i:05d}" for i in range(-(-size // shard_size))]
    missing = [i for i, name in enumerate(names) if not os.path.isdir(os.path.join(path, name))]
    started = time.monotonic()
    for done, i in enumerate(missing, 1):
        shard = os.path.join(path, names[i])
        tidy(shard)
        pairs, teacher = make(range(i * shard_size, min((i + 1) * shard_size, total)))
        write_shard(shard, pairs, teacher)
        left = (time.monotonic() - started) / done * (len(missing) - done)
        logging.info("%s: shard %d of %d, %.0f s left", path, i + 1, len(names), left)
    return read([os.path.join(path, name) for name in names]).head(size)


def _check(path: Path, made_of: dict[str, object]) -> None:
    """Refuses a cache of something else; says in a new one what it is made of."""
    meta = path / _META
    text = json.dumps(made_of, indent=2, sort_keys=True) + "\n"
    if not meta.is_file():
        path.mkdir(parents=True, exist_ok=True)
        partial = path / f"{_META}.partial"
        partial.write_text(text, "utf-8")
        partial.replace(meta)
        return
    try:
        before = json.loads(meta.read_text("utf-8"))
    except ValueError:
        before = {}
    differ = [name for name in json.loads(text) if before.get(name) != json.loads(text)[name]]
    if differ:
        raise ValueError(
            f"The teacher's cache {path} was made with another {', '.join(differ)}: remove it, or "
            "name another directory."
        )


def write_shard(path: str, pairs: data.Pairs, teacher: Teacher) -> None:
    """Writes a shard as a whole."""
    sides = [np.asarray(a) for side in pairs for a in (side.tokens, side.offsets)]
    with replacing(path) as partial:
        for name, array in zip(_ARRAYS, [*sides, *map(np.asarray, teacher)], strict=True):
            np.save(partial / f"{name}.npy", array)


def read(shards: Sequence[str]) -> Scored:
    """Opens shards; the teacher's arrays stay on disk until they are used.

    Raises:
      ValueError: a shard is damaged; it is named, with what to do.
    """
    sources, targets, teachers = [], [], []
    for path in shards:
        try:
            arrays = [np.load(os.path.join(path, f"{name}.npy"), mmap_mode="r") for name in _ARRAYS]
        except (OSError, ValueError, EOFError) as error:
            raise ValueError(f"The shard {path} is damaged: remove it to make it again.") from error
        sources.append(data.Ragged(np.array(arrays[0]), np.array(arrays[1])))
        targets.append(data.Ragged(np.array(arrays[2]), np.array(arrays[3])))
        teachers.append(Teacher(*arrays[4:]))
    starts = np.cumsum([0, *(len(s) for s in sources[:-1])])
    return Scored(data.Pairs(_joined(sources), _joined(targets)), tuple(teachers), starts)


def _joined(parts: Sequence[data.Ragged]) -> data.Ragged:
    """Rows of several, end to end."""
    lengths = np.concatenate([part.lengths for part in parts])
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return data.Ragged(np.concatenate([part.tokens for part in parts]), offsets)
