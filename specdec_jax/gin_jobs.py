"""Jobs configured by gin, with T5X's flags.

--gin_file=FILE           may be repeated; later files override earlier ones
--gin.NAME=VALUE          a binding; text needs quotes of its own: --gin.RUN_DIR='"runs/a"'
--gin_search_paths=A,B    directories looked through before the shipped ones
"""

import dataclasses
import logging as python_logging
import re
import tokenize
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gin
from absl import logging

from specdec_jax.errors import UserError
from specdec_jax.resources import gin_search_paths

_GIN_ERRORS = (
    *(OSError, ValueError, LookupError, SyntaxError, ImportError, RuntimeError),
    *(AttributeError, TypeError, tokenize.TokenError),
)


@dataclasses.dataclass(frozen=True)
class GinFlags:
    """What a command line says about gin."""

    files: tuple[str, ...]
    bindings: tuple[str, ...]
    search_paths: tuple[str, ...]


def parse_flags(arguments: Sequence[str]) -> GinFlags:
    """Reads T5X's gin flags; anything else is an error."""
    files, bindings, paths = [], [], []
    for argument in arguments:
        name, equals, value = argument.removeprefix("-").removeprefix("-").partition("=")
        if not argument.startswith("-") or not equals:
            raise UserError(
                f"Not a gin flag: {argument!r}; write --gin_file=FILE or --gin.NAME=VALUE."
            )
        if name == "gin_file":
            files.append(value)
        elif name == "gin_search_paths":
            paths += [path for path in value.split(",") if path]
        elif name == "gin_bindings":
            bindings.append(value)
        elif name.startswith("gin."):
            bindings.append(f"{name.removeprefix('gin.')} = {value}")
        else:
            raise UserError(
                f"Unknown flag --{name}; there are --gin_file, --gin.NAME and --gin_search_paths."
            )
    if not files:
        raise UserError("A job needs at least one --gin_file=FILE, such as runs/train.gin.")
    return GinFlags(tuple(files), tuple(bindings), tuple(paths))


def configure(flags: GinFlags) -> None:
    """Parses files and bindings, in place of any configuration before.

    Raises:
      UserError: a binding is missing, or gin's own message on one line.
    """
    gin.clear_config()
    for path in (*flags.search_paths, *gin_search_paths()):
        gin.add_config_file_search_path(path)
    try:
        gin.parse_config_files_and_bindings(list(flags.files), list(flags.bindings))
    except _GIN_ERRORS as error:
        missing = re.search(r"(\w+)/macro.value set to `%gin.REQUIRED`", str(error))
        if missing:
            raise UserError(
                f"The job needs --gin.{missing[1]}=VALUE (text in quotes of its own: "
                f"--gin.{missing[1]}='\"...\"')."
            ) from error
        raise UserError(f"gin: {' '.join(str(error).split())}") from error


def run(function: Callable[..., Any], arguments: Sequence[str]) -> Any:
    """Configures a function and calls it; `config.gin` in its RUN_DIR tells with what.

    Args:
      function: all its arguments come from gin.
      arguments: gin flags.
    """
    configure(parse_flags(arguments))
    run_dir = Path(gin.query_parameter("%RUN_DIR"))
    run_dir.mkdir(parents=True, exist_ok=True)
    config = run_dir / "config.gin"
    config.write_text(gin.config_str(), "utf-8")
    try:
        return gin.get_configurable(function)()
    finally:
        config.write_text(gin.operative_config_str(), "utf-8")


def log_own_messages() -> None:
    """Shows this package's log, and only warnings of the libraries below it."""
    logging.set_verbosity(logging.INFO)
    logging.use_absl_handler()
    package = str(Path(__file__).parent)

    def is_wanted(record: python_logging.LogRecord) -> bool:
        if record.filename == "resource_reader.py":  # gin's, of every path it tries
            return False
        return record.pathname.startswith(package) or record.levelno > python_logging.INFO

    logging.get_absl_handler().addFilter(is_wanted)
