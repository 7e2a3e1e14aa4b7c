"""How the command shows things: the trace of a decode, progress, one-line messages."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from specdec_jax.trace import Round
from specdec_jax.vocabulary import Vocabulary

ACCEPTED, REJECTED, FROM_TARGET = "green", "red strike", "bold blue"


def say(message: str) -> None:
    """Prints a message for the user, beside the output: to standard error."""
    print(message, file=sys.stderr, flush=True)


def console() -> Console:
    """Standard output, in colour where it is a terminal; nothing is wrapped in a file."""
    return Console(highlight=False, markup=False, soft_wrap=not sys.stdout.isatty())


def render_trace(rounds: Sequence[Round], vocabulary: Vocabulary, *, colour: bool) -> list[Text]:
    """A trace as Figure 1 of the paper draws it, a line a round.

    Accepted guesses are green, a rejected one red, the target's own token blue.
    Without colour the last two stand as [-rejected-] and {+own+}.
    """
    lines = []
    for number, one in enumerate(rounds, 1):
        line = Text().append(f"{number:>4} ", "dim")
        pieces = vocabulary.pieces
        line.append(_text(pieces(one.kept)), ACCEPTED)
        for token, style, marks in (
            (one.rejected, REJECTED, "[-{}-]"),
            (one.from_target, FROM_TARGET, "{{+{}+}}"),
        ):
            if token is not None:
                text = _text(pieces([token]))
                line.append(text if colour else f" {marks.format(text.strip())}", style)
        lines.append(line)
    return lines


def _text(pieces: Sequence[str]) -> str:
    """Pieces as text: SentencePiece's mark of a word's beginning is a blank."""
    return "".join(pieces).replace("\u2581", " ")


def show_trace(rounds: Sequence[Round], vocabulary: Vocabulary) -> None:
    """Prints a trace, and what its colours mean."""
    out = console()
    colour = out.color_system is not None
    legend = Text("     ").append("accepted ", ACCEPTED).append("rejected", REJECTED)
    legend.append(" the target's own", FROM_TARGET)
    out.print(legend if colour else "     accepted [-rejected-] {+the target's own+}")
    for line in render_trace(rounds, vocabulary, colour=colour):
        out.print(line)


@contextlib.contextmanager
def progress(total: int, done: int, *, shown: bool = True) -> Iterator[Callable[[int], None]]:
    """A bar of rows on standard error, if that is a terminal; yields its `advance`.

    Where the rows themselves appear on the terminal, they are progress enough.
    """
    if not shown or not sys.stderr.isatty():
        yield lambda rows: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("rows", total=total, completed=done)
        yield lambda rows: bar.advance(task, rows)


def waiting(what: str) -> contextlib.AbstractContextManager[object]:
    """A spinner on standard error while something takes its time, if that is a terminal."""
    return Console(stderr=True).status(what) if sys.stderr.isatty() else contextlib.nullcontext()
