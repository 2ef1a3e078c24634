"""Declarations of configs' fields, which documents and the rules for changes are made from.

A field's type says which values are valid; see `attention.types`.
"""

import dataclasses
import functools
from typing import Any

from attention.types import Valid, valid_of

SETTING = "setting"  # what is learned, and how
BOOKKEEPING = "bookkeeping"  # where things are, and how often something is written
HARDWARE = "hardware"  # what is split over which devices and processes
LAYERS = 1000  # the deepest stack: each layer is traced and compiled, and may have another mechanism


@dataclasses.dataclass(frozen=True)
class FieldDeclaration:
    """The declaration of a config's field, without its default.

    Attributes:
      valid: Which values are valid.
      help: The meaning of the field.
      role: SETTING, BOOKKEEPING or HARDWARE.
      may_change: Whether a run may continue with another value although the field is a setting.
      size_of: Fields of `data` whose size it states. The data are checked against it, so it may change.
      sweep: The flag of a sweep that decides it; such a field does not tell settings apart.
      matched: What a sweep can make equal between settings by choosing this field.
    """

    valid: Valid
    help: str = ""
    role: str = SETTING
    may_change: bool = False
    size_of: tuple[str, ...] = ()
    sweep: str = ""
    matched: str = ""

    @property
    def changeable(self) -> bool:
        """Whether a run may be continued with another value."""
        return self.may_change or self.role != SETTING or bool(self.size_of)

    @property
    def tells_apart(self) -> bool:
        """Whether runs with different values have different settings."""
        return self.role == SETTING and not self.sweep


def field(default: Any, help: str = "", **attributes: Any) -> Any:
    """Declares a dataclass's field.

    A subclass may give another default as a plain value, or declare again the attributes that differ from its base's.

    Args:
      **attributes: Other attributes of `FieldDeclaration`.
    """
    return dataclasses.field(default=default, metadata=attributes | ({"help": help} if help else {}))


@functools.cache
def declared(cls: type) -> dict[str, FieldDeclaration]:
    """Gathers the declarations of a dataclass's fields; a subclass inherits what it does not declare."""
    found: dict[str, dict[str, Any]] = {name: {"valid": valid} for name, valid in valid_of(cls).items()}
    for base in filter(dataclasses.is_dataclass, reversed(cls.__mro__)):
        for field in dataclasses.fields(base):
            found[field.name] |= field.metadata
    return {name: FieldDeclaration(**attributes) for name, attributes in found.items()}
