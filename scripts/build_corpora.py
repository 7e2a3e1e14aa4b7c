r"""Builds three small text corpora from public Debian material.

  python scripts/build_corpora.py --output_dir data/debian

Tasks, one `<task>-<split>.tsv` of `inputs<TAB>targets` lines for each split:

  ende      English to German: package synopses, paragraphs of package
            descriptions, LibreOffice help, example sentences of the Ding dictionary
  synopsis  the long description of a package to its synopsis, in English
  restore   lower-cased sentences without punctuation to the sentences, in both

By default the material comes through apt on a Debian machine: into a work
folder, nothing is installed, and the system's own package lists are left alone.
Elsewhere, name files that you got yourself; only those are then read.

A document (a source package, a help page, a headword) is in the same split in
every task, and no text of the train splits is in another split.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import corpora_apt
import corpora_sources as sources
from corpora_text import (
    has_markup,
    hash_fraction,
    is_good_pair,
    is_latin,
    is_prose_sentence,
    plain_marks,
    split_of,
    split_sentences,
    squeeze,
    tells_of,
    text_key,
)

from specdec_jax.restoration import strip_case_and_punctuation

SPLITS = ("train", "validation", "test")
PREFIXES = {
    "ende": "translate English to German: ",
    "synopsis": "summarize: ",
    "restore": "restore: ",
}
LICENCES = {
    "synopses": "package descriptions of Debian: those of the packages (free by the DFSG); "
    "translations by the Debian Description Translation Project",
    "descriptions": "as synopses",
    "help": "MPL-2.0 (LibreOffice help, The Document Foundation and contributors)",
    "ding": "GPL-2.0-or-later (Ding dictionary, Frank Richter)",
}
# The held-out sample: rows of each task, and the range of their targets' characters.
SAMPLE = {"restore": (64, 40, 160), "ende": (24, 30, 200), "synopsis": (24, 20, 100)}


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One example of a task, before the task's prefix is put before its inputs."""

    task: str
    source: str
    document: str
    language: str
    inputs: str
    targets: str


@dataclasses.dataclass
class Material:
    """What the sources gave: translated pairs, texts in one language, descriptions."""

    pairs: list[sources.Pair] = dataclasses.field(default_factory=list)
    texts: list[sources.Text] = dataclasses.field(default_factory=list)
    descriptions: dict[str, sources.Description] = dataclasses.field(default_factory=dict)


def parse_args(arguments: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--output_dir", type=Path, required=True, help="where the .tsv files go")
    add("--work_dir", type=Path, help="what is downloaded (default: <output_dir>/work)")
    add("--sample_file", type=Path, help="also write a small held-out sample here (JSON lines)")
    files = parser.add_argument_group("files of your own, instead of apt (compressed or not)")
    add = files.add_argument
    add("--packages_file", type=Path, help="Packages index: tells the packages' sources")
    add("--translation_en", type=Path, help="Translation-en index: English descriptions")
    add("--translation_de", type=Path, help="Translation-de index: German descriptions")
    add("--ding_file", type=Path, help="Ding's German :: English dictionary (file `de-en`)")
    add("--help_en_dir", type=Path, help="unpacked libreoffice-help-en-us: folder en-US/text")
    add("--help_de_dir", type=Path, help="unpacked libreoffice-help-de: folder de/text")
    return parser.parse_args(arguments)


def locate_by_apt(work_dir: Path) -> dict[str, list[Path]]:
    """Gets everything through apt; returns the paths by kind."""
    apt = corpora_apt.Apt(work_dir)
    found = apt.indices()
    help_dir = "usr/share/libreoffice/help"
    return found | {
        "ding": [apt.unpack("trans-de-en") / "usr/share/trans/de-en"],
        "help_en": [apt.unpack("libreoffice-help-en-us") / help_dir / "en-US/text"],
        "help_de": [apt.unpack("libreoffice-help-de") / help_dir / "de/text"],
    }


def locate(args: argparse.Namespace) -> dict[str, list[Path]]:
    """Returns the paths of the material by kind, the user's own or apt's."""
    named = {
        "packages": args.packages_file,
        "en": args.translation_en,
        "de": args.translation_de,
        "ding": args.ding_file,
        "help_en": args.help_en_dir,
        "help_de": args.help_de_dir,
    }
    if not any(named.values()):
        return locate_by_apt(args.work_dir or args.output_dir / "work")
    for path in filter(None, named.values()):
        if not path.exists():
            raise sources.CorpusError(f"There is no file or folder {path}.")
    return {kind: [path] if path else [] for kind, path in named.items()}


def read_material(paths: dict[str, list[Path]]) -> Material:
    """Reads whatever sources there are."""
    documents = sources.package_documents(paths["packages"])
    english = sources.read_descriptions(paths["en"], "en", documents)
    german = sources.read_descriptions(paths["de"], "de", documents)
    material = Material(descriptions=english)
    material.pairs += sources.align_descriptions(english, german)
    material.texts += sources.description_texts(english, "en")
    material.texts += sources.description_texts(german, "de")
    help_en, help_de = (
        sources.read_help(paths[kind][0]) if paths[kind] else {} for kind in ("help_en", "help_de")
    )
    material.pairs += sources.align_help(help_en, help_de)
    material.texts += sources.help_texts(help_en, "en")
    material.texts += sources.help_texts(help_de, "de")
    for path in paths["ding"]:
        pairs, texts = sources.read_ding(path)
        material.pairs += pairs
        material.texts += texts
    return material


def translation_rows(pairs: Iterable[sources.Pair]) -> Iterator[Row]:
    """Rows of `ende`: pairs that may be translations of each other."""
    for pair in pairs:
        english, german = plain_marks(pair.english, "en"), plain_marks(pair.german, "de")
        if is_good_pair(english, german):
            yield Row("ende", pair.source, pair.document, "en-de", english, german)


def summarized_text(description: sources.Description, longest: int = 1000) -> str:
    """The prose of a description, whole sentences up to `longest` characters."""
    prose = [block for block in description.blocks if block and block[-1] not in ":;,"]
    kept: list[str] = []
    size = 0
    for block in prose:
        for sentence in split_sentences(block):
            size += len(sentence) + 1
            if size > longest:
                return " ".join(kept)
            kept.append(sentence)
    return " ".join(kept)


def synopsis_rows(descriptions: Iterable[sources.Description]) -> Iterator[Row]:
    """Rows of `synopsis`: long descriptions and their first lines, in English."""
    for description in descriptions:
        text = plain_marks(summarized_text(description), "en")
        synopsis = plain_marks(description.synopsis, "en")
        is_long = len(text) >= 60 and len(text) > 1.2 * len(synopsis)
        is_clean = not has_markup(text + synopsis) and is_latin(text + synopsis)
        is_told = len(synopsis) >= 10 and " " in synopsis and tells_of(text, synopsis)
        if is_long and is_clean and is_told:
            yield Row("synopsis", "descriptions", description.document, "en", text, synopsis)


def restoration_rows(texts: Iterable[sources.Text]) -> Iterator[Row]:
    """Rows of `restore`: the well-formed sentences of prose in either language."""
    for text in texts:
        for sentence in split_sentences(plain_marks(text.text, text.language)):
            if is_prose_sentence(sentence):
                stripped = strip_case_and_punctuation(sentence)
                yield Row("restore", text.source, text.document, text.language, stripped, sentence)


def deduplicate(rows: Iterable[Row]) -> tuple[dict[str, list[Row]], dict[str, int]]:
    """Splits rows by document; drops those that repeat a text or leak into train.

    Within a task no input and no target occurs twice. A row of another split
    is dropped when its input or its target is a text of any task's train split.

    Returns:
      Rows by "<task>-<split>", and the number of dropped rows by task.
    """
    rows = sorted(rows, key=lambda row: SPLITS.index(split_of(row.document)))
    seen: dict[str, set[str]] = {"train": set()}
    kept: dict[str, list[Row]] = {f"{task}-{split}": [] for task in PREFIXES for split in SPLITS}
    dropped: dict[str, int] = collections.Counter(dict.fromkeys(PREFIXES, 0))
    for row in rows:
        split = split_of(row.document)
        keys = {"inputs": text_key(row.inputs), "targets": text_key(row.targets)}
        sides = [(seen.setdefault(f"{row.task}-{side}", set()), key) for side, key in keys.items()]
        leaks = split != "train" and not seen["train"].isdisjoint(keys.values())
        if leaks or any(key in side for side, key in sides):
            dropped[row.task] += 1
            continue
        for side, key in sides:
            side.add(key)
        if split == "train":
            seen["train"].update(keys.values())
        kept[f"{row.task}-{split}"].append(row)
    for chosen in kept.values():
        chosen.sort(key=lambda row: (hash_fraction(row.inputs), row.inputs))
    return kept, dict(dropped)


def write_atomically(path: Path, text: str) -> None:
    """Writes a file so that no reader ever sees a part of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".tmp")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def summarize(kept: dict[str, list[Row]], dropped: dict[str, int]) -> dict[str, object]:
    """The counts that `summary.json` holds."""
    files = {}
    for name, rows in kept.items():
        by_source = collections.Counter(f"{row.source}/{row.language}" for row in rows)
        files[name] = {
            "rows": len(rows),
            "by_source": dict(sorted(by_source.items())),
            "mean_input_characters": round(sum(len(r.inputs) for r in rows) / max(1, len(rows)), 1),
            "mean_target_characters": round(
                sum(len(r.targets) for r in rows) / max(1, len(rows)), 1
            ),
        }
    return {"files": files, "dropped_duplicates": dropped, "licences": LICENCES}


def pick_sample(kept: dict[str, list[Row]]) -> Iterator[dict[str, str]]:
    """Picks the held-out sample from the test splits, by hash and nothing else.

    Half of the sentences to restore are English, half German, in turn.
    """
    for task, (count, shortest, longest) in SAMPLE.items():
        rows = [row for row in kept[f"{task}-test"] if shortest <= len(row.targets) <= longest]
        rows = [row for row in rows if len(row.inputs) <= 600]
        rows.sort(key=lambda row: hash_fraction("sample:" + row.targets))
        languages = sorted({row.language for row in rows}, reverse=True)
        for turn in range(count // max(len(languages), 1)):
            for language in languages:
                mine = [row for row in rows if row.language == language]
                for row in mine[turn : turn + 1]:
                    yield {
                        "task": task,
                        "inputs": PREFIXES[task] + row.inputs,
                        "targets": row.targets,
                        "source": f"{row.source}/{row.language}",
                    }


def build(args: argparse.Namespace) -> dict[str, object]:
    """Does the work; returns the summary."""
    material = read_material(locate(args))
    rows = [
        *translation_rows(material.pairs),
        *synopsis_rows(material.descriptions.values()),
        *restoration_rows(material.texts),
    ]
    if not rows:
        raise sources.CorpusError("No usable pair was found in these sources.")
    kept, dropped = deduplicate(rows)
    for name, chosen in kept.items():
        lines = (f"{squeeze(row.inputs)}\t{squeeze(row.targets)}\n" for row in chosen)
        write_atomically(args.output_dir / f"{name}.tsv", "".join(lines))
    summary = summarize(kept, dropped)
    text = json.dumps(summary, ensure_ascii=False, indent=2) + "\n"
    write_atomically(args.output_dir / "summary.json", text)
    if args.sample_file:
        sample = (json.dumps(row, ensure_ascii=False) + "\n" for row in pick_sample(kept))
        write_atomically(args.sample_file, "".join(sample))
    print_table(kept)
    return summary


def print_table(kept: dict[str, list[Row]]) -> None:
    """Prints the number of rows by task, source and split."""
    print(f"{'task':10}{'source':20}" + "".join(f"{split:>12}" for split in SPLITS))
    for task in PREFIXES:
        counts = [
            collections.Counter(f"{row.source}/{row.language}" for row in kept[f"{task}-{split}"])
            for split in SPLITS
        ]
        for source in sorted(set().union(*counts)):
            print(f"{task:10}{source:20}" + "".join(f"{count[source]:12,}" for count in counts))
        print(f"{task:10}{'all':20}" + "".join(f"{count.total():12,}" for count in counts))


def main() -> int:
    """Runs the script; what the user can mend is told in one sentence."""
    try:
        build(parse_args())
    except (sources.CorpusError, OSError) as error:
        print(f"build_corpora: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
