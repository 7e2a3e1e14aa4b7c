"""Puts a trained target, its draft and their vocabulary together as a pair.

    python scripts/assemble_pair.py --target runs/target/best --draft runs/draft/best \
      --vocabulary data/debian/spiece.model --output pairs/mine

The weights are stored in bfloat16 (--dtype float32 keeps them whole). The directory is
what `specdec --model` and `specdec_jax.pretrained.load` take.
"""

import argparse
import shutil
import sys
from pathlib import Path

from specdec_jax.checkpoints import load_params, save_params
from specdec_jax.vocabulary import Vocabulary


def assemble(target: Path, draft: Path, vocabulary: Path, output: Path, dtype: str) -> None:
    """Writes `output`: target/, draft/ and spiece.model.

    Raises:
      FileNotFoundError: a part is not there.
      ValueError: a part is not what it should be, or the vocabulary is too large.
    """
    pieces = Vocabulary(vocabulary).size
    models = {"target": load_params(target), "draft": load_params(draft)}
    for name, (config, _) in models.items():
        if config.vocab_size < pieces:
            raise ValueError(
                f"The {name} has {config.vocab_size} ids, fewer than the {pieces} pieces of "
                f"{vocabulary}: it was trained with another vocabulary."
            )
    output.mkdir(parents=True, exist_ok=True)
    for name, (config, params) in models.items():
        save_params(output / name, config, params, dtype=dtype)
    shutil.copyfile(vocabulary, output / "spiece.model")


def main() -> int:
    """Reads the flags; a mistake is one sentence and exit status 1."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for flag, what in (
        ("--target", "weights of the target, a run's best/ or last/"),
        ("--draft", "weights of the draft"),
        ("--vocabulary", "the SentencePiece model of both"),
        ("--output", "the directory to write"),
    ):
        parser.add_argument(flag, type=Path, required=True, help=what)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    flags = parser.parse_args()
    try:
        assemble(flags.target, flags.draft, flags.vocabulary, flags.output, flags.dtype)
    except (OSError, ValueError) as error:
        print(f"assemble_pair: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
