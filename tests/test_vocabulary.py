"""Vocabulary: seqio's ids, and honest errors."""

import numpy as np
import pytest
import sentencepiece

from specdec_jax.vocabulary import EOS_ID, PAD_ID, UNK_ID, Vocabulary, encode_sources
from tests.fixtures_text import spiece  # noqa: F401  (a fixture)


@pytest.fixture(scope="module")
def vocabulary(spiece):  # noqa: F811
    return Vocabulary(spiece)


def test_ids_are_sentencepieces_without_eos(vocabulary):
    reference = sentencepiece.SentencePieceProcessor(model_file=vocabulary.path)
    text = "The tiny package holds files."
    assert vocabulary.encode(text) == reference.encode(text)
    assert EOS_ID not in vocabulary.encode(text)
    assert vocabulary.encode_batch([text, ""]) == [reference.encode(text), []]
    assert vocabulary.size == len(vocabulary) == 44


def test_decode_inverts_encode(vocabulary):
    text = "Debian users may read or copy them."
    assert vocabulary.decode(vocabulary.encode(text)) == text


def test_decode_stops_at_eos_drops_padding_and_replaces_unknown_ids(vocabulary):
    ids = vocabulary.encode("tiny files")
    assert vocabulary.decode([PAD_ID, *ids, PAD_ID, EOS_ID, *ids]) == "tiny files"
    # seqio replaces ids beyond the pieces by the unknown one.
    for beyond in (44, 32000, -1):
        assert vocabulary.decode([*ids, beyond]) == vocabulary.decode([*ids, UNK_ID])
    assert vocabulary.decode(np.array(ids, np.int32)) == "tiny files"


def test_ids_and_text_are_seqios(vocabulary):
    seqio = pytest.importorskip("seqio", reason="pip install 'specdec_jax[seqio]' to compare")
    reference = seqio.SentencePieceVocabulary(vocabulary.path, extra_ids=0)
    assert vocabulary.size == reference.vocab_size
    assert (reference.pad_id, reference.eos_id, reference.unk_id) == (PAD_ID, EOS_ID, UNK_ID)
    for text in ("The tiny package holds files.", "", "  two  blanks ", "Ünknown ☃ signs\t!"):
        ids = vocabulary.encode(text)
        assert ids == reference.encode(text)
        assert vocabulary.decode(ids) == reference.decode(ids)


def test_pieces_show_every_token(vocabulary):
    shown = vocabulary.pieces([PAD_ID, *vocabulary.encode("tiny"), EOS_ID, 99])
    assert shown[0] == "<pad>" and shown[-2] == "</s>" and shown[-1] == "<unk>"
    assert "".join(shown[1:-2]) == "▁tiny"


def test_wrong_files_are_named(tmp_path, spiece):  # noqa: F811
    with pytest.raises(FileNotFoundError, match="No SentencePiece model at"):
        Vocabulary(tmp_path / "absent.model")
    for content in (b"", b"not a model at all, but a text of some length\n" * 9):
        (tmp_path / "bad.model").write_bytes(content)
        with pytest.raises(ValueError, match="bad.model' is not a SentencePiece model"):
            Vocabulary(tmp_path / "bad.model")
    text = tmp_path / "text.txt"
    text.write_text("a b c d e f g\n" * 50)
    sentencepiece.SentencePieceTrainer.Train(
        input=str(text), model_prefix=str(tmp_path / "default"), vocab_size=12, minloglevel=2
    )
    with pytest.raises(ValueError, match="numbers pad, eos, unk as"):
        Vocabulary(tmp_path / "default.model")


def test_sources_end_with_eos_and_are_padded(vocabulary):
    encoded = encode_sources(vocabulary, ["tiny files", ""], 12)
    ids = vocabulary.encode("tiny files")
    assert encoded.shape == (2, 12) and encoded.dtype == np.int32
    assert encoded[0].tolist() == ids + [EOS_ID] + [PAD_ID] * (11 - len(ids))
    assert encoded[1].tolist() == [EOS_ID] + [PAD_ID] * 11


def test_long_sources_are_cut_with_one_counted_warning(vocabulary):
    long = "Debian users may read or copy them"
    with pytest.warns(UserWarning, match="2 of 3 sources are longer than 5 tokens") as caught:
        encoded = encode_sources(vocabulary, [long, "or", long], 5)
    assert len(caught) == 1
    assert encoded[0].tolist() == vocabulary.encode(long)[:4] + [EOS_ID]
    with pytest.raises(ValueError, match="2 of 3 sources are longer than 5 tokens"):
        encode_sources(vocabulary, [long, "or", long], 5, on_long="error")
    exact = len(vocabulary.encode(long)) + 1
    assert (encode_sources(vocabulary, [long], exact, on_long="error") != PAD_ID).all()


def test_bad_arguments_are_refused(vocabulary):
    with pytest.raises(ValueError, match="at least 1"):
        encode_sources(vocabulary, ["a"], 0)
    with pytest.raises(ValueError, match="on_long"):
        encode_sources(vocabulary, ["a"], 5, on_long="drop")
