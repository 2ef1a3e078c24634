"""A declared field is inherited and looked up as it was declared; tests/attention/test_types.py has its checks."""

import dataclasses
from typing import Annotated, ClassVar

import pytest

from attention import UsageError
from attention.types import Checked, Count, Multiple, Names, Positive, Sentinel, below
from models import fields
from models.fields import declared, field


@dataclasses.dataclass(frozen=True)
class Base(Checked):
    width: Annotated[Count, Multiple("parts")] = field(8, "Its width.")
    parts: Count = field(2, "Its parts.")
    rate: Annotated[Positive, below(1), Sentinel(0, "none")] = field(0.5, "Its rate.", role=fields.HARDWARE)
    colour: Annotated[str, Names(("red", "blue"))] = field("red", "Its colour.")

    PATH: ClassVar[str] = "thing."


@dataclasses.dataclass(frozen=True)
class Derived(Base):
    width: int = 4
    colour: Annotated[str, Names(("green",))] = field("green")
    more: int = field(1, "More.")


def test_a_subclass_inherits_what_it_does_not_declare():
    assert list(declared(Derived)) == ["width", "parts", "rate", "colour", "more"]
    assert declared(Derived)["width"] == declared(Base)["width"]
    assert declared(Derived)["colour"].help == "Its colour."
    assert declared(Derived)["colour"].valid.note(Names) == ("green",)
    assert declared(Base)["colour"].valid.note(Names) == ("red", "blue")
    with pytest.raises(UsageError, match=r"thing\.width must be at least 1, but it is 0\."):
        Derived(width=0)


def test_what_is_no_setting_may_change():
    assert declared(Base)["rate"].changeable
    assert not declared(Base)["rate"].tells_apart
    assert not declared(Base)["width"].changeable
    assert declared(Base)["width"].tells_apart
