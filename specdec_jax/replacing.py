"""Directories that are written as a whole: a reader never sees half of one."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Gives a directory to write to, which takes the place of `path` when all went well.

    The new directory is written beside the old one and renamed into its place. A reader
    sees one of them, never a mixture; between two renames, for a moment, neither (and if
    the writer is killed just then, until `tidy`).
    """
    path = os.path.abspath(os.fspath(path))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    partial = tempfile.mkdtemp(
        dir=os.path.dirname(path), prefix=f".{os.path.basename(path)}.", suffix=".partial"
    )
    try:
        os.chmod(partial, 0o755)
        yield Path(partial)
        if os.path.exists(path):
            old = f"{partial}.old"
            os.rename(path, old)
            try:
                os.rename(partial, path)
            except BaseException:
                os.rename(old, path)
                raise
            shutil.rmtree(old)
        else:
            os.rename(partial, path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def tidy(path: str | os.PathLike[str]) -> None:
    """Clears up after a writer of `path` that was killed; call it when none is at work.

    Half-written directories beside `path` go; where it died between the two renames of
    a replacement, the old directory takes its place again.
    """
    path = os.path.abspath(os.fspath(path))
    parent, name = os.path.split(path)
    if not os.path.isdir(parent):
        return
    left = [f for f in sorted(os.listdir(parent)) if f.startswith(f".{name}.")]
    for entry in [f for f in left if f.endswith(".partial.old")]:
        if not os.path.exists(path):
            os.rename(os.path.join(parent, entry), path)
    for entry in [f for f in left if f.endswith((".partial", ".partial.old"))]:
        shutil.rmtree(os.path.join(parent, entry), ignore_errors=True)
