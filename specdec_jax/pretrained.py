"""The pairs that ship with the package, and pairs of your own in the same layout.

<pair>/target/        weights, as `checkpoints.save_params` writes them
<pair>/draft/         weights
<pair>/spiece.model   the vocabulary of both; or in target/, where `specdec convert` puts it
<pair>/MODEL_CARD.md  what it can do and what it can't, and where it comes from
"""

import dataclasses
import difflib
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from specdec_jax.checkpoints import load_params
from specdec_jax.drafters.model import ModelDrafter
from specdec_jax.model import T5Model, t5_model
from specdec_jax.resources import ASSETS
from specdec_jax.types import Drafter, Params
from specdec_jax.vocabulary import Vocabulary

DEFAULT = "debian"


@dataclasses.dataclass(frozen=True)
class Pair:
    """A target and a draft, ready to decode.

    Attributes:
      name: as it was asked for.
      target: p.
      target_params: its parameters, laid out for decoding.
      drafter: q.
      draft_params: its parameters.
      vocabulary: of both.
      card: the model card, Markdown; empty where there is none.
    """

    name: str
    target: T5Model
    target_params: Params
    drafter: Drafter
    draft_params: Params
    vocabulary: Vocabulary
    card: str


def available() -> list[str]:
    """The names of the pairs that ship with the package."""
    return sorted(path.parent.name for path in ASSETS.glob("*/target"))


def load(
    name: str | os.PathLike[str] = DEFAULT, *, draft: str | os.PathLike[str] | None = None
) -> Pair:
    """Loads a pair by its name, or from a directory.

    Args:
      name: one of `available()`, or a directory in the layout above.
      draft: another draft: a pair, of which its draft is taken, or a directory of
        weights. It must share the target's vocabulary.

    Raises:
      FileNotFoundError: no such pair, or files of it are missing; near names are named.
      ValueError: a file is not what it should be, or the vocabulary is not the model's.
    """
    path = _find(name)
    target, target_params = _load_model(path / "target")
    model, draft_params = _load_model(path / "draft" if draft is None else _find_draft(draft))
    vocabulary = Vocabulary(_find_vocabulary(path))
    for config in (target.config, model.config):
        if config.vocab_size < vocabulary.size:
            raise ValueError(
                f"The vocabulary of {os.fspath(name)!r} has {vocabulary.size} pieces, "
                f"a model of it only {config.vocab_size} ids."
            )
    card = path / "MODEL_CARD.md"
    return Pair(
        name=os.fspath(name),
        target=target,
        target_params=target_params,
        drafter=ModelDrafter(model),
        draft_params=draft_params,
        vocabulary=vocabulary,
        card=card.read_text("utf-8") if card.is_file() else "",
    )


def fingerprint(
    name: str | os.PathLike[str] = DEFAULT, *, draft: str | os.PathLike[str] | None = None
) -> str:
    """Tells the contents of what `load` would read apart; empty where it would find nothing."""
    try:
        path = _find(name)
        roots = (path / "target", path / "draft" if draft is None else _find_draft(draft))
    except FileNotFoundError:
        return ""
    digest = hashlib.sha256()
    for root in (*roots, _find_vocabulary(path)):
        files = [root] if root.is_file() else sorted(f for f in root.rglob("*") if f.is_file())
        for file in files:
            content = hashlib.sha256(file.read_bytes()).hexdigest()
            digest.update(f"{file.relative_to(root)} {content}\n".encode())
    return digest.hexdigest()


def held_out(path: str | os.PathLike[str] | None = None) -> list[dict[str, Any]]:
    """Sentences that no shipped model was trained on.

    Args:
      path: a JSONL file to read instead.

    Returns:
      Dicts of `task`, `inputs` (with the task's prefix), `targets` and `source`; a file
      of one's own may leave out the last two.

    Raises:
      ValueError: a line is not such an object, which is named; or there are no lines.
    """
    path = path or ASSETS / "heldout.jsonl"
    with open(path, "rb") as f:
        rows = [_row(line, f"{path}:{i}") for i, line in enumerate(f, 1) if line.strip()]
    if not rows:
        raise ValueError(f"{path} holds no sentences.")
    return rows


def _row(line: bytes, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{where} is not JSON.") from error
    if not isinstance(row, dict) or not all(
        isinstance(row.get(name), str) for name in ("task", "inputs")
    ):
        raise ValueError(f'{where} must be an object with the texts "task" and "inputs".')
    return row


def _load_model(path: Path) -> tuple[T5Model, Params]:
    config, params = load_params(path)
    model = t5_model(config)
    return model, model.prepare(params)


def _find(name: str | os.PathLike[str]) -> Path:
    """The directory of a pair: shipped under that name, or else at that path."""
    shipped, names = ASSETS / os.fspath(name), available()
    if os.fspath(name) in names:
        return shipped
    path = Path(name)
    if (path / "target").is_dir():
        return path
    if path.is_dir():
        raise FileNotFoundError(
            f"{os.fspath(name)!r} holds no pair: it needs target/, draft/ and spiece.model."
        )
    near = difflib.get_close_matches(os.fspath(name), names, n=3, cutoff=0.4) or names
    hint = f"; did you mean {' or '.join(near)}?" if near else "; none ships with this package."
    raise FileNotFoundError(f"There is no pair and no directory {os.fspath(name)!r}{hint}")


def _find_vocabulary(path: Path) -> Path:
    own, converted = path / "spiece.model", path / "target" / "spiece.model"
    return own if own.is_file() or not converted.is_file() else converted


def _find_draft(draft: str | os.PathLike[str]) -> Path:
    path = Path(draft)
    if (path / "config.json").is_file():
        return path
    return _find(draft) / "draft"
