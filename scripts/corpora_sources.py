"""Readers of the corpora's sources: package indices, LibreOffice help, Ding.

Each reader turns one kind of file into small records; none of them knows about
splits, duplicates or output files.
"""

from __future__ import annotations

import bz2
import dataclasses
import gzip
import html.parser
import lzma
import re
import subprocess
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from corpora_text import squeeze

APT_HELPER = "/usr/lib/apt/apt-helper"


class CorpusError(Exception):
    """Something the user can mend; the message says what in one sentence."""


@dataclasses.dataclass(frozen=True, slots=True)
class Text:
    """A passage in one language. `document` is what a split keeps whole."""

    source: str
    document: str
    language: str
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    """A passage in English and its German translation."""

    source: str
    document: str
    english: str
    german: str


@dataclasses.dataclass(frozen=True, slots=True)
class Description:
    """What one package says about itself, in one language.

    Attributes:
      document: the source package, the same for every version of it.
      synopsis: the first line.
      blocks: the parts of the long description; None stands for a list,
        a table or code.
    """

    document: str
    synopsis: str
    blocks: tuple[str | None, ...]


def _decompress(path: Path) -> bytes:
    """The contents of a file, by the suffix of its name."""
    match path.suffix:
        case ".gz":
            return gzip.decompress(path.read_bytes())
        case ".xz":
            return lzma.decompress(path.read_bytes())
        case ".bz2":
            return bz2.decompress(path.read_bytes())
        case ".lz4" | ".zst":
            return _apt_cat(path)
    return path.read_bytes()


def read_text(path: Path) -> str:
    """Reads a text file, compressed or not."""
    try:
        return _decompress(path).decode("utf-8", "replace")
    except (OSError, EOFError, ValueError, lzma.LZMAError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or "its compression is damaged"
        raise CorpusError(f"Can't read {path}: {reason}.") from error


def _apt_cat(path: Path) -> bytes:
    """Decompresses a package index as apt does."""
    command = [APT_HELPER, "cat-file", str(path)]
    try:
        result = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError as error:
        raise CorpusError(
            f"{path} needs {APT_HELPER}, which is not here: decompress the file yourself and name "
            "that."
        ) from error
    if result.returncode:
        raise CorpusError(f"apt can't decompress {path}.")
    return result.stdout


def parse_stanzas(text: str) -> Iterator[dict[str, str]]:
    """Yields the stanzas of a Debian control file; folded lines keep their newlines."""
    for stanza in re.split(r"\n(?:[ \t]*\n)+", text):
        fields: dict[str, str] = {}
        name = ""
        for line in stanza.split("\n"):
            if line[:1] in (" ", "\t"):
                fields[name] = fields.get(name, "") + "\n" + line
            elif ":" in line:
                name, value = line.split(":", 1)
                fields[name] = value.strip()
        if fields:
            yield fields


def source_family(source: str) -> str:
    """The name of a source package without its versions: gcc-12 and gcc-13 are one."""
    name = source.split(" ", 1)[0].removesuffix("-signed-amd64")
    return re.sub(r"[-.]?\d[\d.]*(?=-|$)", "", name) or name


def package_documents(packages: Iterable[Path]) -> dict[str, str]:
    """Maps each binary package to the document it belongs to, its source package."""
    documents: dict[str, str] = {}
    for path in packages:
        for stanza in parse_stanzas(read_text(path)):
            if package := stanza.get("Package"):
                family = source_family(stanza.get("Source", package))
                documents[package] = f"package:{family}"
    return documents


def parse_blocks(lines: Sequence[str]) -> tuple[str | None, ...]:
    """Cuts a long description into paragraphs (None: a list, a table or code)."""
    blocks: list[list[str]] = [[]]
    for line in lines:
        if line.strip() == ".":
            blocks.append([])
        else:
            blocks[-1].append(line[1:])
    return tuple(_as_prose(block) for block in blocks if block)


def _as_prose(lines: Sequence[str]) -> str | None:
    """The lines of a block as one paragraph, unless their layout carries meaning."""
    if any(re.match(r"\s|[-*+•o#>]\s|\d+[.)]\s|-{2,}|={2,}", line) for line in lines):
        return None
    return squeeze(" ".join(lines))


def read_descriptions(
    paths: Iterable[Path], language: str, documents: dict[str, str]
) -> dict[str, Description]:
    """Reads `Translation-<language>` files into {Description-md5: description}."""
    found: dict[str, Description] = {}
    for path in paths:
        for stanza in parse_stanzas(read_text(path)):
            md5, value = stanza.get("Description-md5"), stanza.get(f"Description-{language}")
            if not md5 or not value:
                continue
            package = stanza.get("Package", "")
            fallback = f"package:{source_family(package)}"
            synopsis, *lines = value.split("\n")
            found[md5] = Description(
                documents.get(package, fallback), squeeze(synopsis), parse_blocks(lines)
            )
    return found


def align_descriptions(
    english: dict[str, Description], german: dict[str, Description]
) -> Iterator[Pair]:
    """Pairs synopses by checksum, and paragraphs where both have the same number."""
    for md5, translation in german.items():
        original = english.get(md5)
        if original is None:
            continue
        yield Pair("synopses", original.document, original.synopsis, translation.synopsis)
        if len(original.blocks) != len(translation.blocks):
            continue
        for ours, theirs in zip(original.blocks, translation.blocks, strict=True):
            if ours is not None and theirs is not None:
                yield Pair("descriptions", original.document, ours, theirs)


def description_texts(descriptions: dict[str, Description], language: str) -> Iterator[Text]:
    """Yields the paragraphs of the long descriptions."""
    for description in descriptions.values():
        for block in description.blocks:
            if block is not None:
                yield Text("descriptions", description.document, language, block)


class _HelpParser(html.parser.HTMLParser):
    """Collects the text of elements with ids `par_…` and `hd_…` in a help page."""

    _VARIANTS = frozenset(
        ["MAC", "UNIX", "WIN", "WRITER", "CALC", "IMPRESS", "DRAW", "CHART", "MATH"]
    )
    _VOID = frozenset(["br", "img", "input", "meta", "link", "hr"])

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.texts: dict[str, str] = {}
        self._id = ""
        self._open: list[str] = []
        self._hidden_at = 0
        self._parts: list[str] = []
        self._is_code = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        fields = {name: value or "" for name, value in attrs}
        if not self._id:
            if not re.match(r"(par|hd)_", fields.get("id", "")):
                return
            self._id, self._open, self._parts = fields["id"], [], []
            self._is_code = "code" in fields.get("class", "")
        if tag in self._VOID:
            self._parts.append(" ")
            return
        self._open.append(tag)
        self._is_code |= tag in ("code", "pre")
        if not self._hidden_at and fields.get("class") in self._VARIANTS:
            self._hidden_at = len(self._open)

    def handle_endtag(self, tag: str) -> None:
        if not self._id or tag not in self._open:
            return
        while self._open.pop() != tag:
            pass
        if self._hidden_at > len(self._open):
            self._hidden_at = 0
        if not self._open:
            text = squeeze("".join(self._parts))
            if text and not self._is_code:
                self.texts.setdefault(self._id, text)
            self._id = ""

    def handle_data(self, data: str) -> None:
        if self._id and not self._hidden_at:
            self._parts.append(data)


def parse_help_page(page: str) -> dict[str, str]:
    """Returns {element id: text} of a LibreOffice help page, without code."""
    parser = _HelpParser()
    parser.feed(page.split("<footer", 1)[0])
    return parser.texts


def read_help(directory: Path) -> dict[str, dict[str, str]]:
    """Reads every help page under `directory` as {relative path: {element id: text}}."""
    pages = sorted(directory.rglob("*.html"))
    if not pages:
        raise CorpusError(f"No help page (*.html) found under {directory}.")
    return {
        path.relative_to(directory).as_posix(): parse_help_page(read_text(path)) for path in pages
    }


def align_help(
    english: dict[str, dict[str, str]], german: dict[str, dict[str, str]]
) -> Iterator[Pair]:
    """Pairs the elements that share their page and their id."""
    for page, elements in english.items():
        translated = german.get(page, {})
        for name, text in elements.items():
            if name in translated:
                yield Pair("help", f"help:{page}", text, translated[name])


def help_texts(pages: dict[str, dict[str, str]], language: str) -> Iterator[Text]:
    """Yields the paragraphs (no headings) of the help pages."""
    for page, elements in pages.items():
        for name, text in elements.items():
            if name.startswith("par_"):
                yield Text("help", f"help:{page}", language, text)


# A dictionary's own signs: placeholders and alternatives instead of words.
_DICTIONARY_SIGNS = re.compile(
    r"[/{}\[\]<>()~]|\b(sb|sth|jd|jds|jdn|jdm|etw|jmd|jmdn|jmdm|sb's)\b|…|\.\.\.|\|"
)


def parse_example(part: str) -> str | None:
    """The sentence in one part of a Ding line, if it is one and nothing else."""
    text = re.split(r"(?<=[.!?]);", part, maxsplit=1)[0]
    text = squeeze(re.sub(r"\[[^\]]*\]|<[^>]*>", " ", text))
    if not re.match(r"[A-ZÄÖÜ]", text) or text[-1:] not in ".!?":
        return None
    return None if _DICTIONARY_SIGNS.search(text) or ";" in text else text


def read_ding(path: Path) -> tuple[list[Pair], list[Text]]:
    """Reads the example sentences of a Ding dictionary (German :: English).

    Returns:
      The sentences whose line has as many German as English parts, in pairs,
      and all sentences of either language.
    """
    pairs: list[Pair] = []
    texts: list[Text] = []
    for line in read_text(path).split("\n"):
        if line.startswith("#") or " :: " not in line:
            continue
        left, right = line.split(" :: ", 1)
        headword = squeeze(re.split(r"[{\[(;|]", left, maxsplit=1)[0])
        document = f"ding:{headword}"
        german, english = (list(map(parse_example, side.split(" | "))) for side in (left, right))
        texts.extend(Text("ding", document, "de", text) for text in german if text)
        texts.extend(Text("ding", document, "en", text) for text in english if text)
        if len(german) == len(english):
            for ours, theirs in zip(english, german, strict=True):
                if ours and theirs:
                    pairs.append(Pair("ding", document, ours, theirs))
    return pairs, texts
