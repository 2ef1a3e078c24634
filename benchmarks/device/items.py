"""An item is one thing that is measured: its name, its group, and the process that it needs."""

import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

Row = dict[str, Any]
GROUPS = ("right", "core", "peers", "models")  # in the order of their value


class Skipped(Exception):
    """Raised where an item cannot be measured on this machine; the reason is a sentence."""


def need(package: str, what: str) -> None:
    """Raises Skipped unless a package is installed."""
    if importlib.util.find_spec(package) is None:
        raise Skipped(f"The package {package} is not installed, so {what} is left out.")


class Item(NamedTuple):
    """What is measured.

    Attributes:
      name: Its name in results, the same in each call.
      group: One of `GROUPS`.
      stack: The library that holds the device while it is measured, `jax` or `torch`.
      prepare: Compiles it, and gives a function that measures it and gives the row.
    """

    name: str
    group: str
    stack: str
    prepare: Callable[[], Callable[[], Row]]
