"""Spec strings: `name` or `name(option=value)`, joined by `|`, for attention mechanisms and image transforms.

    spec  =  [items "|"] "cycle(" items ")"  or  items       the last item repeats, or the cycle does
    items =  item {"|" item}
    item  =  name ["(" option "=" literal {"," option "=" literal} ")"] ["*" count]

A name may be that of a file's object, such as `my.py:Mine`. All else is Python, and nothing of it is evaluated.
"""

import ast
import dataclasses
import inspect
import itertools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from attention.errors import UsageError, brief, check_known, unknown
from attention.types import valid_of

T = TypeVar("T")
_OF_FILE = re.compile(
    r"(?<![^|(\s=,])[^\s|()'\",=*]+\.py:[A-Za-z_]\w*"
)  # `my.py:Mine`, a name that Python could not parse
LENGTH = 20_000  # characters of a spec string or of a value; Python's own parser has no limit but the stack
NUMBERS = 2**63  # whole numbers are smaller, by their sizes
ITEMS = 1000  # the most in one string, counts included
CYCLE = "cycle"


@dataclass(frozen=True)
class SpecItem:
    """One item of a spec string: a name with literal keyword options."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        return f"{self.name}({options})" if options else self.name


@dataclass(frozen=True)
class Pattern:
    """What a spec string gives to layers: items, of which the last `cycle` repeat; 0 repeats the last alone."""

    items: tuple[SpecItem, ...]
    cycle: int = 0

    def __str__(self) -> str:
        first = len(self.items) - self.cycle
        items, cycle = map(str, self.items[:first]), "|".join(map(str, self.items[first:]))
        return "|".join([*items, *([f"{CYCLE}({cycle})"] if cycle else [])])


def pattern(text: str) -> Pattern:
    """Reads `a*2|b(x=1)` as the items a, a and b, and `a|cycle(b|c)` as a, b and c, whose last 2 repeat.

    It evaluates nothing: only names, such as `a` or `my.py:Mine`, calls with literal keyword values, and counts of
    these are valid. An empty string has no items.

    Raises:
      UsageError: the text is no spec string.
    """
    numbers = itertools.count()
    named = {f"_{number}": name for number, name in enumerate(of_files(text))}
    items, cycle = _read(text, _call, _OF_FILE.sub(lambda _: f"_{next(numbers)}", text))
    return Pattern(tuple(dataclasses.replace(item, name=named.get(item.name, item.name)) for item in items), cycle)


def of_files(text: str) -> list[str]:
    """Finds the names of files, such as `my.py:Mine`, in a spec string or in a word with spec strings."""
    return _OF_FILE.findall(text)


def parse(text: str) -> tuple[SpecItem, ...]:
    """Reads the items of a spec string without layers, so that nothing can repeat to the last; see `pattern`.

    Raises:
      UsageError: the text is no spec string, or has a cycle.
    """
    read = pattern(text)
    if read.cycle:
        raise UsageError(f"{text!r} has a cycle, but no layers to repeat in; write a count, such as 'first*3|second'.")
    return read.items


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
    except SyntaxError as error:
        raise ValueError(error.msg) from error
    except (MemoryError, RecursionError) as error:
        raise ValueError("it is nested too deeply") from error


def _value(node: ast.expr) -> Any:
    try:
        value = ast.literal_eval(node)
        numbers = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
    except (TypeError, ValueError, MemoryError, RecursionError) as error:  # the first for sets of lists
        raise ValueError("a value is a number, a word in quotes, or a tuple or list of values") from error
    if any(isinstance(number, int) and number >= NUMBERS for number in numbers):
        raise ValueError(f"it has a number of at least {NUMBERS}")
    return value


def one_each(text: str, build: Callable[[SpecItem], T], of: str, count: int) -> tuple[T, ...]:
    """Builds the items of a spec string, one for each of `count` layers, or of what else `of` names.

    The last item repeats, or the cycle does.

    Raises:
      UsageError: there is no item, there are more than `count`, or a cycle does not end with the last layer.
    """
    read = pattern(text)
    return _spread(text, [build(item) for item in read.items], read.cycle, of, count)


def texts(text: str, of: str, count: int) -> tuple[str, ...]:
    """Gives each layer its item's text, whose options need no names, such as `chunked(128, 256)`; see `one_each`."""
    return _spread(text, *_read(text, ast.unparse), of, count)


def _spread(text: str, items: Sequence[T], cycle: int, of: str, count: int) -> tuple[T, ...]:
    if not items:
        raise UsageError(f"A name is needed for each {of}; give one.")
    before, more = len(items) - (cycle or 1), count - len(items)
    if cycle and (more < 0 or more % cycle):
        whole = max(count - before, 0) // cycle
        fits = " or ".join(str(before + times * cycle) for times in (whole, whole + 1) if times)
        raise UsageError(f"The cycle of {text!r} has {cycle} {of}s and does not fit {count} {of}s; {fits} would do.")
    if more < 0:
        raise UsageError(f"{text!r} names {len(items)} {of}s, but the model has {count}; name at most {count}.")
    repeated = itertools.islice(itertools.cycle(items[before:]), count - before)
    return (*items[:before], *repeated)


def _read(text: str, read: Callable[[ast.expr], T], plain: str = "") -> tuple[tuple[T, ...], int]:
    """Reads the items, and how many of the last are a cycle, of a text or of what stands for it."""
    if not text.strip():
        return (), 0
    try:
        nodes, cycled = _alternatives(_tree(plain or text)), []
        if _is_cycle(nodes[-1]):
            cycled = _alternatives(nodes.pop().args[0])
        first, repeated = ([item for node in part for item in _counted(node, read)] for part in (nodes, cycled))
        if len(first) + len(repeated) > ITEMS:
            raise ValueError(f"it has more than {ITEMS} items")
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"Cannot read {text!r} ({brief(error)}); write names with literal options and counts, joined by '|': "
            "'first(option=2)*3|second', and last perhaps what repeats, such as 'cycle(first*3|second)'."
        ) from error
    return (*first, *repeated), len(repeated)


def _is_cycle(node: ast.expr) -> bool:
    called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == CYCLE
    return called and len(node.args) == 1 and not node.keywords


def _counted(node: ast.expr, read: Callable[[ast.expr], T]) -> list[T]:
    count = 1
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        node, count = node.left, _value(node.right)
    if type(count) is not int or not 1 <= count <= ITEMS:
        raise ValueError(f"a count is a whole number from 1 to {ITEMS}")
    return [read(node)] * count


def _alternatives(node: ast.expr) -> list[ast.expr]:
    nodes: list[ast.expr] = []
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        nodes.insert(0, node.right)
        node = node.left
    return [node, *nodes]


def _call(node: ast.expr) -> SpecItem:
    if CYCLE in (getattr(node, "id", ""), getattr(getattr(node, "func", None), "id", "")):
        raise ValueError("a cycle stands last, has no options and no count, and holds no other")
    if isinstance(node, ast.Name):
        return SpecItem(node.id)
    named = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    names = [keyword.arg for keyword in node.keywords] if named else []
    if named and not node.args and all(names) and len(set(names)) == len(names):
        return SpecItem(node.func.id, {k.arg: _option(k.arg, k.value) for k in node.keywords})
    raise ValueError("each item is a name, or a name with options in brackets, such as 'name(option=1)'")


def _option(name: str, node: ast.expr) -> Any:
    if isinstance(node, ast.Name):
        meant = node.id.title() if node.id.lower() in ("true", "false", "none") else repr(node.id)
        raise ValueError(f"{node.id} is no value; perhaps {name}={meant}")
    return _value(node)
