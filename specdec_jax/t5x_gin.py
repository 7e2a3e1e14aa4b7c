"""The config of a T5X model, from its gin file."""

import contextlib
import os
import re
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

import gin

from specdec_jax.t5 import T5Config
from specdec_jax.t5x_adapter import config_from_t5x, require_t5x

_GIN_ERRORS = (
    *(OSError, ValueError, LookupError, SyntaxError, ImportError, RuntimeError),
    *(AttributeError, TypeError, tokenize.TokenError),
)


def read_gin(path: str | os.PathLike[str], bindings: Sequence[str] = ()) -> T5Config:
    """Reads the config of a T5X model from its gin file, through T5X and gin themselves.

    The process's own gin configuration stays as it is. `dtype`, of the activations, is
    bfloat16 in T5X's own files.

    Args:
      path: a gin file that sets `MODEL`, such as T5X's t5x/examples/t5/t5_1_1/base.gin;
        looked for here, and in the T5X that is installed.
      bindings: more of gin's, "network.T5Config.num_decoder_layers = 2". A `DROPOUT_RATE`
        that nothing sets is 0.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: it sets no `MODEL`, or one that our T5 can't be, or gin refuses it; one
        sentence.
    """
    root, path = Path(require_t5x().__file__ or "").parents[1], os.fspath(path)
    file = Path(path) if os.path.isfile(path) else root / path
    if not file.is_file():
        raise FileNotFoundError(
            f"There is no gin file {path!r}, here or in {str(root)!r}; one of T5X's is "
            "t5x/examples/t5/t5_1_1/base.gin."
        )
    with _gin_set_aside():
        try:
            gin.parse_config_files_and_bindings([str(file)], list(bindings), finalize_config=False)
            if "DROPOUT_RATE = %gin.REQUIRED" in gin.config_str():
                gin.parse_config("DROPOUT_RATE = 0.0")
            sets_model = re.search(r"^MODEL =", gin.config_str(), re.M)
            with gin.config_scope("MODEL"):
                model = gin.get_configurable("gin.macro")() if sets_model else None
        except _GIN_ERRORS as error:
            message = " ".join(str(error).split()) or type(error).__name__
            raise ValueError(f"gin can't read the model in {path!r}: {message}") from error
    if model is None:
        raise ValueError(
            f"{path!r} sets no MODEL: give a file of a model, as t5x/examples/t5 has them."
        )
    return config_from_t5x(model)


@contextlib.contextmanager
def _gin_set_aside() -> Iterator[None]:
    """An empty gin configuration for a while.

    gin has one for the process, and no public way to keep it. What a file registers goes
    with it, or the names `network.T5Config` of two files would be ambiguous.
    """
    state = vars(gin.config)
    fresh = {
        "_CONFIG": {},
        "_CONFIG_IS_LOCKED": False,
        "_IMPORTS": set(),
        "_INVERSE_REGISTRY": dict(state["_INVERSE_REGISTRY"]),
        "_OPERATIVE_CONFIG": {},
        "_REGISTRY": state["_REGISTRY"].copy(),
        "_SINGLETONS": {},
    }
    before = {name: state[name] for name in fresh}
    state.update(fresh)
    try:
        yield
    finally:
        state.update(before)
