"""Optional packages that only some data need."""

import importlib
from types import ModuleType

from attention.errors import UsageError


def load(name: str, need: str) -> ModuleType:
    """Imports an optional package.

    Args:
      name: The name that it is imported by.
      need: The beginning of the error's message, which says what needs it, with {} for its name.

    Raises:
      UsageError: it is missing or cannot be loaded.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(f"{need.format(name)} ({error}): pip install -r requirements.txt.") from error
