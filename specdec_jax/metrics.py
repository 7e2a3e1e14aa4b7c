"""Scores of generated text: BLEU, ROUGE, restored words.

BLEU and ROUGE need the packages of the extra `report`.
"""

from collections.abc import Sequence
from typing import Any

from specdec_jax.extras import require


def _check(predictions: Sequence[str], references: Sequence[str]) -> None:
    if len(predictions) != len(references) or not predictions:
        raise ValueError(
            f"Scores need as many predictions as references, and at least one; got "
            f"{len(predictions)} and {len(references)}."
        )


def bleu(predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Corpus BLEU as T5 reports it (sacrebleu, exponential smoothing, `intl` tokens).

    Args:
      predictions: N texts.
      references: N texts, one for each prediction.

    Returns:
      {"bleu": 0 to 100}.

    Raises:
      MissingExtraError: sacrebleu is not installed.
      ValueError: unequal or zero numbers of texts.
    """
    _check(predictions, references)
    sacrebleu = require("sacrebleu", extra="report")
    score = sacrebleu.corpus_bleu(
        list(predictions),
        [list(references)],
        smooth_method="exp",
        tokenize="intl",
        lowercase=False,
    )
    return {"bleu": float(score.score)}


def rouge(predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """ROUGE-1, ROUGE-2 and ROUGE-L as T5 reports them: the mean F-measure, unstemmed.

    T5 gives the middle of a bootstrap, which is this mean but for the bootstrap's noise.

    ROUGE-L is rouge-score's `rougeLsum`, which takes every line for a sentence; as in
    `t5.evaluation.metrics.rouge`, a line ends after " . ".

    Args:
      predictions: N texts.
      references: N texts, one for each prediction.

    Returns:
      {"rouge1", "rouge2", "rougeLsum"}, each 0 to 100.

    Raises:
      MissingExtraError: rouge-score is not installed.
      ValueError: unequal or zero numbers of texts.
    """
    _check(predictions, references)
    rouge_scorer = require("rouge_score.rouge_scorer", extra="report")
    keys = ("rouge1", "rouge2", "rougeLsum")
    scorer: Any = rouge_scorer.RougeScorer(list(keys))

    def lines(text: str) -> str:
        return text.replace(" . ", " .\n")

    totals = dict.fromkeys(keys, 0.0)
    for prediction, reference in zip(predictions, references, strict=True):
        scores = scorer.score(lines(reference), lines(prediction))
        for key in keys:
            totals[key] += 100.0 * scores[key].fmeasure
    return {key: total / len(predictions) for key, total in totals.items()}


def restored(predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """How well case and punctuation were restored.

    Texts are compared word by word (split at white space), the i-th of a prediction
    with the i-th of its reference; a word counts if it is equal to the letter. A
    prediction with another number of words than its reference has no such alignment:
    all of the reference's words count as wrong.

    Args:
      predictions: N texts.
      references: N texts, one for each prediction.

    Returns:
      {"words": percentage of the references' words restored, "exact": percentage of
      texts restored to the letter, "aligned": percentage of texts with the right
      number of words}.

    Raises:
      ValueError: unequal or zero numbers of texts.
    """
    _check(predictions, references)
    right = total = exact = aligned = 0
    for prediction, reference in zip(predictions, references, strict=True):
        got, want = prediction.split(), reference.split()
        total += len(want)
        exact += got == want
        if len(got) == len(want):
            aligned += 1
            right += sum(a == b for a, b in zip(got, want, strict=True))
    n = len(references)
    return {
        "words": 100.0 * right / max(total, 1),
        "exact": 100.0 * exact / n,
        "aligned": 100.0 * aligned / n,
    }


# What `evaluate` computes of a task, by the task's metric.
METRICS = {"bleu": bleu, "rouge": rouge, "restored": restored}
