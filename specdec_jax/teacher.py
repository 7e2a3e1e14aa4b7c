"""A target as a teacher: what it writes, and how likely it finds what is written.

Shapes: B rows, T source length, K target length, V vocabulary, k kept probabilities,
P positions: the tokens of all targets, end to end.
"""

import functools
import hashlib
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from specdec_jax import checkpoints, data, teacher_cache
from specdec_jax.decoding import autoregressive_decode
from specdec_jax.distill_losses import Teacher
from specdec_jax.model import NetworkModel, make_model
from specdec_jax.sampling import Sampling
from specdec_jax.stored import flat
from specdec_jax.teacher_cache import Scored
from specdec_jax.train_step import shift_right
from specdec_jax.training_setup import locked
from specdec_jax.types import Params
from specdec_jax.vocabulary import PAD_ID

_MULTIPLE = 16  # sources and targets are padded to these lengths; each is compiled once


class Network(NamedTuple):
    """A T5 and its parameters, laid out for decoding."""

    model: NetworkModel
    params: Params
    fingerprint: str = ""  # of its weights


def load(path: str) -> Network:
    """Reads weights; as `checkpoints.load_params` raises."""
    config, params = checkpoints.load_params(path)
    digest = hashlib.sha256(repr(config).encode())
    for name, leaf in sorted(flat(params).items()):
        digest.update(name.encode())
        digest.update(np.asarray(leaf).tobytes())
    model = make_model(config)
    return Network(model, model.prepare(params), digest.hexdigest()[:16])


def write(
    network: Network,
    sources: data.Ragged,
    keys: Array,
    *,
    temperature: float,
    max_target: int,
    batch_size: int,
) -> data.Ragged:
    """What a network writes to each source, by plain decoding in large batches.

    Args:
      network: which.
      sources: N of them.
      keys: key[N]; a row's output depends on its own alone.
      temperature: 0 for the likeliest token.
      max_target: the most tokens of an output, its end of sequence among them; a longer
        one is cut: its beginning is as likely as that of any.
      batch_size: rows decoded together.

    Returns:
      The N outputs.
    """
    written: list[np.ndarray] = [np.zeros(0, np.int32)] * len(sources)
    for rows, count in _chunks(sources.lengths, batch_size):
        result = autoregressive_decode(
            network.model,
            network.params,
            jnp.asarray(_padded(sources, rows)),
            keys[jnp.asarray(rows)],
            max_new_tokens=max_target,
            sampling=Sampling(temperature),
        )
        tokens, lengths = np.asarray(result.tokens), np.asarray(result.lengths)
        for row, i in enumerate(rows[:count]):
            written[i] = tokens[row, : lengths[row]]
    return data.ragged(written)


def score(network: Network, pairs: data.Pairs, k: int, *, batch_size: int) -> Teacher:
    """The network's distribution at every position of the targets, at temperature 1.

    Args:
      network: p.
      pairs: N pairs with P target tokens.
      k: how many of the likeliest tokens to keep; V or above for all.
      batch_size: rows scored together.

    Returns:
      A `Teacher` of NumPy arrays over [P].
    """
    size = network.model.vocab_size
    whole, k = k >= size, min(k, size)
    count, offsets = len(pairs.targets.tokens), pairs.targets.offsets
    ids = np.zeros((count, 0 if whole else k), np.uint16 if size <= 2**16 else np.int32)
    probs, rest = np.zeros((count, k), np.float16), np.zeros(count, np.float16)
    longest = np.maximum(pairs.sources.lengths, pairs.targets.lengths)
    for rows, real in _chunks(longest, batch_size):
        found = _score(
            network.model,
            network.params,
            jnp.asarray(_padded(pairs.sources, rows)),
            jnp.asarray(_padded(pairs.targets, rows)),
            0 if whole else k,
        )
        of_ids, of_probs, of_rest = (np.asarray(x) for x in found)
        for row, i in enumerate(rows[:real]):
            at = slice(int(offsets[i]), int(offsets[i + 1]))
            length = at.stop - at.start
            ids[at], probs[at] = of_ids[row, :length], of_probs[row, :length]
            rest[at] = of_rest[row, :length]
    return Teacher(ids, probs, rest)


@functools.partial(jax.jit, static_argnames=("model", "k"))
def _score(model: NetworkModel, params: Params, inputs: Array, targets: Array, k: int) -> Teacher:
    """Teacher forcing: int32[B, T], int32[B, K] -> a `Teacher` over [B, K]; k = 0 keeps all."""
    logits = model.module.apply({"params": params}, inputs, shift_right(targets))
    p = jax.nn.softmax(logits, axis=-1)
    if not k:
        none = jnp.zeros((*targets.shape, 0), jnp.int32)
        return Teacher(none, p.astype(jnp.float16), jnp.zeros(targets.shape, jnp.float16))
    probs, ids = jax.lax.top_k(p, k)
    rest = jnp.maximum(1.0 - probs.sum(-1), 0.0)
    return Teacher(ids, probs.astype(jnp.float16), rest.astype(jnp.float16))


def _chunks(lengths: np.ndarray, size: int) -> Iterator[tuple[np.ndarray, int]]:
    """Rows of like length, `size` at a time, and how many count: the last ones repeat a row."""
    order = np.argsort(lengths, kind="stable")
    for start in range(0, len(order), size):
        rows = order[start : start + size]
        yield np.pad(rows, (0, size - len(rows)), mode="edge"), len(rows)


def _padded(rows: data.Ragged, chosen: Sequence[int] | np.ndarray) -> np.ndarray:
    """Some rows, int32[B, L]; L is a multiple of `_MULTIPLE`."""
    longest = max(len(rows[i]) for i in chosen)
    padded = np.full((len(chosen), -(-longest // _MULTIPLE) * _MULTIPLE), PAD_ID, np.int32)
    for row, i in enumerate(chosen):
        padded[row, : len(rows[i])] = rows[i]
    return padded


class Work:
    """The teacher's work, made where it is not yet on disk.

    Args:
      network: the teacher.
      directory: where its work is kept, `<task>-<split>-<kind>` each.
      temperature: of its samples for training; those for validation are at 1.
      max_target: the most tokens of a sample.
      seed: of samples, and of which pairs are taken where not all are.
      shard_size: pairs per shard.
      batch_size: rows that are decoded together.
    """

    def __init__(
        self,
        network: Network,
        directory: str,
        *,
        temperature: float,
        max_target: int,
        seed: int,
        shard_size: int,
        batch_size: int,
    ):
        self._network, self._directory, self._seed = network, directory, seed
        self._temperature, self._max_target = temperature, max_target
        self._shard_size, self._batch_size = shard_size, batch_size

    def of(
        self,
        task: str,
        split: str,
        kind: str,
        pairs: data.Pairs,
        limit: int | None,
        top_k: int,
    ) -> Scored:
        """The teacher's probabilities over one kind of targets of a task's split.

        Args:
          task: its name.
          split: train or validation.
          kind: references, target (samples) or greedy.
          pairs: the split's.
          limit: the most pairs to take; None for all.
          top_k: how many probabilities to keep; V or above for all.

        Raises:
          UserError: another process is at work in the directory.
          ValueError: what is there was made of something else, or is damaged.
        """
        total = len(pairs.sources)
        size, temperature = min(limit or total, total), self._temperature
        shard_size = self._shard_size
        if split == "validation":  # little, of which all of p is kept
            temperature, shard_size = 1.0, min(shard_size, 64)
        if kind == "greedy":
            temperature = 0.0
        order = np.random.default_rng([self._seed, 4]).permutation(total)
        key = jax.random.fold_in(jax.random.key(self._seed), 4)

        def make(numbers: range) -> tuple[data.Pairs, Teacher]:
            part = data.take(pairs, order[numbers.start : numbers.stop])
            if kind != "references":
                keys = jax.vmap(lambda n: jax.random.fold_in(key, n))(np.array(numbers))
                written = write(
                    self._network,
                    part.sources,
                    keys,
                    temperature=temperature,
                    max_target=self._max_target,
                    batch_size=self._batch_size,
                )
                part = data.Pairs(part.sources, written)
            return part, score(self._network, part, top_k, batch_size=self._batch_size)

        made_of: dict[str, object] = {
            "target": self._network.fingerprint,
            "data": data.fingerprint([pairs]),
            "top_k": top_k,
            "seed": self._seed,
        }
        if kind != "references":
            made_of |= {"temperature": temperature, "max_target": self._max_target}
        os.makedirs(self._directory, exist_ok=True)
        with locked(self._directory, doing="runs the teacher"):
            return teacher_cache.build(
                os.path.join(self._directory, f"{task}-{split}-{kind}"),
                size,
                total,
                make,
                made_of=made_of,
                shard_size=shard_size,
            )
