"""Scores of generated text, with decoders that are not models."""

import pytest
from fixtures_text import corpora, spiece  # noqa: F401

from specdec_jax import data
from specdec_jax.evaluation import evaluate
from specdec_jax.vocabulary import EOS_ID, Vocabulary


def test_evaluate_scores_in_the_files_order(corpora, spiece):  # noqa: F811
    vocabulary = Vocabulary(spiece)
    task = data.Task("restore", "", corpora)
    sources, references = data.read_pairs(task.path("test"))
    answers = dict(zip(sources, references, strict=True))
    shapes = set()

    def oracle(inputs):
        shapes.add(inputs.shape)
        rows = [vocabulary.encode(answers.get(vocabulary.decode(row), "")) for row in inputs]
        return [[*row, EOS_ID, 7] for row in rows]

    found = evaluate(
        oracle, task, vocabulary, metric="restored", split="test", max_source=64, batch=8
    )
    assert shapes == {(8, 64)}
    assert found.predictions == references and found.sources == sources
    assert found.scores["words"] == found.scores["exact"] == 100
    assert 0 < found.scores["copy_words"] < 100

    def copy(inputs):
        return inputs

    few = evaluate(copy, task, vocabulary, metric="restored", split="test", max_examples=5)
    assert few.predictions == sources[:5]
    assert few.scores["words"] == few.scores["copy_words"]
    with pytest.raises(ValueError, match="metric is one of"):
        evaluate(copy, task, vocabulary, metric="accuracy")
