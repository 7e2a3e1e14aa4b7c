"""seqio's tasks, on TFDS's own mock of the data sets; skipped where seqio is not installed."""

from pathlib import Path

import pytest

from specdec_jax.errors import UserError
from specdec_jax.tasks import FileTask, SeqioTask
from tests.tiny_pair import save_vocabulary

seqio = pytest.importorskip("seqio", reason="needs the extra seqio, with TensorFlow")
tfds = pytest.importorskip("tensorflow_datasets")


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("vocabulary") / "spiece.model"
    save_vocabulary(path)
    return str(path)


@pytest.fixture(scope="module")
def metadata(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What TFDS would know of the data sets' splits, had it downloaded them."""
    path = tmp_path_factory.mktemp("metadata")
    names = ("wmt_t2t_translate/de-en", "wmt16_translate/de-en", "cnn_dailymail", "lm1b")
    for builder in map(tfds.builder, names):
        splits = [
            tfds.core.SplitInfo(name=name, shard_lengths=[5], num_bytes=0)
            for name in ("train", "validation", "test")
        ]
        builder.info.set_splits(tfds.core.SplitDict(splits))
        where = path / Path(builder.data_dir).relative_to(Path(builder.data_dir_root))
        where.mkdir(parents=True)
        builder.info.write_to_directory(where)
    return str(path)


@pytest.mark.parametrize(
    ("task", "prefix", "metric"),
    [
        ("wmt14_ende", "translate English to German: ", "bleu"),
        ("wmt16_ende", "translate English to German: ", "bleu"),
        ("cnn_dailymail", "summarize: ", "rougeLsum"),
        ("lm1b", "", ""),
    ],
)
def test_the_papers_data(
    task: str, prefix: str, metric: str, vocabulary: str, metadata: str
) -> None:
    with tfds.testing.mock_data(num_examples=5, data_dir=metadata):
        chosen = SeqioTask(task, vocabulary=vocabulary, split="train", max_examples=3)
        examples = chosen.examples()
        again = chosen.examples()
        provider = seqio.get_mixture_or_task(task)
        raw = list(provider.source.get_dataset("train", shuffle=False).as_numpy_iterator())
        texts = ["These are seven words, and no more."] * 3
        scores = chosen.score(texts, texts)
        ids = next(iter(provider.get_dataset({"targets": 8, "inputs": 8}, "train", shuffle=False)))
    assert len(examples) == 3 and examples == again
    source = {"wmt14_ende": "en", "wmt16_ende": "en", "cnn_dailymail": "article"}.get(task)
    target = {"cnn_dailymail": "highlights", "lm1b": "text"}.get(task, "de")
    for example, row in zip(examples, raw, strict=False):
        assert example.inputs == (prefix + row[source].decode() if source else "")
        assert example.targets == row[target].decode()
    assert scores == {} if not metric else scores[metric] == pytest.approx(100)
    assert ids["targets"].shape == (8,) and ids["targets"].numpy()[-1] == 1


def test_a_task_of_the_users_own_is_the_file_itself(tmp_path: Path, vocabulary: str) -> None:
    file = tmp_path / "rows.tsv"
    file.write_text("The quick\tbrown fox\njumps over\tthe lazy dog\n")
    feature = seqio.Feature(seqio.SentencePieceVocabulary(vocabulary))

    def split(dataset):  # type: ignore[no-untyped-def]
        import tensorflow as tf

        def pair(line):  # type: ignore[no-untyped-def]
            parts = tf.strings.split(line, "\t")
            return {"inputs": parts[0], "targets": parts[1]}

        return dataset.map(pair)

    seqio.TaskRegistry.add(
        "own_rows",
        source=seqio.TextLineDataSource({"test": str(file)}),
        preprocessors=[split, seqio.preprocessors.tokenize, seqio.preprocessors.append_eos],
        output_features={"inputs": feature, "targets": feature},
    )
    try:
        task = SeqioTask("own_rows", split="test", module="seqio")
        assert task.examples() == FileTask(str(file)).examples()
        assert task.name == "own_rows-test"
        with pytest.raises(UserError, match="no split 'tset'; it has test"):
            SeqioTask("own_rows", split="tset", module="seqio").examples()
    finally:
        seqio.TaskRegistry.remove("own_rows")


def test_what_seqio_does_not_know_is_said(vocabulary: str) -> None:
    with pytest.raises(UserError, match="no task 'wmt14'; it knows .*wmt14_ende"):
        SeqioTask("wmt14", vocabulary=vocabulary).examples()
    with pytest.raises(UserError, match="module 'nowhere'"):
        SeqioTask("wmt14_ende", module="nowhere").examples()
