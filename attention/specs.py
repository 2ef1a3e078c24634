"""Spec strings: `name` or `name(option=value)`, joined by `|`, for attention mechanisms and image transforms."""

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from attention.errors import UsageError, unknown

T = TypeVar("T")


@dataclass(frozen=True)
class SpecItem:
    """One item of a spec string: a name with literal keyword options."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)


def parse(text: str) -> tuple[SpecItem, ...]:
    """Reads `a|b(x=1)` as `(SpecItem('a', {}), SpecItem('b', {'x': 1}))`; an empty string gives ().

    It evaluates nothing: only names and calls with literal keyword values are valid.

    Args:
      text: The spec string.

    Returns:
      The items from left to right.

    Raises:
      UsageError: the text is no spec string.
    """
    if not text.strip():
        return ()
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        return tuple(_call(node) for node in _alternatives(tree))
    except (SyntaxError, ValueError) as error:
        raise UsageError(
            f"Cannot read {text!r}: write names with literal options, joined by '|', such as 'first(option=2)|second'."
        ) from error


def make(text: str, classes: Mapping[str, type[T]], what: str) -> T:
    """Returns the object that a string names, such as `sink(learned=True)`: a dataclass with its options.

    Args:
      text: A spec string of one item.
      classes: The valid names and their dataclasses.
      what: The singular noun for it, such as `normaliser`.

    Raises:
      UsageError: there are several items, a name or an option is unknown, or the object refuses a value.
    """
    items = parse(text)
    if len(items) != 1:
        raise UsageError(f"There is one {what}, not {text!r}; name one of {', '.join(classes)}.")
    return build(items[0], classes, what)


def build(item: SpecItem, classes: Mapping[str, type[T]], what: str) -> T:
    """Returns the object that an item names; see `make`."""
    if item.name not in classes:
        raise unknown(what, item.name, classes)
    valid = [option.name for option in fields(classes[item.name])]
    for option in item.options:
        if option not in valid:
            raise unknown(f"option of the {what} {item.name}", option, valid)
    return classes[item.name](**item.options)


def one_each(text: str, build: Callable[[SpecItem], T], of: str, count: int) -> tuple[T, ...]:
    """Returns what `build` makes for each of `count` layers or stages; the last item of the spec string repeats.

    Args:
      text: The spec string.
      build: Returns the object for an item, or raises a UsageError.
      of: The singular noun for what is counted, such as `layer`.
      count: Number of layers or stages.

    Raises:
      UsageError: there is no item, or there are more than `count`.
    """
    items = [build(call) for call in parse(text)]
    if not items:
        raise UsageError(f"A name is needed for each {of}; give one.")
    return spread(items, text, of, count)


def spread(items: Sequence[T], text: str, of: str, count: int) -> tuple[T, ...]:
    """Returns one item for each of `count` layers or stages; the last item repeats.

    Args:
      items: At least one item.
      text: The spec string that gave the items.
      of: The singular noun for what is counted, such as `layer`.
      count: Number of layers or stages.

    Raises:
      UsageError: there are more items than `count`.
    """
    if len(items) > count:
        raise UsageError(f"{text!r} names {len(items)} {of}s, but the model has {count}; name at most {count}.")
    return tuple(items[min(index, len(items) - 1)] for index in range(count))


def _alternatives(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return [*_alternatives(node.left), node.right]
    return [node]


def _call(node: ast.expr) -> SpecItem:
    if isinstance(node, ast.Name):
        return SpecItem(node.id)
    named = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    names = [keyword.arg for keyword in node.keywords] if named else []
    if named and not node.args and all(names) and len(set(names)) == len(names):
        return SpecItem(node.func.id, {k.arg: ast.literal_eval(k.value) for k in node.keywords})
    raise ValueError("neither a name nor a call with keyword options, each given once")
