"""The pairs that ship with the package, and pairs of your own in the same layout.

<pair>/target/        weights, as `checkpoints.save_params` writes them
<pair>/draft/         weights
<pair>/ngram/         an n-gram table of the vocabulary, for drafts `unigram` and `bigram`; optional
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

from specdec_jax.checkpoints import expected_params, load_config, load_params
from specdec_jax.drafters.early_exit import EarlyExitDrafter
from specdec_jax.drafters.model import ModelDrafter
from specdec_jax.drafters.prompt_lookup import LookupDrafter
from specdec_jax.model import NetworkModel, T5Model, make_model
from specdec_jax.ngram import is_ngrams, load_ngrams
from specdec_jax.resources import ASSETS
from specdec_jax.sharding import Partition
from specdec_jax.types import Drafter, Params, Partitioner
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
      partitioner: the devices that it decodes on, where its parameters lie; None: one.
    """

    name: str
    target: NetworkModel
    target_params: Params
    drafter: Drafter
    draft_params: Params
    vocabulary: Vocabulary
    card: str
    partitioner: Partitioner | None = None


def available() -> list[str]:
    """The names of the pairs that ship with the package."""
    return sorted(path.parent.name for path in ASSETS.glob("*/target"))


def load(
    name: str | os.PathLike[str] = DEFAULT,
    *,
    draft: str | os.PathLike[str] | None = None,
    dtype: str = "float32",
    partition: Partition | None = None,
) -> Pair:
    """Loads a pair by its name, or from a directory.

    Args:
      name: one of `available()`, or a directory in the layout above.
      draft: another draft than the pair's own, `DRAFTS`. It must share the vocabulary.
      dtype: of weights and activations; "bfloat16" halves the memory, and rounds.
      partition: how the target lies on a mesh, each of whose devices gets the whole draft;
        None: one device. `partitioning.load_pair` gives the decodes too.

    Raises:
      FileNotFoundError: no such pair, or files of it are missing; near names are named.
      ValueError: a file is not what it should be, or the vocabulary is not the model's.
    """
    path = _find(name)
    target, target_params = _load_model(path / "target", dtype, partition)
    vocabulary = Vocabulary(_find_vocabulary(path))
    drafter, draft_params = _load_draft(
        "model" if draft is None else os.fspath(draft), path, target, target_params
    )
    for size in (target.vocab_size, drafter.vocab_size):
        if size < vocabulary.size:
            raise ValueError(
                f"The vocabulary of {os.fspath(name)!r} has {vocabulary.size} pieces, "
                f"a model of it only {size} ids."
            )
    card = path / "MODEL_CARD.md"
    return Pair(
        name=os.fspath(name),
        target=target,
        target_params=target_params,
        drafter=drafter,
        draft_params=draft_params,
        vocabulary=vocabulary,
        card=card.read_text("utf-8") if card.is_file() else "",
    )


DRAFTS = """model (the pair's own), unigram, bigram, trigram (of its n-gram table), lookup (copies \
from the source and the output), lookup+DRAFT (where it finds nothing, another), early_exit:K \
(the target's first K decoder layers), or the name or directory of a pair, of a model or of an \
n-gram table"""
_ORDERS = {"unigram": 1, "bigram": 2, "trigram": 3}


def _load_draft(
    draft: str, pair: Path, target: NetworkModel, target_params: Params
) -> tuple[Drafter, Params]:
    """A draft by its name, one of `DRAFTS` -> it and its parameters."""
    kind, _, rest = draft.partition("+")
    if kind == "lookup" and not rest and draft == kind:
        return LookupDrafter(target.vocab_size), ()
    if kind == "lookup" and rest:
        if rest.partition("+")[0] == "lookup":
            raise ValueError("lookup falls back on another draft, such as lookup+bigram.")
        fallback, params = _load_draft(rest, pair, target, target_params)
        return LookupDrafter(target.vocab_size, fallback=fallback), params
    kind, _, layers = draft.partition(":")
    if kind == "early_exit":
        if not layers.isdecimal():
            raise ValueError(
                "Early exit needs the number of the target's decoder layers to keep, such as "
                f"early_exit:2, not {draft!r}."
            )
        if not isinstance(target, T5Model):
            raise ValueError(
                "Early exit needs a T5 as target; for a language model take another draft."
            )
        return EarlyExitDrafter(target, int(layers)), target_params
    if draft in _ORDERS:
        return _ngrams(pair / "ngram", _ORDERS[draft])
    path = pair / "draft" if draft == "model" else _find_draft(draft)
    if is_ngrams(path):
        return _ngrams(path)
    on = target.partition
    on = dataclasses.replace(on, split=False) if on else None
    model, params = _load_model(path, target.config.dtype, on)
    return ModelDrafter(model), params


def _ngrams(path: Path, order: int | None = None) -> tuple[Drafter, Params]:
    model, table = load_ngrams(path, order)
    return ModelDrafter(model), table


def fingerprint(
    name: str | os.PathLike[str] = DEFAULT, *, draft: str | os.PathLike[str] | None = None
) -> str:
    """Tells the contents of what `load` would read apart; empty where it would find nothing."""
    try:
        path = _find(name)
        roots = (path / "target", *_files_of(draft, path))
    except FileNotFoundError:
        return ""
    digest = hashlib.sha256()
    for root in (*roots, _find_vocabulary(path)):
        files = [root] if root.is_file() else sorted(f for f in root.rglob("*") if f.is_file())
        for file in files:
            content = hashlib.sha256(file.read_bytes()).hexdigest()
            digest.update(f"{file.relative_to(root)} {content}\n".encode())
    return digest.hexdigest()


def _files_of(draft: str | os.PathLike[str] | None, pair: Path) -> list[Path]:
    """Where a draft's files lie; those of a draft that reads none beside the target are none."""
    name = "model" if draft is None else os.fspath(draft)
    if name.partition("+")[0] == "lookup":
        name = name.partition("+")[2]
    if not name or name.startswith("early_exit:"):
        return []
    if name in _ORDERS:
        return [pair / "ngram"]
    return [pair / "draft" if name == "model" else _find_draft(name)]


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


def _load_model(path: Path, dtype: str, partition: Partition | None) -> tuple[NetworkModel, Params]:
    shardings = None
    if partition is not None:
        shardings = partition.param_shardings(expected_params(load_config(path)))
    config, params = load_params(path, dtype=dtype, shardings=shardings)
    model = make_model(dataclasses.replace(config, dtype=dtype), partition)
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
    try:
        return _find(draft) / "draft"
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error} A draft is {DRAFTS}.") from error
