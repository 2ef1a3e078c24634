"""The vocabulary of types: which values are valid, and one sentence for each that is not."""

import dataclasses
import math
import re
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, NotRequired, TypedDict

import pytest

from attention import UsageError
from attention import types as t
from attention.specs import SpecItem, check_options, make

DEEP = ()
for _ in range(5000):
    DEEP = (DEEP,)


def _even(value, path):
    if value % 2:
        raise UsageError(f"{path} must be even.")


class Entry(TypedDict):
    numbers: dict[str, list[float | int | None]]
    note: NotRequired[str]


LIMITED = Annotated[int, t.at_least(1), t.at_most(8), t.Sentinel(0, "off"), t.Unit("tokens")]
COLOURS = Annotated[str, t.Names(("red", "blue")), t.Sentinel("", "none")]
EITHER = float | tuple[t.Positive, ...]
VALID = [
    (int, [-3, 0, 2**31 - 1]),
    (float, [1, 0.5, -1e30, 10**12]),
    (LIMITED, [0, 1, 8]),
    (t.Share, [0, 0.5, 1]),
    (Annotated[t.Size, t.below(2**32)], [2**32 - 1]),
    (COLOURS, ["red", ""]),
    (Annotated[int | None, t.at_least(1), t.Sentinel(None, "all")], [None, 1]),
    (EITHER, [-1.0, (), (0.5, 1)]),
    (list[str], [[], ["a"]]),
    (Annotated[int, t.Reader(_even)], [4]),
    (Any, [None, object()]),
    (Callable[[int], int], [abs]),
    (type[int], [bool]),
    (tuple[int, str], [(1, "a")]),
    (Entry, [{"numbers": {"a": [1, None, 0.5]}}, {"numbers": {}, "note": "a", "more": 1}]),
]
WRONG = [
    (int, 2.0, "must be a whole number, but it is 2.0"),
    (int, 2**31, "must be below 2**31 = 2147483648, but it is 2147483648"),
    (int, -(10**12), "must be above -2**31 = -2147483648, but it is -1000000000000"),
    (int, 10**5000, "but it is int, too large to write"),
    (float, False, "must be a number, but it is False"),
    (float, math.nan, "must be finite, but it is nan"),
    (float, 10**400, "must be finite"),
    (t.Positive, 0, "must be above 0, but it is 0"),
    (t.Rate, 0.99999999999, "must be at least 0 and at most 0.999, but it is 0.99999999999"),
    (LIMITED, 9, "must be at least 1 and at most 8, or 0 (off), but it is 9"),
    (Annotated[t.Size, t.below(2**32)], 2**32, "must be at least 0 and below 2**32, but it is 4294967296"),
    (Annotated[str, t.Example("sigmoid")], None, "must be a string such as 'sigmoid', but it is None"),
    (Annotated[str, t.filled], "", "must be filled in, but it is ''"),
    (Annotated[str, t.Rule("a share", lambda text: 1 / int(text) < 1)], "0", "must be a share, but it is '0'"),
    (COLOURS, "bleu", "Unknown a.b 'bleu'. Did you mean 'blue'? Valid: blue, red."),
    (
        Annotated[int | None, t.at_least(1), t.Sentinel(None, "all")],
        0,
        "must be at least 1, or None (all), but it is 0",
    ),
    (int | None, "x", "must be a whole number or None, but it is 'x'"),
    (tuple[t.Count, ...], (2, 0), "must be whole numbers in parentheses, each at least 1, but it is (2, 0)"),
    (EITHER, (0,), "must be a number or numbers in parentheses, each above 0, but it is (0,)"),
    (list[str], ["a", 1], "must be a list of strings, but it is ['a', 1]"),
    (tuple[int, str], (1, 2), "in parentheses, but it is (1, 2)"),
    (int, DEEP, "must be a whole number, but it is tuple, too large to write"),
    (Annotated[int, t.Reader(_even)], 3, "a.b must be even."),
    (t.Pattern, "(", "a.b must be a regular expression, but '(' is none"),
    (Entry, {"numbers": {"a": ["x"]}}, "must be an Entry"),
    (Entry, {"numbers": {}, "note": 1}, "must be an Entry"),
]


@pytest.mark.parametrize(("hint", "values"), VALID, ids=range(len(VALID)))
def test_valid_values(hint, values):
    for value in values:
        t.check(hint, value, "a.b")


@pytest.mark.parametrize(("hint", "value", "message"), WRONG, ids=range(len(WRONG)))
def test_wrong_values_are_one_sentence(hint, value, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        t.check(hint, value, "a.b")
    if "a.b" not in message or "Unknown" in message:
        assert not t.fits(hint, value)


@dataclasses.dataclass(frozen=True)
class Inner(t.Checked):
    number: float
    names: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Outer(t.Checked):
    width: Annotated[t.Count, t.Multiple("parts")]
    parts: t.Count = 2
    inner: Inner | None = None
    several: list[Inner] = dataclasses.field(default_factory=list)
    open: Any = None

    PATH: ClassVar[str] = "outer."


def test_a_dataclass_is_built_of_plain_values():
    made = t.build(Outer, {"width": 4, "open": {"number": 1}, "several": [{"number": 2}]}, "outer", {"open": Inner})
    assert made == Outer(4, 2, None, [Inner(2.0)], Inner(1.0))
    assert type(made.open.number) is float


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"width": 3}, "outer.parts=2 does not divide outer.width=3; choose a divisor of 3."),
        ({"width": 4, "part": 2}, "Unknown field 'outer.part'. Did you mean 'outer.parts'?"),
        ({"width": 4, "open": {"number": True}}, "outer.open.number must be a number, but it is True."),
        ({"width": 4, "several": [{"number": 1}, {}]}, "The field outer.several[1].number is missing; give it."),
        ({"width": 4, "several": {}}, "outer.several must be a list of values, but it is {}."),
        ([], "outer must have the fields width, parts, inner, several, open, but it is []."),
    ],
)
def test_what_cannot_be_built_is_one_sentence(values, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        t.build(Outer, values, "outer", {"open": Inner})


def test_a_whole_config_states_every_field():
    with pytest.raises(UsageError, match=r"The field parts is missing; give it\."):
        t.build(Outer, {"width": 4}, whole=True)


def _maker(texts, size: t.Count, lower: bool = True):
    return size, lower


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sise": 3}, "Unknown option of words 'sise'. Did you mean 'size'?"),
        ({"size": 0}, "The option size of words must be at least 1, but it is 0."),
        ({}, "words needs size: write words(size=...)."),
    ],
)
def test_options_of_a_function_are_its_parameters(options, message):
    check_options(SpecItem("words", {"size": 3}), _maker, ["texts"])
    with pytest.raises(UsageError, match=re.escape(message)):
        check_options(SpecItem("words", options), _maker, ["texts"])


def test_options_of_a_class_are_its_fields():
    assert make("inner(number=2)", {"inner": Inner}, "thing") == Inner(2)
    with pytest.raises(UsageError, match="The option number must be a number, but it is 'a'"):
        Inner("a")
    for text, message in {
        "iner": "Unknown thing 'iner'. Did you mean 'inner'?",
        "inner(number='a')": "The option number of inner must be a number, but it is 'a'.",
        "inner|inner": "There is one thing, not 'inner|inner'; name one of inner.",
    }.items():
        with pytest.raises(UsageError, match=re.escape(message)):
            make(text, {"inner": Inner}, "thing")
