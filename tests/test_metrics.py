"""Metrics: against values worked out by hand, and the missing-package sentence."""

import sys

import pytest

from specdec_jax import metrics
from specdec_jax.errors import MissingExtraError


def test_restored_counts_aligned_words():
    references = ["It is Debian.", "Two words", "Ends here."]
    predictions = ["It is debian.", "Two words", "Ends right here."]
    scores = metrics.restored(predictions, references)
    # 3 + 2 + 2 words; 2 + 2 right, and none in the text whose words don't align.
    assert scores["words"] == pytest.approx(100 * 4 / 7)
    assert scores["exact"] == pytest.approx(100 / 3)
    assert scores["aligned"] == pytest.approx(200 / 3)


def test_bleu_is_sacrebleus():
    pytest.importorskip("sacrebleu")
    text = ["The cat sat on the mat today.", "Another sentence of some words."]
    assert metrics.bleu(text, text)["bleu"] == pytest.approx(100)
    assert metrics.bleu([t.lower() for t in text], text)["bleu"] < 90  # cased
    assert metrics.bleu(["nothing alike at all here"] * 2, text)["bleu"] < 5


def test_rouge_by_hand():
    pytest.importorskip("rouge_score")
    scores = metrics.rouge(["a b c d"], ["a b d c"])
    assert scores["rouge1"] == pytest.approx(100)
    assert scores["rouge2"] == pytest.approx(100 / 3)  # only "a b" of three pairs
    assert scores["rougeLsum"] == pytest.approx(75)
    # Sentences, split as T5 splits them, are matched each on its own.
    moved = metrics.rouge(["c d . a b"], ["a b . c d"])
    assert moved["rougeLsum"] == pytest.approx(100)


@pytest.mark.parametrize("name", ["bleu", "rouge"])
def test_a_missing_package_names_the_extra(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    monkeypatch.setitem(sys.modules, "rouge_score", None)
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'specdec_jax\[report\]'"):
        metrics.METRICS[name](["a"], ["a"])


@pytest.mark.parametrize("name", ["bleu", "rouge", "restored"])
def test_unequal_or_no_texts_are_refused(name):
    for predictions, references in ((["a"], ["a", "b"]), ([], [])):
        with pytest.raises(ValueError, match="as many predictions as references"):
            metrics.METRICS[name](predictions, references)
