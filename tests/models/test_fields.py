"""A declared field is checked, inherited and looked up as it was declared."""

import dataclasses
from typing import ClassVar

import pytest

from attention import UsageError
from models import fields
from models.fields import Declared, declared, field


def _even(value, path):
    if value % 2:
        raise UsageError(f"{path} must be even.")


@dataclasses.dataclass(frozen=True)
class Base(Declared):
    width: int = field(8, "Its width.", least=1, multiple_of="parts")
    parts: int = field(2, "Its parts.", least=1)
    rate: float = field(0.5, "Its rate.", above=0, below=1, special={0: "none"}, role=fields.HARDWARE)
    colour: str = field("red", "Its colour.", choices=("red", "blue"))
    even: int = field(2, "An even number.", reads=_even)

    PATH: ClassVar[str] = "thing."


@dataclasses.dataclass(frozen=True)
class Derived(Base):
    width: int = 4
    colour: str = field("green", choices=("green",))
    more: int = field(1, "More.")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 0}, r"thing.width must be at least 1, but it is 0\."),
        ({"parts": 0}, r"thing.parts must be at least 1, but it is 0\."),
        ({"parts": 3}, r"thing.parts=3 does not divide thing.width=8; choose a divisor of 8\."),
        ({"rate": 1.0}, r"thing.rate must be above 0 and below 1, or 0 \(none\), but it is 1.0\."),
        ({"rate": float("nan")}, r"thing.rate must be above 0"),
        ({"colour": "bleu"}, r"Unknown thing.colour 'bleu'. Did you mean 'blue'\? Valid: blue, red\."),
        ({"even": 3}, r"thing.even must be even\."),
    ],
)
def test_mistakes_are_one_sentence(change, message):
    with pytest.raises(UsageError, match=message):
        Base(**change)


def test_special_values_are_valid():
    assert Base(rate=0).rate == 0


def test_a_subclass_inherits_what_it_does_not_declare():
    assert list(declared(Derived)) == ["width", "parts", "rate", "colour", "even", "more"]
    assert declared(Derived)["width"] == declared(Base)["width"]
    assert declared(Derived)["colour"].help == "Its colour."
    assert declared(Derived)["colour"].choices == ("green",)
    assert declared(Base)["colour"].choices == ("red", "blue")
    with pytest.raises(UsageError, match=r"thing.width must be at least 1"):
        Derived(width=0)


def test_what_is_no_setting_may_change():
    assert declared(Base)["rate"].changeable
    assert not declared(Base)["rate"].tells_apart
    assert not declared(Base)["width"].changeable
    assert declared(Base)["width"].tells_apart
