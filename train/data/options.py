"""Options in spec strings, checked against the parameters of the class or function that takes them."""

import inspect
import typing
from collections.abc import Callable, Collection
from typing import Any

from attention import specs
from attention.errors import UsageError, check_known, unknown


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _are_numbers(value: Any) -> bool:
    return type(value) is tuple and len(value) > 0 and all(map(_is_number, value))


# By type: what an option must be, and a function that returns whether a value is that.
_KINDS: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    bool: ("True or False", lambda value: type(value) is bool),
    int: ("a whole number", lambda value: type(value) is int),
    float: ("a number", _is_number),
    tuple[float, ...]: ("numbers in parentheses", _are_numbers),
    float | tuple[float, ...]: ("a number or numbers in parentheses", lambda v: _is_number(v) or _are_numbers(v)),
}


def parse_one(text: str, field: str, names: Collection[str], forms: Collection[str]) -> specs.SpecItem:
    """Reads a spec string of one item; does not check its options.

    Args:
      text: The spec string.
      field: The config field that has it, for the message.
      names: The valid names of the item.
      forms: The valid forms, for the message.

    Raises:
      UsageError: the text cannot be read, is no item or several, or has an unknown name.
    """
    try:
        [item] = specs.parse(text)
    except ValueError as error:  # it cannot be read, or is none or several
        raise unknown(field, text, forms) from error
    if item.name not in names:
        raise unknown(field, text, forms)
    return item


def check_names(item: specs.SpecItem, maker: Callable) -> None:
    """Raises UsageError for an option that is no parameter of `maker`, or is `texts`, which tokenisers learn from."""
    valid = inspect.signature(maker).parameters.keys() - {"texts"}
    for option in item.options:
        check_known(f"option of {item.name}", option, valid)


def check(item: specs.SpecItem, maker: Callable) -> None:
    """Raises UsageError unless the options are those that `maker` takes, of their types, and none is missing."""
    check_names(item, maker)
    hints = typing.get_type_hints(maker)
    for option, value in item.options.items():
        kind, fits = _KINDS[hints[option]]
        if not fits(value):
            raise UsageError(f"{item.name}({option}={value!r}) must be {kind}.")
    for option, parameter in inspect.signature(maker).parameters.items():
        if parameter.default is parameter.empty and option not in (*item.options, "texts"):
            raise UsageError(f"{item.name} needs {option}: write {item.name}({option}=...).")
