"""Optional packages: whether they are there, and what is said where they are not."""

import functools
import importlib.util
from types import ModuleType

from attention.errors import UsageError


def is_installed(name: str) -> bool:
    """Says whether a package could be imported by a name; nothing is imported."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the folder that holds it is missing
        return False


def load(name: str, need: str) -> ModuleType:
    """Imports an optional package by its name; raises UsageError, which begins with `need`, where it cannot be."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(f"{need} the package {name} ({error}): pip install -r requirements.txt.") from error


hub = functools.partial(load, need="Hub names need")
