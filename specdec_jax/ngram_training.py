"""Texts -> an n-gram table on disk."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from specdec_jax.data import read_pairs
from specdec_jax.errors import UserError
from specdec_jax.ngram import bits_per_token, count_ngrams, save_ngrams
from specdec_jax.terminal import progress
from specdec_jax.text_lines import split_lines
from specdec_jax.vocabulary import EOS_ID, Vocabulary

_TEXTS = 10_000  # encoded at a time


def train(
    files: Sequence[str],
    vocabulary: str,
    output: str,
    *,
    vocab_size: int | None = None,
    order: int = 3,
    min_count: int = 2,
    max_continuations: int = 64,
    validation: Sequence[str] = (),
    overwrite: bool = False,
    out: Callable[[str], None] = print,
) -> None:
    """Counts the n-grams of texts, writes the table, and says what it is.

    Args:
      files: texts, one a line; of a `.tsv` of text pairs the targets.
      vocabulary: a SentencePiece model.
      output: the directory to write.
      vocab_size: V; None is the vocabulary's size.
      order: n.
      min_count: as `count_ngrams` takes it.
      max_continuations: as `count_ngrams` takes it.
      validation: files like the others, for the bits per token.
      overwrite: replace the output.
      out: prints a line.

    Raises:
      UserError: the output is there already.
      FileNotFoundError: a file is not.
      ValueError: a file is not what it should be, or a setting out of range.
    """
    if os.path.exists(output) and not overwrite:
        raise UserError(f"{output} exists already: pass --overwrite to replace it.")
    pieces = Vocabulary(vocabulary)
    size = pieces.size if vocab_size is None else vocab_size
    if size < pieces.size:
        raise UserError(f"The vocabulary has {pieces.size} pieces: vocab_size can't be {size}.")
    texts, held_out = _read(files), _read(validation)
    model, table = count_ngrams(
        _encode(pieces, texts),
        vocab_size=size,
        order=order,
        min_count=min_count,
        max_continuations=max_continuations,
    )
    save_ngrams(output, model, table)
    entries = [size, *(len(level.tokens) for level in table.levels)]
    kept = sum(file.stat().st_size for file in Path(output).iterdir())
    counted = ", ".join(f"{number} of order {n}" for n, number in enumerate(entries, 1))
    out(f"{output}: {counted}; {kept / 1e6:.2f} MB, from {len(texts)} texts")
    if held_out:
        bits = bits_per_token(model, table, _encode(pieces, held_out))
        out(f"{bits:.2f} bits a token on {len(held_out)} texts of --validation")


def _read(files: Sequence[str]) -> list[str]:
    texts: list[str] = []
    for file in files:
        if file.endswith(".tsv"):
            texts += read_pairs(file)[1]
        else:
            texts += split_lines(Path(file).read_bytes())[0]
    return [text for text in texts if text.strip()]


def _encode(vocabulary: Vocabulary, texts: Sequence[str]) -> list[list[int]]:
    rows = []
    with progress(len(texts), 0) as advance:
        for start in range(0, len(texts), _TEXTS):
            some = vocabulary.encode_batch(texts[start : start + _TEXTS])
            rows += [[*ids, EOS_ID] for ids in some]
            advance(len(some))
    return rows
