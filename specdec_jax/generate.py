"""Text in, text out: lines of sources -> their predictions, a batch at a time.

Shapes are static, so that each is compiled once: batches are filled up to
`batch_size` rows, sources padded to one of a few lengths. A row's key comes from
the seed and its line number: its result depends neither on the batch size nor on
where a run was resumed.
"""

import dataclasses
import difflib
import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from specdec_jax.beam import BeamResult, beam_decode, speculative_beam_decode
from specdec_jax.costs import Decoders, measured_gamma
from specdec_jax.decoding import autoregressive_decode, speculative_decode
from specdec_jax.drafters.model import ModelDrafter
from specdec_jax.gamma import AdaptiveGamma
from specdec_jax.model import NetworkModel
from specdec_jax.pretrained import Pair
from specdec_jax.restoration import strip_case_and_punctuation
from specdec_jax.sampling import GREEDY, Sampling
from specdec_jax.trace import Round, trace_decode
from specdec_jax.types import DecodeResult, VerifyRule
from specdec_jax.verification import ExactRule, GumbelRule, LenientRule, MultiDraftRule
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


RULES: dict[str, Callable[..., VerifyRule]] = {
    "exact": ExactRule,
    "lenient": LenientRule,
    "gumbel": GumbelRule,
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """How lines are decoded.

    Attributes:
      task: one of `TASKS`, which prepares a line and puts its prefix before it.
      prefix: put before every line where there is no task.
      gamma: guesses a round; "auto" measures what rounds cost here, and adapts.
      rule: one of `RULES`.
      lenience: l of the lenient rule.
      num_drafts: guesses for each position, of which the first that stands is taken.
      num_beams: w; above 1 beam search, of which the best hypothesis is taken.
      num_draft_beams: u, the draft's; None is 2 w.
      max_new_tokens: the most tokens of a prediction.
      sampling: temperature, top-k, top-p.
      seed: of all sampling.
      batch_size: rows decoded together, at most.
      input_length: the most tokens of a source, its end of sequence among them.
      on_long: what becomes of a longer one: "cut" warns, "error" raises.
    """

    task: str | None = None
    prefix: str = ""
    gamma: int | Literal["auto"] | AdaptiveGamma = 7
    rule: str = "exact"
    lenience: float | None = None
    num_drafts: int = 1
    num_beams: int = 1
    num_draft_beams: int | None = None
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
        for name, least in (
            ("gamma", 1), ("num_drafts", 1), ("num_beams", 1), ("max_new_tokens", 1),
            ("input_length", 2),
        ):  # fmt: skip
            value = getattr(self, name)
            if name == "gamma" and (value == "auto" or isinstance(value, AdaptiveGamma)):
                continue
            if value < least:
                raise ValueError(f"{name} must be {least} or above, not {value}.")
            if value > LARGEST:
                raise ValueError(f"{name} must be at most {LARGEST}, not {value}.")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed must be at least 0 and below 2^32, not {self.seed}.")
        if self.on_long not in ("cut", "error"):
            raise ValueError(f'on_long must be "cut" or "error", not {self.on_long!r}.')
        self._check_rule()
        self._check_beams()

    def _check_rule(self) -> None:
        """Refuses a rule that there is not, and what does not go with it."""
        if self.rule not in RULES:
            near = difflib.get_close_matches(str(self.rule), RULES, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(RULES)}."
            raise ValueError(f"There is no rule {self.rule!r}{hint}")
        if (self.rule == "lenient") != (self.lenience is not None):
            raise ValueError(
                "lenience goes with rule=lenient and with no other: it is l of appendix A.5, in "
                "[0, 1]."
            )
        if self.num_drafts > 1 and self.rule != "exact":
            raise ValueError(f"num_drafts needs rule=exact: {self.rule} judges a single draft.")
        if self.num_drafts > 1 and self.sampling.temperature == 0:
            raise ValueError(
                "num_drafts needs a temperature above 0: at 0 all drafts would guess the same."
            )
        self.verify_rule()

    def _check_beams(self) -> None:
        """Refuses what does not go with beam search, or without it."""
        if self.num_beams == 1:
            if self.num_draft_beams is not None:
                raise ValueError("num_draft_beams goes with num_beams above 1.")
            return
        others = {
            "a temperature above 0": self.sampling.temperature > 0,
            f"rule={self.rule}": self.rule != "exact",
            "num_drafts": self.num_drafts > 1,
            "gamma=auto": not isinstance(self.gamma, int),
        }
        for name, given in others.items():
            if given:
                raise ValueError(f"Beam search (num_beams above 1) does not go with {name}.")
        if self.num_draft_beams is not None and self.num_draft_beams < self.num_beams:
            raise ValueError(
                f"num_draft_beams must be at least num_beams, {self.num_beams}, not "
                f"{self.num_draft_beams}."
            )

    def verify_rule(self) -> VerifyRule:
        """The rule itself."""
        if self.num_drafts > 1:
            return MultiDraftRule(self.num_drafts)
        return LenientRule(self.lenience) if self.lenience is not None else RULES[self.rule]()

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
      score: log p of its tokens under the unadjusted target; of a beam search, over the
        brevity penalty.
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


def with_text(batch: Batch, result: DecodeResult) -> DecodeResult:
    """A result's rows that have text, on the host."""
    rows = np.flatnonzero(batch.has_text)
    host = jax.device_get(result)
    return jax.tree.map(lambda leaf: leaf[rows] if leaf.ndim else leaf, host)


def generate(
    pair: Pair,
    lines: Sequence[str],
    settings: Settings = Settings(),
    *,
    first: int = 0,
    decode_with: Callable[[Batch, Settings], DecodeResult] | None = None,
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
    yield from decode_lines(
        pair, lines, settings, first=first, numbers=range(len(lines)), decode_with=decode_with
    )


def decode_lines(
    pair: Pair,
    lines: Sequence[str],
    settings: Settings,
    *,
    first: int = 0,
    numbers: Sequence[int],
    decode_with: Callable[[Batch, Settings], DecodeResult] | None = None,
) -> Iterator[list[Generation]]:
    """As `generate`, of lines whose lengths were checked.

    Args:
      pair: target, draft and vocabulary.
      lines: the lines.
      settings: how.
      first: the line to begin with.
      numbers: the lines' own numbers in a larger whole; a line's sampling depends on it.
      decode_with: decodes a batch, in place of `decode`.
    """
    for batch in batches(pair, lines, settings, first=first, numbers=numbers):
        result = None
        if any(batch.has_text):
            settings = settle(pair, batch, settings)
            result = (decode_with or functools.partial(decode, pair))(batch, settings)
            settings = learn(settings, result)
        yield read(pair, batch, result)


def settle(pair: Pair, batch: Batch, settings: Settings) -> Settings:
    """Puts a measured policy in place of the gamma "auto", once; a batch like the others."""
    if settings.gamma != "auto":
        return settings
    policy = measured_gamma(
        decoders(pair),
        batch.inputs,
        batch.keys,
        max_new_tokens=settings.max_new_tokens,
        sampling=settings.sampling,
        rule=settings.verify_rule(),
        partitioner=pair.partitioner,
    )
    return dataclasses.replace(settings, gamma=policy)


def learn(settings: Settings, result: DecodeResult) -> Settings:
    """Lets an adaptive gamma begin the next batch with what it saw in this one."""
    if not isinstance(settings.gamma, AdaptiveGamma):
        return settings
    rows = len(result.lengths)
    examined, accepted = (int(x.sum()) / rows for x in (result.examined, result.accepted))
    return dataclasses.replace(settings, gamma=settings.gamma.after(examined, accepted))


def decoders(pair: Pair) -> Decoders:
    """The parts of a pair that decode."""
    return Decoders(pair.target, pair.target_params, pair.drafter, pair.draft_params)


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
    pair: Pair,
    lines: Sequence[str],
    settings: Settings,
    *,
    first: int = 0,
    numbers: Sequence[int] | None = None,
) -> Iterator[Batch]:
    """The lines from `first` on, encoded, `batch_size` at a time; see `decode_lines`."""
    numbers = range(len(lines)) if numbers is None else numbers
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
        own = jnp.asarray([numbers[start + i] for i in rows])
        keys = jax.vmap(lambda number: jax.random.fold_in(key, number))(own)
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
    if settings.num_beams > 1:
        return _best(search(pair, batch, settings))
    where = pair.partitioner
    return (where.speculative_decode if where else speculative_decode)(
        *decoders(pair),
        batch.inputs,
        batch.keys,
        gamma=_settled(settings),
        max_new_tokens=settings.max_new_tokens,
        sampling=settings.sampling,
        rule=settings.verify_rule(),
    )


def search(pair: Pair, batch: Batch, settings: Settings) -> BeamResult:
    """Searches a batch with `num_beams`, speculatively."""
    _check_place_of_beams(pair)
    drafter = pair.drafter
    if not (isinstance(drafter, ModelDrafter) and isinstance(drafter.model, NetworkModel)):
        raise ValueError(
            "Beam search needs a draft that is a network: --draft=model, or a directory."
        )
    return speculative_beam_decode(
        pair.target,
        pair.target_params,
        drafter.model,
        pair.draft_params,
        batch.inputs,
        num_beams=settings.num_beams,
        num_draft_beams=settings.num_draft_beams,
        gamma=cast(int, settings.gamma),
        max_new_tokens=settings.max_new_tokens,
    )


def _check_place_of_beams(pair: Pair) -> None:
    if pair.partitioner is not None and pair.target.partition is None:
        raise ValueError(
            "Beam search runs on one device or on a mesh: set NUM_DEVICES to 1, or "
            "MODEL_PARALLEL above 1."
        )


def decode_plain(pair: Pair, batch: Batch, settings: Settings) -> DecodeResult:
    """Decodes a batch with the target alone."""
    if settings.num_beams > 1:
        _check_place_of_beams(pair)
        return _best(
            beam_decode(
                pair.target,
                pair.target_params,
                batch.inputs,
                num_beams=settings.num_beams,
                max_new_tokens=settings.max_new_tokens,
            )
        )
    where = pair.partitioner
    return (where.autoregressive_decode if where else autoregressive_decode)(
        pair.target,
        pair.target_params,
        batch.inputs,
        batch.keys,
        max_new_tokens=settings.max_new_tokens,
        sampling=settings.sampling,
        rule=GumbelRule() if settings.rule == "gumbel" else ExactRule(),
    )


def decode_traced(pair: Pair, batch: Batch, settings: Settings) -> tuple[list[Round], DecodeResult]:
    """Decodes a batch of one row, keeping what each round did."""
    return trace_decode(
        *decoders(pair),
        batch.inputs,
        batch.keys,
        gamma=_settled(settings),
        max_new_tokens=settings.max_new_tokens,
        sampling=settings.sampling,
        rule=settings.verify_rule(),
    )


def _best(result: BeamResult) -> DecodeResult:
    """The best hypotheses of a beam search; their scores stand at their first tokens."""
    tokens, rows = result.tokens[:, 0], len(result.tokens)
    none = jnp.zeros((rows, 0), jnp.int32)
    return DecodeResult(
        tokens=tokens,
        lengths=result.lengths[:, 0],
        log_probs=jnp.zeros(tokens.shape).at[:, 0].set(result.scores[:, 0]),
        finite=jnp.ones((rows,), bool),
        rounds=result.rounds,
        target_calls=result.target_calls,
        drafted=none,
        examined=none,
        accepted=none,
    )


def _settled(settings: Settings) -> int | AdaptiveGamma:
    if settings.gamma == "auto":
        raise ValueError('gamma="auto" is settled on the first batch: call settle before decode.')
    return settings.gamma


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
