r"""Trains the SentencePiece vocabulary of the corpora, with T5's conventions.

  python scripts/train_vocabulary.py --data_dir data/debian

Reads both sides of every `*-train.tsv` that `build_corpora.py` wrote and
writes `spiece.model`: unigram pieces, ids pad 0, eos 1, unk 2 and no bos,
nmt_nfkc normalisation. The same corpora give the same vocabulary. Takes about
a minute on two cores.
"""

from __future__ import annotations

import argparse
import io
import os
import string
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import sentencepiece

PREFIXES = ("translate English to German: ", "summarize: ", "restore: ")
# Often enough for the words of the prefixes to become pieces of their own.
PREFIX_COUNT = 3000
# Rarer than the coverage asks for, yet no German or English text goes without them.
REQUIRED_CHARS = string.ascii_letters + string.digits + string.punctuation + "ÄÖÜäöüß„“”»«–’€"
SMALLEST = len(set(REQUIRED_CHARS)) + 4  # and pad, eos, unk, and the mark of a word
MAX_THREADS = 2


def parse_args(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data_dir", type=Path, required=True, help="folder with the *-train.tsv files")
    add("--model_file", type=Path, help="default: <data_dir>/spiece.model")
    add("--vocab_size", type=int, default=4096, help="pieces (default: %(default)s)")
    add("--num_threads", type=int, default=MAX_THREADS, choices=range(1, MAX_THREADS + 1))
    return parser.parse_args(arguments)


def read_texts(paths: Sequence[Path]) -> Iterator[str]:
    """Yields the inputs and targets of the files, and the tasks' prefixes."""
    for path in paths:
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                yield from line.rstrip("\n").split("\t")
    for prefix in PREFIXES:
        for _ in range(PREFIX_COUNT):
            yield prefix


def train(texts: Iterator[str], vocab_size: int, num_threads: int) -> bytes:
    """Trains a unigram vocabulary; returns the serialized model."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=texts,
        model_writer=model,
        model_type="unigram",
        vocab_size=vocab_size,
        character_coverage=0.9995,
        required_chars=REQUIRED_CHARS,
        normalization_rule_name="nmt_nfkc",
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        num_threads=num_threads,
        minloglevel=1,
    )
    return model.getvalue()


def main() -> int:
    """Runs the script; what the user can mend is told in one sentence."""
    args = parse_args()
    paths = sorted(args.data_dir.glob("*-train.tsv"))
    if not paths:
        print(
            f"train_vocabulary: no *-train.tsv in {args.data_dir}: run build_corpora.py first.",
            file=sys.stderr,
        )
        return 1
    model_file = args.model_file or args.data_dir / "spiece.model"
    if not model_file.parent.is_dir():
        print(f"train_vocabulary: there is no directory {model_file.parent}.", file=sys.stderr)
        return 1
    if args.vocab_size < SMALLEST:
        print(
            f"train_vocabulary: --vocab_size must be {SMALLEST} or above, the characters that no "
            f"text goes without, not {args.vocab_size}.",
            file=sys.stderr,
        )
        return 1
    try:
        model = train(read_texts(paths), args.vocab_size, args.num_threads)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1]
        print(f"train_vocabulary: SentencePiece says: {reason}", file=sys.stderr)
        return 1
    partial = model_file.with_name(model_file.name + ".tmp")
    partial.write_bytes(model)
    os.replace(partial, model_file)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    print(f"{model_file}: {processor.get_piece_size()} pieces")
    for prefix in PREFIXES:
        print(f"  {prefix!r}: {processor.encode(prefix, out_type=str)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
