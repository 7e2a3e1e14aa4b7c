"""Jobs configured by gin, with T5X's flags.

--gin_file=FILE           may be repeated; later files override earlier ones
--gin.NAME=VALUE          a binding; text needs quotes of its own: --gin.RUN_DIR='"runs/a"'
--gin_search_paths=A,B    directories looked through before the shipped ones

Several processes: --multiprocess_gpu, and where they don't find one another by themselves
--coordinator_address=HOST:PORT --process_count=N --process_index=I
"""

import dataclasses
import difflib
import inspect
import logging as python_logging
import os
import re
import tokenize
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gin
import jax
from absl import logging

from specdec_jax import partitioning
from specdec_jax.errors import UserError
from specdec_jax.resources import gin_search_paths
from specdec_jax.t5 import T5Config

_GIN_ERRORS = (
    *(OSError, ValueError, LookupError, SyntaxError, ImportError, RuntimeError),
    *(AttributeError, TypeError, tokenize.TokenError),
)
_RUN_DIR = "RUN_DIR"  # which `run` reads
_QUOTES = "text needs quotes of its own: --gin.{0}='\"...\"'"


@dataclasses.dataclass(frozen=True)
class GinFlags:
    """What a command line says about gin."""

    files: tuple[str, ...]
    bindings: tuple[str, ...]
    search_paths: tuple[str, ...]
    processes: dict[str, Any] = dataclasses.field(default_factory=dict)  # of `initialize`


_PROCESSES: dict[str, Callable[[str], Any]] = {
    "coordinator_address": str,
    "process_count": int,
    "process_index": int,
}


def parse_flags(arguments: Sequence[str]) -> GinFlags:
    """Reads T5X's gin flags; anything else is an error."""
    files, bindings, paths = [], [], []
    processes: dict[str, Any] = {}
    for argument in arguments:
        name, equals, value = argument.removeprefix("-").removeprefix("-").partition("=")
        if argument.startswith("-") and name == "multiprocess_gpu":
            processes["multiprocess"] = value.lower() not in ("false", "0")
            continue
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
        elif name in _PROCESSES:
            try:
                processes[name] = _PROCESSES[name](value)
            except ValueError as error:
                raise UserError(f"--{name} must be a whole number, not {value!r}.") from error
        else:
            raise UserError(
                f"Unknown flag --{name}; there are --gin_file, --gin.NAME and --gin_search_paths."
            )
    if not files:
        raise UserError("A job needs at least one --gin_file=FILE, such as runs/train.gin.")
    return GinFlags(tuple(files), tuple(bindings), tuple(paths), processes)


def configure(flags: GinFlags, *, reads: Sequence[str] = (_RUN_DIR,)) -> None:
    """Parses files and bindings, in place of any configuration before.

    Args:
      flags: which.
      reads: macros that the caller reads itself.

    Raises:
      UserError: a binding is missing, or names nothing that there is; or gin's own
        message on one line.
    """
    gin.clear_config()
    for path in (*flags.search_paths, *gin_search_paths()):
        gin.add_config_file_search_path(path)
    try:
        gin.parse_config_files_and_bindings(list(flags.files), [], finalize_config=False)
        names = _names()
        for binding in flags.bindings:
            _bind(binding, names)
        _check_macros(reads)
        gin.finalize()
    except _GIN_ERRORS as error:
        missing = re.search(r"(\w+)/macro.value set to `%gin.REQUIRED`", str(error))
        if missing:
            raise _needed(missing[1]) from error
        raise UserError(f"gin: {_plain(error)}") from error


def model_config(name: str) -> T5Config:
    """The `MODEL` of a gin file.

    Args:
      name: a file, or the name of one of gin/models without its ending.

    Raises:
      UserError: there is no such file, or it binds no T5; near names are named.
    """
    shipped = {
        path.stem: str(path)
        for where in gin_search_paths()
        for path in Path(where).glob("models/*.gin")
    }
    file = shipped.get(name, name)
    if not Path(file).is_file():
        near = difflib.get_close_matches(name, shipped, n=3) or sorted(shipped)
        raise UserError(f"There is no model {name!r}; there is {', '.join(near)}.")
    configure(GinFlags((file,), (), ()), reads=("MODEL",))
    try:
        config = gin.query_parameter("%MODEL").scoped_configurable_fn()
    except (ValueError, AttributeError) as error:
        raise UserError(f"{file} binds no MODEL = @t5.T5Config().") from error
    if not isinstance(config, T5Config):
        raise UserError(f"{file} is no T5: plans are for encoder-decoders alone.")
    return config


def _names() -> set[str]:
    """What the parsed files let a command line bind: macros, and what they configure."""
    text = gin.config_str()
    names = {*re.findall(r"^(\w+) =", text, re.M), *re.findall(r"%(\w+)", text)}
    for configured in set(re.findall(r"^([\w./]+)\.\w+ =", text, re.M)):
        function = gin.get_configurable(configured.rpartition("/")[2])
        names |= {
            f"{configured}.{parameter}" for parameter in inspect.signature(function).parameters
        }
    return names


def _bind(binding: str, names: set[str]) -> None:
    """Parses a binding of the command line. gin itself would take any name for a macro's."""
    name = binding.partition("=")[0].strip()
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {near[0]}?" if near else "."
    if re.fullmatch(r"\w+", name) and name not in names:
        raise UserError(f"gin: the job's files know no {name}{hint}")
    try:
        gin.parse_config(binding)
    except (SyntaxError, tokenize.TokenError) as error:
        raise UserError(
            f"gin: {binding!r} holds no Python value; {_QUOTES.format(name)}."
        ) from error
    except _GIN_ERRORS as error:
        raise UserError(f"gin: {_plain(error).removesuffix('.')}{hint}") from error


def _check_macros(reads: Sequence[str]) -> None:
    """Refuses a macro that a file sets and nothing reads: gin itself would say nothing."""
    text = gin.config_str()
    # gin prints every macro that is set, even one that is only set.
    defined = set(re.findall(r"^(\w+) =", text, re.M))
    used = set(re.findall(r"%(\w+)", text)) | set(reads)
    for name in sorted(defined - used):
        near = difflib.get_close_matches(name, used, n=1)
        hint = f"; did you mean {near[0]}?" if near else "."
        raise UserError(f"gin: a file sets {name}, which nothing reads{hint}")


def _needed(macro: str) -> UserError:
    return UserError(f"The job needs --gin.{macro}=VALUE ({_QUOTES.format(macro)}).")


def _plain(error: Exception) -> str:
    """An error's message on one line, without what gin adds of where it was."""
    message = re.split(r"\n +In (?:call to configurable|bindings string) ", str(error))[0]
    return " ".join(message.split())


def run(function: Callable[..., Any], arguments: Sequence[str]) -> Any:
    """Configures a function and calls it; `config.gin` in its RUN_DIR tells with what.

    Args:
      function: all its arguments come from gin.
      arguments: gin flags.

    Raises:
      UserError: the configuration is wrong, or what the function says is.
    """
    flags = parse_flags(arguments)
    try:
        partitioning.initialize(**flags.processes)
    except (ValueError, RuntimeError) as error:
        raise UserError(_plain(error)) from error
    configure(flags)
    run_dir = _run_dir()
    run_dir.mkdir(parents=True, exist_ok=True)
    config = run_dir / "config.gin"
    if jax.process_index():  # the first process writes it for all
        config = Path(os.devnull)
    before = config.read_text("utf-8") if config.exists() else None
    config.write_text(gin.config_str(), "utf-8")
    try:
        with gin.unlock_config():  # seqio and T5X register functions when a job imports them
            result = gin.get_configurable(function)()
    except (UserError, ValueError, OSError, ImportError, TypeError, RuntimeError) as error:
        if before is not None:  # the job was refused; the run is still the one before
            config.write_text(before, "utf-8")
        raise UserError(_plain(error)) from error
    except ArithmeticError as error:
        raise UserError(_plain(error)) from error
    config.write_text(gin.operative_config_str(), "utf-8")
    return result


def _run_dir() -> Path:
    try:
        run_dir = gin.query_parameter(f"%{_RUN_DIR}")
    except ValueError as error:
        raise _needed(_RUN_DIR) from error
    if not isinstance(run_dir, str):
        raise UserError(f"RUN_DIR must be text, not {run_dir!r}; {_QUOTES.format('RUN_DIR')}.")
    if "://" in run_dir:
        raise UserError(f"RUN_DIR must be a directory (a mounted bucket is one), not {run_dir}.")
    return Path(run_dir)


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
