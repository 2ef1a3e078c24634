"""Optional packages: whether they are there, and what is said where they are not."""

import importlib.util
from types import ModuleType

from attention.errors import UsageError


def is_installed(name: str) -> bool:
    """Returns whether a package could be imported by a name; nothing is imported."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the folder that holds it is missing
        return False


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
