"""Text to token ids and back, over one SentencePiece model.

The ids are those of `seqio.SentencePieceVocabulary(path, extra_ids=0)`, without
TensorFlow: pad 0, end of sequence 1, unknown 2.
"""

import os
import warnings
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
import sentencepiece

PAD_ID = 0  # also starts every decode, as T5 has it
EOS_ID = 1
UNK_ID = 2


class Vocabulary:
    """A SentencePiece model, read once.

    Attributes:
      path: the file that it was read from.
      size: its number of pieces; a network may pad its embedding beyond that.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: the file is no SentencePiece model, or numbers its special
        pieces otherwise than T5 does.
    """

    PAD_ID = PAD_ID
    EOS_ID = EOS_ID
    UNK_ID = UNK_ID

    def __init__(self, path: str | os.PathLike[str]):
        self.path = os.fspath(path)
        if not os.path.isfile(self.path):
            raise FileNotFoundError(f"No SentencePiece model at {self.path!r}.")
        with open(self.path, "rb") as f:
            serialized = f.read()
        self._model = sentencepiece.SentencePieceProcessor()
        try:
            if not serialized:
                raise RuntimeError("it is empty")
            self._model.LoadFromSerializedProto(serialized)
        except RuntimeError as error:
            raise ValueError(f"{self.path!r} is not a SentencePiece model.") from error
        model = self._model
        found = (model.pad_id(), model.eos_id(), model.unk_id())
        if found != (PAD_ID, EOS_ID, UNK_ID):
            raise ValueError(
                f"{self.path!r} numbers pad, eos, unk as {found}, where T5 has "
                f"{(PAD_ID, EOS_ID, UNK_ID)}; train it with --pad_id=0 --eos_id=1 --unk_id=2."
            )
        self.size: int = model.get_piece_size()

    def __len__(self) -> int:
        return self.size

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without an end of sequence."""
        return list(self._model.EncodeAsIds(text))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of every text."""
        return self._model.EncodeAsIds(list(texts)) if len(texts) else []

    def _clean(self, ids: Iterable[int]) -> list[int]:
        """Cuts at the end of sequence, drops padding, replaces what is unknown."""
        clean = []
        for i in map(int, ids):
            if i == EOS_ID:
                break
            if i != PAD_ID:
                clean.append(i if 0 <= i < self.size else UNK_ID)
        return clean

    def decode(self, ids: Iterable[int]) -> str:
        """The text of some ids.

        It ends at the first end of sequence; padding is dropped. An id beyond the
        pieces, which a network with a padded embedding can emit, reads as unknown
        (as in seqio).
        """
        return self._model.DecodeIds(self._clean(ids))

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Every id as its piece, special ones included, for showing tokens one by one."""
        return [self._model.IdToPiece(i if 0 <= i < self.size else UNK_ID) for i in map(int, ids)]


def pad(rows: Sequence[Sequence[int]], length: int) -> np.ndarray:
    """Rows of ids, none longer than `length` -> int32[B, length], padded with 0."""
    padded = np.full((len(rows), length), PAD_ID, np.int32)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = row
    return padded


def encode_sources(
    vocabulary: Vocabulary,
    texts: Sequence[str],
    length: int,
    *,
    on_long: Literal["cut", "error"] = "cut",
) -> np.ndarray:
    """Encodes sources as T5 reads them: an end of sequence behind, padded with 0.

    Args:
      vocabulary: the network's vocabulary.
      texts: B sources, with their task's prefix.
      length: T, the end of sequence included.
      on_long: what becomes of a source longer than T: "cut" keeps its beginning and
        an end of sequence, and warns once with the count; "error" raises.

    Returns:
      int32[B, T].

    Raises:
      ValueError: `length` is below 1; or a source is too long and `on_long` is "error".
    """
    if length < 1:
        raise ValueError(f"length must be at least 1, for the end of sequence; got {length}.")
    if on_long not in ("cut", "error"):
        raise ValueError(f'on_long must be "cut" or "error"; got {on_long!r}.')
    rows = vocabulary.encode_batch(texts)
    long = [len(row) + 1 for row in rows if len(row) + 1 > length]
    if long:
        message = f"{len(long)} of {len(rows)} sources are longer than {length} tokens"
        longest = f"(the longest has {max(long)})"
        if on_long == "error":
            raise ValueError(f"{message} {longest}.")
        warnings.warn(f"{message} {longest}: they were cut.", stacklevel=2)
    return pad([row[: length - 1] + [EOS_ID] for row in rows], length)
