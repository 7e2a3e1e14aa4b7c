"""Where the files lie that travel with the package, in a checkout and in a wheel."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent

ASSETS = _PACKAGE / "assets"


def gin_search_paths() -> list[str]:
    """The directories of the shipped gin files: `gin/` of a checkout, or the wheel's copy."""
    # In a wheel no `gin/` of ours lies beside the package: there, that is gin-config itself.
    in_wheel, in_checkout = _PACKAGE / "gin_files", _PACKAGE.parent / "gin"
    return [str(in_wheel if in_wheel.is_dir() else in_checkout)]
