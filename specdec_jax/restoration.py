"""Restoring case and punctuation: the task's one rule for making its inputs.

The rule is shared by the script that builds the corpus and by whoever feeds
the trained model, so that both see the same inputs. Standard library only.
"""

from __future__ import annotations

import re

# Marks that always go: sentence and clause marks, quotes, brackets, dashes.
_ALWAYS = r"""[;!?¡¿…•·"“”„‟«»‹›‘‚‛`´()\[\]{}⟨⟩<>–—―−]"""
# A hyphen or an apostrophe stays only between two characters of a word.
_UNLESS_IN_WORD = r"""(?<!\w)[-‐‑'’]|[-‐‑'’](?!\w)"""
# A point, comma or colon stays only between two digits: 3.5, 10:30, 1,000.
_UNLESS_IN_NUMBER = r"(?<!\d)[.,:]|[.,:](?!\d)"

_REMOVED = re.compile(f"{_ALWAYS}|{_UNLESS_IN_WORD}|{_UNLESS_IN_NUMBER}")


def strip_case_and_punctuation(text: str) -> str:
    r"""Lower-cases a text and takes its punctuation away, keeping every word.

    Each removed mark becomes a space and runs of white space become one, so
    that two words never merge. What belongs to a word stays: hyphens and
    apostrophes inside it, digits with the marks between them, and symbols that
    are read aloud (``%``, ``&``, ``+``, ``/``).

    >>> strip_case_and_punctuation('He said: "It\'s a well-known 3.5 % rise!"')
    "he said it's a well-known 3.5 % rise"
    >>> strip_case_and_punctuation("Das sind Ein- und Ausgaben (z. B. Dateien).")
    'das sind ein und ausgaben z b dateien'

    The function is idempotent, and equal texts give equal results, so the input
    of the task is fully determined by its target.

    Args:
      text: any text, of one or more sentences.

    Returns:
      The words of `text` in lower case, separated by single spaces.
    """
    return " ".join(_REMOVED.sub(" ", text.lower()).split())
