"""Spec strings: what is read, and that nothing else is."""

import pytest

from attention import UsageError
from models.specs import Call, parse


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("", ()),
        ("super", (Call("super"),)),
        ("super(per_head=True)|dot_product", (Call("super", {"per_head": True}), Call("dot_product"))),
        ("a|b(x=(0.5, -1))|c(y='z')", (Call("a"), Call("b", {"x": (0.5, -1)}), Call("c", {"y": "z"}))),
    ],
)
def test_reads(text, calls):
    assert parse(text) == calls


@pytest.mark.parametrize(
    "text", ["a(", "a(1)", "a(**b)", "a.b", "a&b", "a(x=print(1))", "a(x=y)", "'a'", "a(x=1)(y=2)", "|a"]
)
def test_refuses_in_one_sentence(text):
    with pytest.raises(UsageError, match="Cannot read") as raised:
        parse(text)
    assert repr(text) in str(raised.value)
