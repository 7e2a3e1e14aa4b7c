"""Files in, files out: an input's lines -> a JSONL file, which a rerun completes.

While a job runs its rows go to `FILE.partial`, whole batches at a time, and
`FILE.partial.job` says what made them. At the end the partial file takes its name.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from specdec_jax.errors import UserError
from specdec_jax.generate import Generation

# JSON leaves these as they are, and readers that split lines as Python's str does
# would see two rows.
_LINE_BREAKS = {ord(c): f"\\u{ord(c):04x}" for c in "\x85\u2028\u2029"}


_OVERWRITES = "begun with --overwrite"  # in the job file


def to_row(row: dict[str, Any]) -> bytes:
    """A row as one line of JSON."""
    text = json.dumps(row, ensure_ascii=False).translate(_LINE_BREAKS)
    return text.encode() + b"\n"


class BatchJob:
    """An output file in the making. A context manager: it holds the file's lock.

    Attributes:
      done: how many lines have their row in the file; not 0 at first where an
        interrupted run has left some.
      finished: whether the output has its name.
    """

    def __init__(
        self,
        output: str | os.PathLike[str],
        inputs: Sequence[Any],
        settings: dict[str, Any],
        *,
        batch_size: int,
        overwrite: bool = False,
        as_json: Callable[[Generation], dict[str, Any]] = Generation.as_json,
    ):
        """Opens the output; goes on with what an interrupted run has left.

        Args:
          output: the file to make.
          inputs: what each row has under "inputs": its line, or more, as JSON.
          settings: what the rows depend on, as JSON; a rerun must have the same.
          batch_size: a rerun begins with a whole batch, so that its batches are the same.
          overwrite: replace a finished output, and start over what an interrupted run has
            left, unless that was this very job, with `overwrite` too.
          as_json: what becomes of a generation, but for its inputs.

        Raises:
          UserError: the output exists or is no regular file, or was begun with other
            settings or another input, or is being written by another process.
        """
        self._output = Path(output)
        self._partial = Path(f"{self._output}.partial")
        self._job = Path(f"{self._output}.partial.job")
        self._inputs, self._as_json, self.finished = inputs, as_json, False
        self._check_output(overwrite)
        digest = hashlib.sha256(json.dumps(list(inputs)).encode()).hexdigest()
        job = {**settings, "input": digest}
        self._file = self._open_locked()
        try:
            self._check_output(overwrite)  # another process may have finished it just now
            begun = bool(self._partial.stat().st_size)
            # What an --overwrite began, it goes on with: else no rerun could ever end it.
            if not begun or (overwrite and self._begun_as() != {**job, _OVERWRITES: True}):
                self._file.truncate(0)
                mark = {_OVERWRITES: True} if overwrite else {}
                self._job.write_text(json.dumps({**job, **mark}, indent=1), "utf-8")
            else:
                self._check(job)
            self.done = self._keep_whole_batches(batch_size)
        except BaseException:
            self._file.close()
            raise

    def _check_output(self, overwrite: bool) -> None:
        try:
            mode = self._output.stat().st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISREG(mode):
            raise UserError(
                f"{self._output} is not a regular file: name a new one, or print JSONL with "
                "--output=-."
            )
        if not overwrite:
            raise UserError(f"{self._output} exists already: pass --overwrite to replace it.")

    def _open_locked(self) -> BinaryIO:
        """The partial file, locked; opened anew if a finishing process has renamed it."""
        while True:
            file = self._partial.open("ab+")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(file.fileno()), self._partial.stat()):
                        return file
            except BlockingIOError:
                file.close()
                raise UserError(f"{self._partial} is being written by another process.") from None
            file.close()

    def _begun_as(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self._job.read_text("utf-8")))
        except (OSError, ValueError, TypeError):
            return {}

    def _check(self, job: dict[str, Any]) -> None:
        old = self._begun_as()
        old.pop(_OVERWRITES, None)
        differing = sorted(
            name for name in job.keys() | old.keys() if job.get(name) != old.get(name)
        )
        if differing:
            raise UserError(
                f"{self._partial} was begun with another {', '.join(differing)}: run with the same "
                "to go on, or pass --overwrite to start over."
            )

    def _keep_whole_batches(self, batch_size: int) -> int:
        """Cuts the partial file after its last whole batch; returns its number of rows."""
        self._file.seek(0)
        ends = [0]
        for row, inputs in zip(self._file, self._inputs, strict=False):
            if not _is_row_of(row, inputs):
                break
            ends.append(ends[-1] + len(row))
        rows = len(ends) - 1
        if rows < len(self._inputs):
            rows -= rows % batch_size
        self._file.truncate(ends[rows])
        return rows

    def __enter__(self) -> "BatchJob":
        return self

    def __exit__(self, *_: object) -> None:
        if not self.finished and not os.fstat(self._file.fileno()).st_size:
            self._partial.unlink(missing_ok=True)
            self._job.unlink(missing_ok=True)
        self._file.close()

    def write(self, batches: Iterable[list[Generation]]) -> Iterator[list[Generation]]:
        """Writes batches as they come, passes them on, and finishes the file."""
        for batch in batches:
            inputs = self._inputs[self.done : self.done + len(batch)]
            rows = zip(batch, inputs, strict=True)
            self._file.write(
                b"".join(to_row(self._as_json(row) | {"inputs": shown}) for row, shown in rows)
            )
            self._file.flush()
            self.done += len(batch)
            if self.done == len(self._inputs):  # what else the batches' maker does can wait
                self._finish()
            yield batch
        if not self.finished:
            self._finish()

    def _finish(self) -> None:
        os.fsync(self._file.fileno())
        self._partial.replace(self._output)
        self._job.unlink(missing_ok=True)
        self.finished = True


def _is_row_of(row: bytes, inputs: Any) -> bool:
    if not row.endswith(b"\n"):
        return False
    try:
        return bool(json.loads(row)["inputs"] == inputs)
    except (ValueError, LookupError, TypeError):
        return False
