"""Where the files lie that travel with the package, in a checkout and in a wheel."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent

ASSETS = _PACKAGE / "assets"


def gin_search_paths() -> list[str]:
    """Where shipped gin files are found, as `runs/train.gin` and as `gin/runs/train.gin`.

    `gin/` lies at the top of a checkout; a wheel has it within the package.
    """
    home = _PACKAGE if (_PACKAGE / "gin").is_dir() else _PACKAGE.parent
    return [str(home / "gin"), str(home)]
