"""Scores of the text that a model generates for a task; the decoder is passed in."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from specdec_jax import data, metrics
from specdec_jax.vocabulary import PAD_ID, Vocabulary, encode_sources


class Evaluation(NamedTuple):
    """Generated text and its scores."""

    scores: dict[str, float]
    sources: list[str]  # without the task's prefix
    predictions: list[str]
    references: list[str]


def evaluate(
    decode: Callable[[np.ndarray], Any],
    task: data.Task,
    vocabulary: Vocabulary,
    *,
    metric: str,
    split: str = "validation",
    max_source: int = 64,
    batch: int = 16,
    max_examples: int | None = None,
) -> Evaluation:
    """Generates a task's targets and scores them.

    Sources are sorted by length, so that a batch holds little padding, and decoded in
    batches of one shape; the results come back in the file's order.

    Args:
      decode: int32[batch, max_source] -> int32[batch, K], generated tokens (greedy, say).
      task: which task.
      vocabulary: the model's.
      metric: a name in `metrics.METRICS`: "bleu", "rouge" or "restored". The last one
        also reports what copying the source would score.
      split: "validation" or "test".
      max_source: T; longer sources are cut, with a warning.
      batch: sources per call of `decode`; the last call is filled up with padding.
      max_examples: only so many, the first in the file.

    Returns:
      An `Evaluation`.

    Raises:
      FileNotFoundError: the split has no file.
      ImportError: the metric's package is not installed.
      ValueError: no such metric, or an empty split.
    """
    if metric not in metrics.METRICS:
        raise ValueError(f"metric is one of {', '.join(metrics.METRICS)}; got {metric!r}.")
    sources, references = data.read_pairs(task.path(split))
    sources, references = sources[:max_examples], references[:max_examples]
    inputs = encode_sources(vocabulary, [task.prefix + s for s in sources], max_source)
    order = np.argsort(np.count_nonzero(inputs, axis=1), kind="stable")
    predictions = [""] * len(sources)
    for start in range(0, len(order), batch):
        rows = order[start : start + batch]
        filled = np.full((batch, max_source), PAD_ID, np.int32)
        filled[: len(rows)] = inputs[rows]
        for i, tokens in zip(rows, decode(filled), strict=False):
            predictions[i] = vocabulary.decode(tokens)
    if metric == "restored":
        scores = metrics.restored(predictions, references, sources)
    else:
        scores = metrics.METRICS[metric](predictions, references)
    return Evaluation(scores, sources, predictions, references)
