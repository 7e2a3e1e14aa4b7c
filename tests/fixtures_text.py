"""A tiny vocabulary and tiny corpora for the tests of text, data and training."""

import random
from pathlib import Path

import pytest
import sentencepiece

TEXT = "The tiny package holds some files for Debian users , which may read or copy them"
WORDS = TEXT.split()


def sentences(count: int, seed: int, low: int = 2, high: int = 9) -> list[str]:
    """Random sentences of known words."""
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        words = rng.choices(WORDS, k=rng.randint(low, high))
        rows.append(" ".join(words) + ".")
    return rows


def write_pairs(path: Path, rows: list[tuple[str, str]]) -> None:
    """Writes `source<TAB>target` lines."""
    path.write_text("".join(f"{s}\t{t}\n" for s, t in rows), encoding="utf-8")


@pytest.fixture(scope="session")
def spiece(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a SentencePiece model of 44 pieces, numbered as T5 numbers them."""
    directory = tmp_path_factory.mktemp("spiece")
    text = directory / "text.txt"
    text.write_text("\n".join(s for s in sentences(400, 0) for s in (s, s.lower())))
    sentencepiece.SentencePieceTrainer.Train(
        input=str(text), model_prefix=str(directory / "spiece"), vocab_size=44,
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1, minloglevel=2,
    )  # fmt: skip
    return str(directory / "spiece.model")


@pytest.fixture(scope="session")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A directory with the tasks `restore` and `first` (the first words)."""
    directory = tmp_path_factory.mktemp("corpora")
    for split, count, seed in (("train", 300, 1), ("validation", 40, 2), ("test", 20, 3)):
        rows = sentences(count, seed)
        write_pairs(directory / f"restore-{split}.tsv", [(s.lower(), s) for s in rows])
        write_pairs(directory / f"first-{split}.tsv", [(s, " ".join(s.split()[:2])) for s in rows])
    return str(directory)
