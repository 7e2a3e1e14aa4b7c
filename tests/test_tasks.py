"""Examples of the user's files, and how they are scored."""

from pathlib import Path

import pytest

from specdec_jax.tasks import Example, FileTask, SeqioTask


def write(path: Path, text: str) -> str:
    path.write_text(text, "utf-8")
    return str(path)


def test_lines(tmp_path: Path) -> None:
    task = FileTask(write(tmp_path / "a.txt", "one\u2028more\n\ntwo\tx\r\n"))
    assert task.examples() == [Example("one\u2028more"), Example(""), Example("two\tx")]
    assert task.name == "a" and task.score([], []) == {}


def test_pairs(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "one\t1\ntwo\t2\n")
    assert FileTask(path).examples() == [Example("one", "1"), Example("two", "2")]
    assert FileTask(path, "lines").examples()[0] == Example("one\t1")


def test_objects(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"inputs": "one", "targets": "1"}\n{"inputs": "two"}\n')
    assert FileTask(path, title="b").examples() == [Example("one", "1"), Example("two")]
    assert FileTask(path, title="b").name == "b"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.tsv", "one\n", "a.tsv"),
        ("a.jsonl", '{"inputs": "x"}\n{"inputs"', "a.jsonl:2 is not JSON"),
        ("a.jsonl", '{"input": "x"}\n', 'a.jsonl:1 must be an object with the text "inputs"'),
        ("a.jsonl", '{"inputs": "x", "targets": 3}\n', "a.jsonl:1 must be an object"),
        ("a.jsonl", "[1]\n", "a.jsonl:1 must be an object"),
    ],
)
def test_what_is_no_example_is_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FileTask(write(tmp_path / name, text)).examples()


def test_scores(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "one\tOne.\ntwo\tTwo of the kind.\n")
    task = FileTask(path, metrics=("restored", "bleu"))
    scores = task.score(["One.", "Two of the kind."], [e.targets or "" for e in task.examples()])
    assert scores["words"] == 100 and scores["bleu"] == pytest.approx(100)


def test_wrong_tasks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="kind must be lines, tsv, jsonl or None"):
        FileTask("a", "csv")
    with pytest.raises(ValueError, match="no metric 'blue'; there are bleu"):
        FileTask("a", metrics=("blue",))
    with pytest.raises(ValueError, match="metrics must be a list of names, not 'bleu'"):
        FileTask("a", metrics="bleu")
    with pytest.raises(ValueError, match="must be text, not 5"):
        FileTask(5)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError, match="no file 'nowhere'"):
        FileTask("nowhere").examples()
    with pytest.raises(ValueError, match="can't be scored"):
        FileTask(write(tmp_path / "a.txt", "x\n"), metrics=("bleu",)).examples()


def test_without_seqio_one_sentence_says_what_to_install() -> None:
    try:
        import seqio  # noqa: F401
    except ImportError:
        with pytest.raises(ImportError, match=r"specdec_jax\[seqio\]"):
            SeqioTask("anything").examples()
    else:
        pytest.skip("seqio is installed")
