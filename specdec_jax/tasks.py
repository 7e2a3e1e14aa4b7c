"""What a job decodes: examples of a file, or of a seqio task, and how they are scored.

`FileTask` needs nothing but the file. `SeqioTask` takes any task or mixture that seqio knows,
T5's own among them (seqio_tasks.py); it needs the extra `seqio`, with TensorFlow.
"""

import dataclasses
import importlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from specdec_jax import pretrained, seqio_tasks
from specdec_jax.data import read_pairs
from specdec_jax.errors import UserError
from specdec_jax.extras import require
from specdec_jax.metrics import METRICS
from specdec_jax.text_lines import split_lines


class Example(NamedTuple):
    """A source, with T5's prefix where its task has one, and what should come of it."""

    inputs: str
    targets: str | None = None


class Task(Protocol):
    """Examples in an order that never changes."""

    @property
    def name(self) -> str:
        """Names the output."""

    def examples(self) -> list[Example]:
        """All of them."""

    def score(self, predictions: Sequence[str], targets: Sequence[str]) -> dict[str, float]:
        """The task's metrics, N texts each; empty where it has none."""


@dataclasses.dataclass(frozen=True)
class FileTask:
    """A file of the user's.

    Attributes:
      path: the file. Lines end at a line feed and nowhere else.
      kind: "lines" (a source each), "tsv" (source, tab, target) or "jsonl" (objects with
        `inputs`, and `targets` or not); None: by the file's name, else lines.
      metrics: names of `metrics.METRICS`; they need targets.
      title: names the output; None: the file's name without its ending.
    """

    path: str
    kind: str | None = None
    metrics: Sequence[str] = ()
    title: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.path, str):
            raise ValueError(f"The path of a file must be text, not {self.path!r}.")
        if isinstance(self.metrics, str):
            raise ValueError(f"metrics must be a list of names, not {self.metrics!r}.")
        if self.kind not in (None, *_READERS):
            raise ValueError(f"kind must be {', '.join(_READERS)} or None, not {self.kind!r}.")
        unknown = [name for name in self.metrics if name not in METRICS]
        if unknown:
            raise ValueError(f"There is no metric {unknown[0]!r}; there are {', '.join(METRICS)}.")

    @property
    def name(self) -> str:
        """See `Task`."""
        return self.title or Path(self.path).stem

    def examples(self) -> list[Example]:
        """See `Task`.

        Raises:
          FileNotFoundError: there is no such file.
          ValueError: a line is not what `kind` says; it is named.
        """
        path = Path(self.path)
        if not path.is_file():
            raise FileNotFoundError(f"There is no file {self.path!r} to decode.")
        by_name = path.suffix.removeprefix(".")
        examples = _READERS[self.kind or (by_name if by_name in _READERS else "lines")](path)
        if self.metrics and any(example.targets is None for example in examples):
            raise ValueError(f"{self.path} has sources without targets: they can't be scored.")
        return examples

    def score(self, predictions: Sequence[str], targets: Sequence[str]) -> dict[str, float]:
        """See `Task`."""
        scores: dict[str, float] = {}
        for name in self.metrics:
            scores |= METRICS[name](predictions, targets)
        return scores


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """The held-out sentences that ship with the package, with their prefixes.

    Attributes:
      name: restore, ende or synopsis.
    """

    name: str

    def examples(self) -> list[Example]:
        """See `Task`.

        Raises:
          ValueError: there is no such task among them.
        """
        rows = pretrained.held_out()
        own = [row for row in rows if row["task"] == self.name]
        if not own:
            names = ", ".join(dict.fromkeys(row["task"] for row in rows))
            raise ValueError(f"No held-out sentence is of {self.name!r}; there are {names}.")
        return [Example(row["inputs"], row.get("targets")) for row in own]

    def score(self, predictions: Sequence[str], targets: Sequence[str]) -> dict[str, float]:
        """See `Task`: none."""
        return {}


def _read_lines(path: Path) -> list[Example]:
    return [Example(line) for line in split_lines(path.read_bytes())[0]]


def _read_tsv(path: Path) -> list[Example]:
    return [Example(*pair) for pair in zip(*read_pairs(str(path)), strict=True)]


def _read_jsonl(path: Path) -> list[Example]:
    examples = []
    for number, line in enumerate(split_lines(path.read_bytes())[0], 1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path}:{number} is not JSON.") from error
        fields = row if isinstance(row, dict) else {}
        source, target = fields.get("inputs"), fields.get("targets")
        if not isinstance(source, str) or not isinstance(target, str | None):
            raise ValueError(
                f'{path}:{number} must be an object with the text "inputs", and "targets" or not.'
            )
        examples.append(Example(source, target))
    return examples


_READERS: dict[str, Callable[[Path], list[Example]]] = {
    "lines": _read_lines,
    "tsv": _read_tsv,
    "jsonl": _read_jsonl,
}


@dataclasses.dataclass(frozen=True)
class SeqioTask:
    """A task or mixture that seqio knows, read without shuffling.

    Attributes:
      task: its name.
      split: of the data.
      max_examples: the first so many; None: all.
      module: a module of the user's to import first, which registers it; None: it is one of
        `seqio_tasks.NAMES`.
      vocabulary: for those, the path of a SentencePiece model; None: that of T5's public
        checkpoints. Only texts are read here, but seqio cuts them all the same.
      prompt_words: of a task of text without a source, how many words a language model is
        given to go on from; the rest is the target.
    """

    task: str
    split: str = "validation"
    max_examples: int | None = None
    module: str | None = None
    vocabulary: str | None = None
    prompt_words: int = 0

    @property
    def name(self) -> str:
        """See `Task`."""
        return f"{self.task}-{self.split}"

    def _provider(self) -> Any:
        seqio = require("seqio", extra="seqio")
        if self.module is None:
            seqio_tasks.register(self.vocabulary)
        else:
            try:
                importlib.import_module(self.module)
            except ModuleNotFoundError as error:
                raise UserError(
                    f"The module {self.module!r} of the seqio task can't be imported: {error}."
                ) from error
        try:
            provider = seqio.get_mixture_or_task(self.task)
        except ValueError as error:
            known = [*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()]
            raise UserError(
                f"seqio knows no task {self.task!r}; it knows {', '.join(sorted(known)) or 'none'}."
            ) from error
        try:
            splits = provider.splits
        except ValueError:  # TFDS can't say before the data are there
            splits = ()
        if splits and self.split not in splits:
            raise UserError(
                f"The task {self.task} has no split {self.split!r}; it has {', '.join(splits)}."
            )
        return provider

    def examples(self) -> list[Example]:
        """See `Task`.

        Raises:
          MissingExtraError: seqio is not installed.
          UserError: seqio knows no such task, or it no such split.
        """
        provider = self._provider()
        # No lengths: sources are cut where they are encoded, once, for every kind of task.
        data = provider.get_dataset(sequence_length=None, split=self.split, shuffle=False)
        if self.max_examples is not None:
            data = data.take(self.max_examples)
        features = provider.output_features

        def text(example: dict[str, Any], name: str) -> str:
            pretokenized = example.get(f"{name}_pretokenized")
            if pretokenized is not None:
                return bytes(pretokenized).decode()
            ids = example[name].tolist()
            return str(features[name].vocabulary.decode(ids))

        examples = [
            Example(
                text(example, "inputs") if "inputs" in features else "",
                text(example, "targets") if "targets" in features else None,
            )
            for example in data.as_numpy_iterator()
        ]
        return examples if "inputs" in features else [self._divided(e) for e in examples]

    def _divided(self, example: Example) -> Example:
        """Text without a source, as a prompt and what follows it."""
        if example.targets is None:
            return example
        words, n = example.targets.split(" "), self.prompt_words
        return Example(" ".join(words[:n]), " ".join(words[n:]))

    def score(self, predictions: Sequence[str], targets: Sequence[str]) -> dict[str, float]:
        """See `Task`: its `metric_fns` of predictions."""
        provider = self._provider()
        scores: dict[str, float] = {}
        for metric in getattr(provider, "predict_metric_fns", ()):
            found = metric(list(targets), list(predictions))
            scores |= {name: float(getattr(value, "value", value)) for name, value in found.items()}
        return scores
