"""The one vocabulary of what a value may be: annotated types, which give its check, its errors and its documents.

`Annotated[int, at_least(1), Sentinel(0, "off")]` is a type with rules. Fields of configs, options in spec strings,
declarations of studies and records on a disk are all checked against such types.
"""

import dataclasses
import functools
import inspect
import math
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, NotRequired, Required, TypeVar, get_args, get_origin

from attention.errors import UsageError, check_known, unknown

T = TypeVar("T")
Number = float | int
SIZE = 2**31  # whole numbers without an upper bound are below: JAX counts with 32 bits
LARGEST = 3e38  # of float32
CLOSEST = 0.999999  # to 1: float32 may round more to 1
KINDS = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a string",
    type(None): "None",
    Mapping: "a section of fields",
}
SEVERAL = {int: "whole numbers", float: "numbers", str: "strings"}


@dataclasses.dataclass(frozen=True)
class Rule:
    """A rule of a type.

    Attributes:
      words: The rule as it reads after "must be".
      holds: Whether a value keeps it; a value does not if this raises a ValueError or an ArithmeticError.
      caps: Whether it is an upper bound.
    """

    words: str
    holds: Callable[[Any], bool]
    caps: bool = False

    def keeps(self, value: Any) -> bool:
        """Tells whether a value keeps it."""
        try:
            return bool(self.holds(value))
        except (ValueError, ArithmeticError):
            return False


@dataclasses.dataclass(frozen=True)
class Note:
    """Base of what a type says beside its rules."""

    value: Any


class Names(Note):
    """The only valid values."""


class Multiple(Note):
    """The field of the same dataclass that divides the value."""


class Unit(Note):
    """The unit of the value."""


class Example(Note):
    """An example of a value."""


class Reader(Note):
    """A parser, called with a value and its path, which raises a UsageError where the value is invalid."""


@dataclasses.dataclass(frozen=True)
class Sentinel(Note):
    """A value to which no rule applies, and what it means."""

    meaning: str


def at_least(bound: Number) -> Rule:
    """Sets the least value."""
    return Rule(f"at least {_number(bound)}", lambda value: value >= bound)


def above(bound: Number) -> Rule:
    """Sets an exclusive lower bound."""
    return Rule(f"above {_number(bound)}", lambda value: value > bound)


def at_most(bound: Number) -> Rule:
    """Sets the largest value."""
    return Rule(f"at most {_number(bound)}", lambda value: value <= bound, caps=True)


def below(bound: Number) -> Rule:
    """Sets an exclusive upper bound."""
    return Rule(f"below {_number(bound)}", lambda value: value < bound, caps=True)


def _number(bound: Number) -> str:
    power = math.log2(bound) if bound >= SIZE else 0.5
    return f"2**{power:g}" if power.is_integer() else f"{bound:g}"


Count = Annotated[int, at_least(1)]
Size = Annotated[int, at_least(0)]
Seed = Annotated[Size, below(2**32)]
Positive = Annotated[Number, above(0)]
NotNegative = Annotated[Number, at_least(0)]
Fraction = Annotated[Number, above(0), below(1)]
Share = Annotated[Number, at_least(0), at_most(1)]
Rate = Annotated[Number, at_least(0), at_most(0.999)]  # of dropout, which divides by 1 - rate
Decay = Annotated[Number, at_least(0), at_most(CLOSEST)]  # of averages
filled = Rule("filled in", bool)


def compiled(pattern: str, path: str) -> re.Pattern:
    """Compiles a regular expression; raises a UsageError, which names it by its path, if it is none."""
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise UsageError(f"{path} must be a regular expression, but {pattern!r} is none ({error}).") from error


Pattern = Annotated[str, Reader(compiled)]


@dataclasses.dataclass(frozen=True)
class Valid:
    """A type taken apart: what its values are of, and the rules that they keep."""

    kind: Any
    rules: tuple[Any, ...] = ()

    @classmethod
    def of(cls, hint: Any) -> "Valid":
        """Takes a type apart."""
        kind, rules = (hint.__origin__, hint.__metadata__) if get_origin(hint) is Annotated else (hint, ())
        return cls(float if kind == Number else kind, rules)

    def each(self, kind: type[T]) -> list[T]:
        """Gives the rules of a kind."""
        return [rule for rule in self.rules if isinstance(rule, kind)]

    def note(self, kind: type[Note], default: Any = "") -> Any:
        """Gives the first note of a kind."""
        return next((rule.value for rule in self.each(kind)), default)

    @property
    def bounds(self) -> str:
        """The rules in words, such as `at least 1 and at most 8`."""
        return " and ".join(rule.words for rule in self.each(Rule))

    @property
    def range(self) -> str:
        """The rules and the values beside them in words, such as `at least 1, or 0 (off)`; '' without any."""
        beside = [f"{shown(rule.value)} ({rule.meaning})" for rule in self.each(Sentinel)]
        return ", or ".join(filter(None, [self.bounds, *beside]))

    @property
    def words(self) -> str:
        """What values are of in words, such as `a whole number or None`."""
        kind, parts = get_origin(self.kind) or self.kind, [Valid.of(part) for part in get_args(self.kind)]
        if kind in (typing.Union, types.UnionType):
            whole = float not in get_args(self.kind)  # else whole numbers are numbers too
            words = " or ".join(part.words for part in parts if whole or part.kind is not int)
        elif parts and kind is not dict:
            several = SEVERAL.get(parts[0].kind, "values")
            words = f"{several} in parentheses" if kind is tuple else f"a list of {several}"
            words += f", each {parts[0].bounds}" if parts[0].bounds else ""
        else:
            name = getattr(kind, "__name__", str(kind))
            words = KINDS.get(kind, f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}")
        return " such as ".join([words, *(repr(rule.value) for rule in self.each(Example))])

    def fault(self, value: Any) -> str:
        """Says in words what a value must be where it is not; '' where it is."""
        if not self._is_kind(value):
            return self.words
        if self._is_sentinel(value):
            return ""
        if isinstance(value, float | int) and not abs(value) <= LARGEST:
            return "finite"
        if self.kind is int and not abs(value) < SIZE and not any(rule.caps for rule in self.each(Rule)):
            return f"below 2**31 = {SIZE}" if value > 0 else f"above -2**31 = {-SIZE}"
        if (names := self.note(Names)) and value not in names:
            return f"one of {', '.join(names)}"
        return "" if all(rule.keeps(value) for rule in self.each(Rule)) else self.range

    def check(self, value: Any, path: str) -> None:
        """Raises a UsageError, which names the value by its path, unless it is valid."""
        must, names = self.fault(value), self.note(Names)
        if must and names and isinstance(value, str):
            raise unknown(path.removeprefix("The "), value, names)
        if must:
            raise UsageError(f"{path} must be {must}, but it is {shown(value)}.")
        for rule in self.each(Reader) if not self._is_sentinel(value) else ():
            rule.value(value, path)

    def _is_sentinel(self, value: Any) -> bool:
        return any(value == rule.value for rule in self.each(Sentinel))

    def _is_kind(self, value: Any) -> bool:
        kind, parts = get_origin(self.kind) or self.kind, get_args(self.kind)
        if kind in (typing.Union, types.UnionType):
            return any(fits(part, value) for part in parts)
        if typing.is_typeddict(kind):
            return isinstance(value, dict) and _has_entries(kind, value)
        if kind in (int, float):
            return isinstance(value, (int, kind)) and not isinstance(value, bool)
        if kind is Any or not isinstance(kind, type):
            return True
        if not isinstance(value, kind) or (isinstance(value, str) and kind is Sequence):
            return False
        if kind is dict and parts:
            return all(fits(parts[0], name) and fits(parts[1], inner) for name, inner in value.items())
        if kind is tuple and parts and parts[-1] is not ...:
            return len(parts) == len(value) and all(map(fits, parts, value))
        return kind not in (tuple, list, Sequence) or not parts or all(fits(parts[0], inner) for inner in value)


def _has_entries(kind: Any, value: dict) -> bool:
    hints = typing.get_type_hints(kind, include_extras=True).items()
    hints = {name: get_args(hint)[0] if get_origin(hint) in (Required, NotRequired) else hint for name, hint in hints}
    known = value.keys() & hints.keys()
    return known >= kind.__required_keys__ and all(fits(hints[name], value[name]) for name in known)


def fits(hint: Any, value: Any) -> bool:
    """Tells whether a value is of a type and keeps its rules; no reader is asked."""
    return not Valid.of(hint).fault(value)


def check(hint: Any, value: Any, path: str) -> None:
    """Raises a UsageError, which names the value by its path, unless it is of a type and keeps its rules."""
    Valid.of(hint).check(value, path)


def shown(value: Any) -> str:
    """Writes a value as Python does, as far as possible."""
    try:
        return repr(value)
    except (RecursionError, ValueError):  # it is nested too deeply, or has too many digits
        return f"{type(value).__name__}, too large to write"


@functools.cache
def valid_of(maker: Callable) -> dict[str, Valid]:
    """Finds what each field of a dataclass, or argument of a function, may be.

    A field whose type a subclass gives without rules keeps those of its base.
    """
    found: dict[str, Valid] = {}
    for part in reversed(maker.__mro__) if isinstance(maker, type) else [maker]:
        for name, hint in inspect.get_annotations(part, eval_str=True).items():
            valid = Valid.of(hint)
            if valid.rules or name not in found or found[name].kind != valid.kind:
                found[name] = valid
    return {name: found[name] for name in inspect.signature(maker).parameters if name in found}


class Checked:
    """Base of dataclasses whose fields are checked when they are made."""

    PATH: ClassVar[str] = "The option "  # before the names of fields in errors

    def __post_init__(self):
        valids = valid_of(type(self))
        for name, valid in valids.items():
            valid.check(getattr(self, name), self.PATH + name)
        for name, divisor in {name: valid.note(Multiple) for name, valid in valids.items()}.items():
            if divisor and (value := getattr(self, name)) % (number := getattr(self, divisor)):
                said = f"{self.PATH}{divisor}={number} does not divide {self.PATH}{name}={value}"
                raise UsageError(f"{said}; choose a divisor of {value}.")


def build(
    cls: type[T],
    values: Any,
    path: str = "",
    kinds: Mapping[str, type] = types.MappingProxyType({}),
    whole: bool = False,
) -> T:
    """Builds a dataclass from plain nested values, such as those of a config or of a JSON file.

    Args:
      values: A mapping from the names of its fields.
      path: What calls it in messages, such as `model`.
      kinds: The dataclasses of fields whose type it does not declare.
      whole: Whether fields that have defaults are needed too.
    """
    valids = valid_of(cls) | {name: Valid(kind) for name, kind in kinds.items()}
    if not isinstance(values, Mapping):
        raise UsageError(f"{path or cls.__name__} must have the fields {', '.join(valids)}, but it is {shown(values)}.")
    places = {name: f"{path}.{name}".removeprefix(".") for name in valids}
    for name in values:
        check_known("field", f"{path}.{name}".removeprefix("."), places.values())
    for field in dataclasses.fields(cls):
        left_out = field.default is field.default_factory is dataclasses.MISSING
        if field.name not in values and (whole or left_out):
            raise UsageError(f"The field {places[field.name]} is missing; give it.")
    return cls(**{name: _built(valids[name], value, places[name], whole) for name, value in values.items()})


def _built(valid: Valid, value: Any, path: str, whole: bool) -> Any:
    if dataclasses.is_dataclass(valid.kind):
        return build(valid.kind, value, path, whole=whole)
    (inner, *_) = get_args(valid.kind) or [None]
    if isinstance(value, list) and dataclasses.is_dataclass(inner):
        value = [build(inner, item, f"{path}[{index}]", whole=whole) for index, item in enumerate(value)]
    valid.check(value, path)
    return float(value) if valid.kind is float else value
