"""Optional packages: whether they are installed, and the error if not."""

import functools
import importlib.util
from types import ModuleType

from attention.errors import UsageError


def is_installed(name: str) -> bool:
    """Says whether a package could be imported; imports nothing."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # its parent package is missing
        return False


def load(name: str, need: str) -> ModuleType:
    """Imports an optional package; raises a UsageError that begins with `need` if it cannot."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(f"{need} the package {name} ({error}): pip install -r requirements.txt.") from error


hub = functools.partial(load, need="Hub names need")
