"""How the command shows things: the trace of a decode, progress, one-line messages."""

import contextlib
import sys
import time
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


class JobProgress(contextlib.AbstractContextManager["JobProgress"]):
    """How far a long job is: rows/s, tokens/s, alpha and time left.

    A bar on standard error, if that is a terminal; else a line now and then.
    """

    EVERY = 30.0  # seconds between two lines

    def __init__(self, total: int):
        """`total` rows are to be decoded, or passed over."""
        self._total, self._done, self._skipped = total, 0, 0
        self._tokens = self._examined = self._accepted = 0
        self._start = self._said = time.monotonic()
        self._bar: Progress | None = None
        if sys.stderr.isatty():
            columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
            self._bar = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True))
            self._row = self._bar.add_task("", total=total)

    def __enter__(self) -> "JobProgress":
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def skip(self, rows: int) -> None:
        """So many rows were there already."""
        self._skipped += rows
        self._show()

    def add(self, *, rows: int, tokens: int, examined: int, accepted: int) -> None:
        """A batch is done."""
        self._done += rows
        self._tokens += tokens
        self._examined += examined
        self._accepted += accepted
        self._show()

    def line(self) -> str:
        """Where it stands, in words."""
        seconds = max(time.monotonic() - self._start, 1e-9)
        parts = [f"{self._done / seconds:.2g} rows/s"]
        if self._tokens:
            parts.append(f"{self._tokens / seconds:.0f} tokens/s")
        if self._examined:
            parts.append(f"alpha {self._accepted / self._examined:.2f}")
        return ", ".join(parts)

    def _show(self) -> None:
        completed = self._done + self._skipped
        if self._bar:
            self._bar.update(self._row, completed=completed, description=self.line())
        elif time.monotonic() - self._said >= self.EVERY:
            self._said = time.monotonic()
            left = (self._said - self._start) / max(self._done, 1) * (self._total - completed)
            say(f"{completed} of {self._total} rows, {self.line()}, {left:.0f} s left")
