"""Text rules of the corpora: sentences, what counts as prose, what counts as equal."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterator

from specdec_jax.restoration import strip_case_and_punctuation

_SPLITS = (("train", 96), ("validation", 98), ("test", 100))

# Words whose final point does not end a sentence, in lower case without it.
_ABBREVIATIONS_TEXT = """
    e.g i.e cf vs etc al dr mr mrs ms st no nr vol inc ltd co corp jr sr approx incl
    resp fig sec ed eds ca z.b bzw usw d.h u.a o.ä z.t u.u ggf evtl sog abb bspw inkl
    exkl engl dt max min std sek mio mrd str vgl s.u s.o i.d.r u.ä jh chr bsp allg
    insb versch
"""
_ABBREVIATIONS = frozenset(_ABBREVIATIONS_TEXT.split())
_BOUNDARY = re.compile(r"""[.!?]["“”»«')\]]*\s+(?=["“„»«(]?[A-ZÄÖÜ])""")
_LAST_WORD = re.compile(r"(\S+)$")
_COMMON_MARKS = " .,?!'\"„“»«-()"
_WORD = re.compile(r"\w+(?:[-'’]\w+)*")

# Traces of markup, code, paths, addresses and menu paths.
_NOT_PROSE = re.compile(
    r"""[\\<>=_{}\[\]|@\#$~^*`§©®™→•¶]     # signs of code and markup
    | ://|www\.|::|--|\.\.|,,|\(\)|\ /|//    # addresses, options, paths
    | /\S*/                                  # a/b/c
    | \w{2,}\.[^\W\d]\w*                     # file.txt
    | \(\s*\)|\(s\)|\s[-–—]\s*$|\s[,;:.!?]   # what remains of removed markup
    | (?<![\w)])[-+]\w                       # -x
    | ''|""|\.\s*\.|[,;:]\.$
    | \s[-–—]\s[A-ZÄÖÜ]                      # File - Open
    | \w\(\d                                 # page(8)
    | \S-\ (?!and|or|und|oder|bzw|sowie|to|as|en-)   # hyphen- ation
    | (?<!\w)\.\w                            # .profile
    """,
    re.VERBOSE,
)
_RESUMES = re.compile(r"(\w{3,})[.!?]\s+[a-zäöüß]")
_QUOTES = re.compile(r"""["“”„«»]""")


def squeeze(text: str) -> str:
    """Makes every run of white space (tabs and newlines too) one space."""
    return " ".join(text.split())


def plain_marks(text: str, language: str) -> str:
    """Normalises a text as the vocabulary does, and makes its quotes uniform.

    Typographic apostrophes become plain ones, and so do English quotes; German
    quotes are left as they are written.
    """
    text = squeeze(unicodedata.normalize("NFKC", text))
    text = re.sub(r"(?<=\w)[’ʼ´](?=\w)", "'", text)
    return re.sub("[“”]", '"', text) if language == "en" else text


def is_latin(text: str) -> bool:
    """Whether a text keeps to the Latin script and common marks."""
    return all(char < "\u0250" or char in "–—‘’“”„‚‹›…€−‐‑" for char in text)


def text_key(text: str) -> str:
    """What two texts share when they count as duplicates.

    Case, punctuation and the values of numbers are ignored, so that the
    versions of one package ("gcc 11", "gcc 12") count once.
    """
    return re.sub(r"\d+", "0", strip_case_and_punctuation(text))


def hash_fraction(text: str) -> float:
    """A number in [0, 1) that depends on nothing but `text`."""
    digest = hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2.0**64


def split_of(document: str) -> str:
    """The split (96 / 2 / 2) of a document, by a fixed hash of its id."""
    percent = 100 * hash_fraction("split:" + document)
    return next(split for split, upper in _SPLITS if percent < upper)


def _ends_in_abbreviation(text: str) -> bool:
    """Whether the point after `text` may belong to an abbreviation or ordinal."""
    match = _LAST_WORD.search(text)
    if match is None:
        return True
    word = match.group(1).lstrip("(\"“„»«'").lower()
    is_initial = len(word) == 1 and word.isalpha()
    is_ordinal = word.isdigit() and int(word) <= 31
    return is_initial or is_ordinal or word in _ABBREVIATIONS


def split_sentences(paragraph: str) -> Iterator[str]:
    """Yields the sentences of a paragraph of English or German prose."""
    text = squeeze(paragraph)
    start = 0
    for match in _BOUNDARY.finditer(text):
        if text[match.start()] == "." and _ends_in_abbreviation(text[start : match.start()]):
            continue
        yield text[start : match.end()].strip()
        start = match.end()
    if start < len(text):
        yield text[start:].strip()


def _is_balanced(text: str) -> bool:
    """Whether brackets and quotes come in pairs."""
    depth = 0
    for char in text:
        depth += (char == "(") - (char == ")")
        if depth < 0:
            return False
    return depth == 0 and len(_QUOTES.findall(text)) % 2 == 0


def is_prose_sentence(text: str, shortest: int = 20, longest: int = 220) -> bool:
    """Whether a text is one well-formed sentence of natural prose.

    It starts with a capital letter, ends with a point, an exclamation or a
    question mark, has at least four words, is made mostly of letters, and has
    no trace of code, paths, addresses or markup.
    """
    if not shortest <= len(text) <= longest or text[-1] not in ".!?" or not text[0].isupper():
        return False
    words = _WORD.findall(text)
    letters = sum(char.isalpha() or char in _COMMON_MARKS for char in text)
    capitals = sum(len(word) > 1 and word.isupper() for word in words)
    if len(words) < 4 or letters < 0.92 * len(text) or capitals > 0.3 * len(words):
        return False
    if _NOT_PROSE.search(text) or not _is_balanced(text) or not is_latin(text):
        return False
    resumed = (match.group(1).lower() for match in _RESUMES.finditer(text))
    return all(word in _ABBREVIATIONS for word in resumed)


def has_markup(text: str) -> bool:
    """Whether a text keeps traces of markup, code or addresses."""
    return re.search(r"[\\<>{}|`~^*=@]|://|www\.|::|--|\w\(\)|[#$%]\w|\.\.|%\d", text) is not None


def tells_of(text: str, summary: str, least: float = 1 / 3) -> bool:
    """Whether enough of a summary's words (by their beginnings) occur in the text.

    The text of many packages is one for all ("This package contains the source
    for ..."): nobody could tell the summary from it.
    """
    beginnings = {word[:5] for word in words_of(text)}
    wanted = [word for word in words_of(summary) if len(word) >= 4]
    return sum(word[:5] in beginnings for word in wanted) >= max(1.0, least * len(wanted))


def words_of(text: str) -> list[str]:
    """The words of a text in lower case, without marks."""
    return re.findall(r"\w+", text.lower())


def is_good_pair(english: str, german: str, longest: int = 600) -> bool:
    """Whether an English and a German text may be translations of each other."""
    if not english or not german or max(len(english), len(german)) > longest:
        return False
    if has_markup(english + german) or not is_latin(english + german):
        return False
    if text_key(english) == text_key(german) or not any(map(str.isalpha, english)):
        return False
    ratio = (len(german) + 10) / (len(english) + 10)
    return 0.5 < ratio < 2.2
