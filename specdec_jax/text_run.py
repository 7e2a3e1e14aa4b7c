"""One run of `specdec generate`: lines -> standard output or a file, and what it took."""

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from specdec_jax import __version__
from specdec_jax.batch_job import BatchJob, to_row
from specdec_jax.generate import Batch, Generation, Settings, decode, decode_traced, generate
from specdec_jax.pretrained import Pair
from specdec_jax.speed import Comparison
from specdec_jax.terminal import progress, say, show_trace, waiting
from specdec_jax.types import DecodeResult


class TextRun:
    """Decodes lines, showing how far it is; tells at the end what it took."""

    def __init__(
        self,
        load: Callable[[], Pair],
        lines: Sequence[str],
        settings: Settings,
        *,
        compare: bool = False,
        trace: bool = False,
    ):
        """Nothing is loaded yet, so that a wrong output is refused at once.

        Args:
          load: gives the pair.
          lines: the sources.
          settings: how they are decoded.
          compare: decode with the target alone too.
          trace: show the rounds of the only line.
        """
        self._load, self._lines, self._settings = load, lines, settings
        self._compare, self._trace = compare, trace

    def to_standard_output(self, *, as_json: bool) -> None:
        """Prints a prediction a line, or a row of JSON a line."""
        for batch in self._generate(bar=not sys.stdout.isatty()):
            for row in batch:
                text = (
                    to_row(row.as_json()).decode() if as_json else f"{_one_line(row.prediction)}\n"
                )
                sys.stdout.write(text)
            sys.stdout.flush()

    def to_file(self, output: str, names: dict[str, Any], *, overwrite: bool) -> None:
        """Writes JSONL, or goes on with a file that was begun.

        Args:
          output: the file.
          names: what was asked for beside the settings: a run begun with another is refused.
          overwrite: see `BatchJob`.
        """
        about = {**names, **dataclasses.asdict(self._settings), "version": __version__}
        batch_size = about.pop("batch_size")
        with BatchJob(
            output, self._lines, about, batch_size=batch_size, overwrite=overwrite
        ) as job:
            if job.done:
                say(f"Going on after row {job.done} of {len(self._lines)}.")
            try:
                for _ in job.write(self._generate(first=job.done)):
                    pass
            except KeyboardInterrupt:
                if job.finished:
                    raise KeyboardInterrupt(f"Interrupted; {output} is complete.") from None
                raise KeyboardInterrupt(
                    f"Interrupted after {job.done} of {len(self._lines)} rows; "
                    "the same command goes on from there."
                ) from None

    def _generate(self, *, first: int = 0, bar: bool = True) -> Iterator[list[Generation]]:
        with waiting("loading the models"):
            pair = self._load()
        comparison = Comparison(pair, self._settings) if self._compare else None

        def wait() -> contextlib.AbstractContextManager[object]:
            return contextlib.nullcontext() if bar else waiting("decoding; a first run compiles")

        def decode_one(batch: Batch, settings: Settings) -> DecodeResult:
            if self._trace:
                with wait():
                    rounds, result = decode_traced(pair, batch, settings)
                show_trace(rounds, pair.vocabulary)
                if not comparison:
                    return result
            with wait():
                if not comparison:
                    return decode(pair, batch, settings)
                comparison.settings = settings
                return comparison.add(batch)

        rows, tokens, calls, examined, accepted = 0, 0, 0, 0, 0
        with progress(len(self._lines), first, shown=bar) as advance:
            for batch in generate(
                pair, self._lines, self._settings, first=first, decode_with=decode_one
            ):
                yield batch
                advance(len(batch))
                rows += len(batch)
                tokens += sum(len(row.tokens) for row in batch)
                calls += sum(row.rounds for row in batch)
                examined += sum(row.examined for row in batch)
                accepted += sum(row.accepted for row in batch)
        if calls:
            alpha = f", alpha {accepted / examined:.2f}" if examined else ""
            say(
                f"{rows} {'row' if rows == 1 else 'rows'}, {tokens} tokens in {calls} target calls "
                f"({tokens / calls:.2f} a call){alpha}"
            )
        if comparison and comparison.rows:
            say(comparison.verdict())
            say(comparison.speeds())


def _one_line(text: str) -> str:
    return " ".join(text.splitlines())
