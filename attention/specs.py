"""Spec strings: `name` or `name(option=value)`, joined by `|`, for attention mechanisms and image transforms."""

import ast
import dataclasses
import inspect
import itertools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from attention.errors import UsageError, check_known, unknown
from attention.types import valid_of

T = TypeVar("T")
_OF_FILE = re.compile(
    r"(?<![^|(\s=,])[^\s|()'\",=*]+\.py:[A-Za-z_]\w*"
)  # `my.py:Mine`, a name that Python could not parse
LENGTH = 20_000  # characters of a spec string or of a value; Python's own parser has no limit but the stack
NUMBERS = 2**63  # whole numbers are smaller, by their sizes


@dataclass(frozen=True)
class SpecItem:
    """One item of a spec string: a name with literal keyword options."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        return f"{self.name}({options})" if options else self.name


def parse(text: str) -> tuple[SpecItem, ...]:
    """Reads `a|b(x=1)` as `(SpecItem('a', {}), SpecItem('b', {'x': 1}))`; an empty string gives ().

    It evaluates nothing: only names, such as `a` or `my.py:Mine`, and calls with literal keyword values are valid.

    Raises:
      UsageError: the text is no spec string.
    """
    if not text.strip():
        return ()
    numbers = itertools.count()
    named = {f"_{number}": name for number, name in enumerate(of_files(text))}
    plain = _OF_FILE.sub(lambda _: f"_{next(numbers)}", text)
    try:
        calls = [_call(node) for node in _alternatives(_tree(plain))]
        return tuple(dataclasses.replace(call, name=named.get(call.name, call.name)) for call in calls)
    except ValueError as error:
        raise UsageError(
            f"Cannot read {text!r}: write names with literal options, joined by '|', such as 'first(option=2)|second'."
        ) from error


def of_files(text: str) -> list[str]:
    """Finds the names of files, such as `my.py:Mine`, in a spec string or in a word with spec strings."""
    return _OF_FILE.findall(text)


def items(text: str) -> list[str]:
    """Splits a spec string into its items' texts, such as `['a', 'b(x=1)']`; raises as `parse` does."""
    return [str(item) for item in parse(text)]


def joined(items: Sequence[str]) -> str:
    """Joins an item for each layer to a spec string, whose last item repeats."""
    end = len(items)
    while end > 1 and items[end - 1] == items[end - 2]:
        end -= 1
    return "|".join(items[:end])


def make(text: str, makers: Mapping[str, Callable[..., T]], what: str) -> T:
    """Makes the object that a string names, such as `sink(learned=True)`: a dataclass with its options.

    Args:
      text: A spec string of one item.
      makers: The valid names and their dataclasses.
      what: The singular noun for it, such as `normaliser`.

    Raises:
      UsageError: there are several items, a name or an option is unknown, or the object refuses a value.
    """
    items = parse(text)
    if len(items) != 1:
        raise UsageError(f"There is one {what}, not {text!r}; name one of {', '.join(makers)}.")
    return build(items[0], makers, what)


def build(item: SpecItem, makers: Mapping[str, Callable[..., T]], what: str) -> T:
    """Makes the object that an item names; see `make`."""
    check_known(what, item.name, makers)
    check_options(item, makers[item.name])
    return makers[item.name](**item.options)


def check_options(item: SpecItem, maker: Callable, given: Collection[str] = ()) -> None:
    """Raises UsageError unless options are what a class or function takes, apart from what it is `given` elsewhere."""
    parameters = {name: p for name, p in inspect.signature(maker).parameters.items() if name not in given}
    for option, value in item.options.items():
        check_known(f"option of {item.name}", option, parameters)
        valid_of(maker)[option].check(value, f"The option {option} of {item.name}")
    for option, parameter in parameters.items():
        if parameter.default is parameter.empty and option not in item.options:
            raise UsageError(f"{item.name} needs {option}: write {item.name}({option}=...).")


def parse_one(text: str, field: str, names: Collection[str], forms: Collection[str]) -> SpecItem:
    """Reads the one item of a config field's spec string, not its options; an error shows the valid `forms`."""
    try:
        [item] = parse(text)
    except ValueError as error:  # it cannot be read, or is none or several
        raise unknown(field, text, forms) from error
    if item.name not in names:
        raise unknown(field, text, forms)
    return item


def literal(text: str) -> Any:
    """Reads a text as a Python value, such as `(1, 'a')`.

    Raises:
      ValueError: it is none, or it is longer, deeper or larger than any value of a config.
    """
    return _value(_tree(text))


def _tree(text: str) -> ast.expr:
    if len(text) > LENGTH:
        raise ValueError(f"it has {len(text)} characters, and at most {LENGTH} are read")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, MemoryError, RecursionError) as error:  # the latter two where it is nested too deeply
        raise ValueError(f"it is no literal ({error})") from error


def _value(node: ast.expr) -> Any:
    try:
        value = ast.literal_eval(node)
        numbers = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
    except (TypeError, MemoryError, RecursionError) as error:  # the first for sets of lists
        raise ValueError(f"it is no literal ({error})") from error
    if any(isinstance(number, int) and number >= NUMBERS for number in numbers):
        raise ValueError(f"it has a number of at least {NUMBERS}")
    return value


def one_each(text: str, build: Callable[[SpecItem], T], of: str, count: int) -> tuple[T, ...]:
    """Builds the items of a spec string, and gives them to layers or stages as `spread` does.

    Raises:
      UsageError: there is no item, or there are more than `count`.
    """
    items = [build(call) for call in parse(text)]
    if not items:
        raise UsageError(f"A name is needed for each {of}; give one.")
    return spread(items, text, of, count)


def spread(items: Sequence[T], text: str, of: str, count: int) -> tuple[T, ...]:
    """Gives each of `count` layers, or of what else `of` names, an item; the last item repeats.

    Raises:
      UsageError: the text names more items than `count`.
    """
    if len(items) > count:
        raise UsageError(f"{text!r} names {len(items)} {of}s, but the model has {count}; name at most {count}.")
    return tuple(items[min(index, len(items) - 1)] for index in range(count))


def _alternatives(node: ast.expr) -> list[ast.expr]:
    nodes: list[ast.expr] = []
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        nodes.insert(0, node.right)
        node = node.left
    return [node, *nodes]


def _call(node: ast.expr) -> SpecItem:
    if isinstance(node, ast.Name):
        return SpecItem(node.id)
    named = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    names = [keyword.arg for keyword in node.keywords] if named else []
    if named and not node.args and all(names) and len(set(names)) == len(names):
        return SpecItem(node.func.id, {k.arg: _value(k.value) for k in node.keywords})
    raise ValueError("neither a name nor a call with keyword options, each given once")
