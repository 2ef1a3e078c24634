"""Declarations of the fields of configs, from which checks, documents and the rules for changes derive."""

import dataclasses
import functools
import operator
from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar

from attention.errors import UsageError, unknown

SETTING = "setting"  # what is learned, and how
BOOKKEEPING = "bookkeeping"  # where things are, and how often something is written
HARDWARE = "hardware"  # what is split over which devices and processes
LAYERS = 1000  # the most in one stack: each is traced and compiled, and its spec string may be another
SIZE = 2**31  # whole numbers are below, for which no field says more: JAX counts with 32 bits
BOUNDS = {
    "least": ("at least", operator.ge),
    "above": ("above", operator.gt),
    "most": ("at most", operator.le),
    "below": ("below", operator.lt),
}


@dataclasses.dataclass(frozen=True)
class FieldDeclaration:
    """The declaration of a dataclass's field, without its type and default.

    Attributes:
      help: The meaning of the field.
      least: The least value.
      above: An exclusive lower bound.
      most: The largest value.
      below: An exclusive upper bound.
      special: Values outside the range, and what they mean.
      choices: The only valid values.
      multiple_of: The field of the same section that divides it.
      unit: The unit of the value.
      reads: Parses a value, given with its path, and raises a UsageError if it is invalid.
      role: SETTING, BOOKKEEPING or HARDWARE.
      may_change: Whether a run may continue with another value although the field is a setting.
      size_of: Fields of `data` whose size it states. The data are checked against it, so it may change.
      sweep: The flag of a sweep that decides it; such a field does not tell settings apart.
      matched: What a sweep can make equal between its settings by choosing this field.
    """

    help: str = ""
    least: int | float | None = None
    above: int | float | None = None
    most: int | float | None = None
    below: int | float | None = None
    special: Mapping[Any, str] = dataclasses.field(default_factory=dict)
    choices: Collection[str] = ()
    multiple_of: str = ""
    unit: str = ""
    reads: Callable[[Any, str], Any] | None = None
    role: str = SETTING
    may_change: bool = False
    size_of: tuple[str, ...] = ()
    sweep: str = ""
    matched: str = ""

    @property
    def changeable(self) -> bool:
        """Returns whether a run may be continued with another value."""
        return self.may_change or self.role != SETTING or bool(self.size_of)

    @property
    def tells_apart(self) -> bool:
        """Returns whether runs with different values have different settings."""
        return self.role == SETTING and not self.sweep

    @property
    def range(self) -> str:
        """Returns the bounds in words, such as `at least 1, or 0 (off)`; '' without any."""
        bounds = " and ".join(f"{words} {bound:g}" for words, _, bound in self._bounds())
        return ", or ".join(filter(None, [bounds, *(f"{value!r} ({text})" for value, text in self.special.items())]))

    def check(self, path: str, value: Any) -> None:
        """Raises a UsageError unless the value is valid."""
        if value in self.special:
            return
        if self.reads:
            self.reads(value, path)
        if self.choices and value not in self.choices:
            raise unknown(path, value, self.choices)
        if not all(holds(value, bound) for _, holds, bound in self._bounds()):
            raise UsageError(f"{path} must be {self.range}, but it is {value}.")
        if type(value) is int and self.most is None and not -SIZE < value < SIZE and not self.sweep:
            raise UsageError(f"{path} must be below 2**31 = {SIZE}, but it is {value}.")

    def _bounds(self) -> list[tuple[str, Callable[[Any, Any], bool], int | float]]:
        return [(*BOUNDS[name], getattr(self, name)) for name in BOUNDS if getattr(self, name) is not None]


def field(default: Any, help: str = "", **said: Any) -> Any:
    """Returns a dataclass's field with a declaration.

    A subclass may give another default as a plain value, or declare again what differs from its base.

    Args:
      default: The default value.
      help: The meaning of the field.
      **said: Other attributes of `FieldDeclaration`.
    """
    return dataclasses.field(default=default, metadata=said | ({"help": help} if help else {}))


@functools.cache
def declared(cls: type) -> dict[str, FieldDeclaration]:
    """Returns the declarations of a dataclass's fields by name; a subclass inherits what it does not declare."""
    said: dict[str, dict[str, Any]] = {field.name: {} for field in dataclasses.fields(cls)}
    for base in filter(dataclasses.is_dataclass, reversed(cls.__mro__)):
        for field in dataclasses.fields(base):
            said[field.name] |= field.metadata
    return {name: FieldDeclaration(**arguments) for name, arguments in said.items()}


class Declared:
    """Base of the dataclasses of configs: their fields are checked when they are created."""

    PATH: ClassVar[str] = ""  # of the section, before the names of its fields

    def __post_init__(self):
        check(self)


def check(config: Declared) -> None:
    """Raises a UsageError, which names the field, unless every field is as it is declared."""
    declarations = declared(type(config))
    for name, declaration in declarations.items():
        declaration.check(config.PATH + name, getattr(config, name))
    divisors = {name: declaration.multiple_of for name, declaration in declarations.items() if declaration.multiple_of}
    for name, divisor in divisors.items():
        number, value = getattr(config, divisor), getattr(config, name)
        if value % number:
            said = f"{config.PATH}{divisor}={number} does not divide {config.PATH}{name}={value}"
            raise UsageError(f"{said}; choose a divisor of {value}.")
