"""Items, the units of measurement."""

import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

Row = dict[str, Any]
GROUPS = ("right", "core", "peers", "models")  # in the order of their value


class Skipped(Exception):
    """Raised if an item cannot be measured on this machine; the reason is a sentence."""


def need(package: str, what: str) -> None:
    """Raises Skipped unless a package is installed."""
    if importlib.util.find_spec(package) is None:
        raise Skipped(f"The package {package} is not installed, so {what} is left out.")


class Item(NamedTuple):
    """A unit of measurement.

    Attributes:
      name: Its name in results, the same in each call.
      group: One of `GROUPS`.
      stack: The library that holds the device meanwhile, `jax` or `torch`.
      prepare: Compiles the item, and makes a function that measures it and returns the row.
    """

    name: str
    group: str
    stack: str
    prepare: Callable[[], Callable[[], Row]]
