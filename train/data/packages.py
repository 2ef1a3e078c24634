"""Packages that only some data need, loaded when they do."""

import importlib
from types import ModuleType

from attention.errors import UsageError


def load(name: str, need: str) -> ModuleType:
    """A package.

    Args:
      name: As it is imported.
      need: What needs it, with {} for its name, to begin the message.

    Raises:
      UsageError: it is missing or cannot be loaded.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(f"{need.format(name)} ({error}): pip install -r requirements.txt.") from error
