"""The paper's data as seqio tasks, preprocessed as T5 preprocesses them.

    wmt14_ende       "translate English to German: ..."   BLEU; WMT14, as T5's wmt_t2t_ende
    wmt16_ende       the same from WMT16
    cnn_dailymail    "summarize: ..."                     ROUGE
    lm1b             text alone, for decoder-only models

`tasks.SeqioTask` calls `register`; seqio and TensorFlow come with the extra `seqio`.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specdec_jax.extras import require
from specdec_jax.metrics import bleu, rouge

# The vocabulary of T5's public checkpoints, read by TensorFlow where it lies.
T5_VOCABULARY = "gs://t5-data/vocabs/cc_all.32000.100extra/sentencepiece.model"
NAMES = ("wmt14_ende", "wmt16_ende", "cnn_dailymail", "lm1b")

Metric = Callable[[Sequence[str], Sequence[str]], dict[str, float]]


def translate(tf: Any, example: Mapping[str, Any]) -> dict[str, Any]:
    """T5's `translate` from English to German, of a WMT example; `tf` is TensorFlow."""
    source = tf.strings.join(["translate English to German: ", example["en"]])
    return {"inputs": source, "targets": example["de"]}


def summarize(tf: Any, example: Mapping[str, Any]) -> dict[str, Any]:
    """T5's `summarize`, of a CNN/DailyMail example."""
    source = tf.strings.join(["summarize:", example["article"]], separator=" ")
    return {"inputs": source, "targets": example["highlights"]}


def language_model(tf: Any, example: Mapping[str, Any]) -> dict[str, Any]:
    """T5's `lm`: the text is the target, and there is no source."""
    return {"targets": example["text"]}


def _as_seqio(metric: Metric) -> Callable[..., dict[str, float]]:
    """A metric with seqio's arguments, by whose names it knows them."""

    def of_predictions(targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
        return metric(predictions, targets)

    return of_predictions


def register(vocabulary: str | None = None) -> None:
    """Registers the tasks with seqio; again, where the vocabulary is another.

    Args:
      vocabulary: the path of a SentencePiece model; None: that of T5's public checkpoints.
    """
    seqio, tf = (require(name, extra="seqio") for name in ("seqio", "tensorflow"))
    model = seqio.SentencePieceVocabulary(vocabulary or T5_VOCABULARY)
    feature = seqio.Feature(vocabulary=model, add_eos=True)
    both = {"inputs": feature, "targets": feature}

    def add(name: str, data: str, prepare: Any, features: Any, *metrics: Metric) -> None:
        if name in seqio.TaskRegistry.names():
            if seqio.TaskRegistry.get(name).output_features == features:
                return
            seqio.TaskRegistry.remove(name)
        seqio.TaskRegistry.add(
            name,
            source=seqio.TfdsDataSource(tfds_name=data),
            preprocessors=[
                seqio.map_over_dataset(functools.partial(prepare, tf)),
                seqio.preprocessors.tokenize,
                seqio.CacheDatasetPlaceholder(),
                seqio.preprocessors.append_eos_after_trim,
            ],
            output_features=features,
            metric_fns=[_as_seqio(metric) for metric in metrics],
        )

    add("wmt14_ende", "wmt_t2t_translate/de-en:1.0.0", translate, both, bleu)
    add("wmt16_ende", "wmt16_translate/de-en:1.0.0", translate, both, bleu)
    add("cnn_dailymail", "cnn_dailymail:3.4.0", summarize, both, rouge)
    add("lm1b", "lm1b:1.1.0", language_model, {"targets": feature})
