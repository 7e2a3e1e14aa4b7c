"""Text in, text out: lines of sources -> their predictions, a batch at a time.

Shapes are static, so that each is compiled once: batches are filled up to
`batch_size` rows, sources padded to one of a few lengths. A row's key comes from
the seed and its line number: its result depends neither on the batch size nor on
where a run was resumed.
"""

import dataclasses
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from specdec_jax.decoding import autoregressive_decode, speculative_decode
from specdec_jax.pretrained import Pair
from specdec_jax.restoration import strip_case_and_punctuation
from specdec_jax.sampling import GREEDY, Sampling
from specdec_jax.trace import Round, trace_decode
from specdec_jax.types import DecodeResult
from specdec_jax.vocabulary import encode_sources

LARGEST = 2**20  # of the settings' lengths: beyond it lie only slips of the finger
SHORTEST_SOURCE = 32  # the smallest of the padded source lengths; each next is twice as long


class TextTask(NamedTuple):
    """How a line becomes a T5 source, and how what comes of it is scored."""

    prefix: str
    metric: str = ""  # a name in metrics.METRICS
    prepare: Callable[[str], str] = str


TASKS = {
    "restore": TextTask("restore: ", "restored", strip_case_and_punctuation),
    "ende": TextTask("translate English to German: ", "bleu"),
    "synopsis": TextTask("summarize: ", "rouge"),
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """How lines are decoded.

    Attributes:
      task: one of `TASKS`, which prepares a line and puts its prefix before it.
      prefix: put before every line where there is no task.
      gamma: guesses a round.
      max_new_tokens: the most tokens of a prediction.
      sampling: temperature, top-k, top-p.
      seed: of all sampling.
      batch_size: rows decoded together, at most.
      input_length: the most tokens of a source, its end of sequence among them.
      on_long: what becomes of a longer one: "cut" warns, "error" raises.
    """

    task: str | None = None
    prefix: str = ""
    gamma: int = 7
    max_new_tokens: int = 128
    sampling: Sampling = GREEDY
    seed: int = 0
    batch_size: int = 1
    input_length: int = 512
    on_long: Literal["cut", "error"] = "cut"

    def __post_init__(self) -> None:
        if self.task is not None and self.task not in TASKS:
            raise ValueError(f"There is no task {self.task!r}; there are {', '.join(TASKS)}.")
        if self.task is not None and self.prefix:
            raise ValueError("A task has its own prefix: give a task or a prefix, not both.")
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be 1 or above, not {self.batch_size}.")
        for name, least in (("gamma", 1), ("max_new_tokens", 1), ("input_length", 2)):
            value = getattr(self, name)
            if value < least:
                raise ValueError(f"{name} must be {least} or above, not {value}.")
            if value > LARGEST:
                raise ValueError(f"{name} must be at most {LARGEST}, not {value}.")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed must be at least 0 and below 2^32, not {self.seed}.")
        if self.on_long not in ("cut", "error"):
            raise ValueError(f'on_long must be "cut" or "error", not {self.on_long!r}.')

    def source(self, line: str) -> str:
        """The T5 source of a line."""
        task = TASKS[self.task] if self.task else TextTask(self.prefix)
        return task.prefix + task.prepare(line)


@dataclasses.dataclass(frozen=True)
class Generation:
    """A line and what became of it. A line without text has an empty prediction.

    Attributes:
      inputs: the line.
      prediction: the text.
      score: log p of its tokens under the unadjusted target.
      tokens: the ids, the end of sequence among them where it was reached.
      rounds: target calls.
      examined: guesses that the target came to judge.
      accepted: guesses that stand.
    """

    inputs: str
    prediction: str = ""
    score: float = 0.0
    tokens: tuple[int, ...] = ()
    rounds: int = 0
    examined: int = 0
    accepted: int = 0

    def as_json(self) -> dict[str, Any]:
        """The row of an output file."""
        return {
            "inputs": self.inputs,
            "prediction": self.prediction,
            "score": self.score,
            "acceptance": {
                "alpha": self.accepted / self.examined if self.examined else None,
                "rounds": self.rounds,
                "tokens": len(self.tokens),
                "tokens_per_call": len(self.tokens) / self.rounds if self.rounds else None,
            },
        }


class Batch(NamedTuple):
    """Some lines, encoded; rows without text, and rows too many, repeat another row."""

    lines: Sequence[str]
    has_text: Sequence[bool]
    inputs: Array  # int32[B, T], B the batch size, or all lines where they are fewer
    keys: Array  # key[B]


def generate(
    pair: Pair,
    lines: Sequence[str],
    settings: Settings = Settings(),
    *,
    first: int = 0,
    decode_with: Callable[[Batch], DecodeResult] | None = None,
) -> Iterator[list[Generation]]:
    """Decodes lines in their order, yielding each batch when it is done.

    Args:
      pair: target, draft and vocabulary.
      lines: all lines.
      settings: how.
      first: the line to begin with, to go on with an interrupted run.
      decode_with: decodes a batch, in place of `decode`.
    """
    check_lengths(pair, lines, settings)
    for batch in batches(pair, lines, settings, first=first):
        result = None
        if any(batch.has_text):
            result = decode_with(batch) if decode_with else decode(pair, batch, settings)
        yield read(pair, batch, result)


def check_lengths(pair: Pair, lines: Sequence[str], settings: Settings) -> None:
    """Warns of sources over `input_length`, once for all lines; or raises, if so set."""
    too_long, longest = [], 0
    for start in range(0, len(lines), 1000):
        sources = [settings.source(line) for line in lines[start : start + 1000]]
        for i, ids in enumerate(pair.vocabulary.encode_batch(sources), start + 1):
            if len(ids) + 1 > settings.input_length:
                too_long.append(i)
                longest = max(longest, len(ids) + 1)
    if not too_long:
        return
    message = (
        f"{len(too_long)} of {len(lines)} sources are longer than {settings.input_length} tokens "
        f"(the first is line {too_long[0]}, the longest has {longest})"
    )
    if settings.on_long == "error":
        raise ValueError(f"{message}; raise input_length or shorten them.")
    warnings.warn(f"{message}: they were cut.", stacklevel=2)


def batches(
    pair: Pair, lines: Sequence[str], settings: Settings, *, first: int = 0
) -> Iterator[Batch]:
    """The lines from `first` on, encoded, `batch_size` at a time."""
    key = jax.random.key(settings.seed)
    size = min(settings.batch_size, len(lines))
    for start in range(first, len(lines), settings.batch_size):
        some = lines[start : start + size]
        has_text = [bool(line.strip()) for line in some]
        # What has no text repeats a row that has: it ends when that one does.
        spare = has_text.index(True) if any(has_text) else 0
        rows = [i if has_text[i] else spare for i in range(len(some))]
        rows += [spare] * (size - len(rows))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # check_lengths has said it
            inputs = encode_sources(
                pair.vocabulary, [settings.source(some[i]) for i in rows], settings.input_length
            )
        numbers = jnp.asarray([start + i for i in rows])
        keys = jax.vmap(lambda number: jax.random.fold_in(key, number))(numbers)
        yield Batch(some, has_text, jnp.asarray(_to_bucket(inputs)), keys)


def _to_bucket(inputs: np.ndarray) -> np.ndarray:
    """Cuts the padding of int32[B, T] down to the shortest allowed length."""
    longest = int(np.count_nonzero(inputs, axis=1).max())
    length = SHORTEST_SOURCE
    while length < longest:
        length *= 2
    return inputs[:, :length]


def decode(pair: Pair, batch: Batch, settings: Settings) -> DecodeResult:
    """Decodes a batch speculatively."""
    return speculative_decode(
        pair.target,
        pair.target_params,
        pair.drafter,
        pair.draft_params,
        batch.inputs,
        batch.keys,
        gamma=settings.gamma,
        max_new_tokens=settings.max_new_tokens,
        sampling=settings.sampling,
    )


def decode_plain(pair: Pair, batch: Batch, settings: Settings) -> DecodeResult:
    """Decodes a batch with the target alone."""
    return autoregressive_decode(
        pair.target,
        pair.target_params,
        batch.inputs,
        batch.keys,
        max_new_tokens=settings.max_new_tokens,
        sampling=settings.sampling,
    )


def decode_traced(pair: Pair, batch: Batch, settings: Settings) -> tuple[list[Round], DecodeResult]:
    """Decodes a batch of one row, keeping what each round did."""
    return trace_decode(
        pair.target,
        pair.target_params,
        pair.drafter,
        pair.draft_params,
        batch.inputs,
        batch.keys,
        gamma=settings.gamma,
        max_new_tokens=settings.max_new_tokens,
        sampling=settings.sampling,
    )


def read(pair: Pair, batch: Batch, result: DecodeResult | None) -> list[Generation]:
    """A batch's result as text; None where no line of it has any."""
    if result is None:
        return [Generation(line) for line in batch.lines]
    result = jax.tree.map(np.asarray, result)
    scores = result.scores
    rows = []
    for i, (line, has_text) in enumerate(zip(batch.lines, batch.has_text, strict=True)):
        if not has_text:
            rows.append(Generation(line))
            continue
        tokens = tuple(result.tokens[i, : result.lengths[i]].tolist())
        rows.append(
            Generation(
                inputs=line,
                prediction=pair.vocabulary.decode(tokens),
                score=float(scores[i]),
                tokens=tokens,
                rounds=int(result.rounds[i]),
                examined=int(result.examined[i].sum()),
                accepted=int(result.accepted[i].sum()),
            )
        )
    return rows
