"""Packages that only some uses need: imported here, or asked for in one sentence."""

import importlib
from types import ModuleType

from specdec_jax.errors import MissingExtraError


def require(module: str, *, extra: str) -> ModuleType:
    """Imports an optional module.

    Args:
      module: its name, such as "sacrebleu".
      extra: the extra of setup.py that brings it.

    Raises:
      MissingExtraError: it is not installed. A module that is there and fails to
        import raises whatever it raises.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name not in (module, module.split(".")[0]):
            raise
        raise MissingExtraError(
            f"This needs the package {module}; install it with: pip install 'specdec_jax[{extra}]'"
        ) from error
