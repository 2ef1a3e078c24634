"""Spec strings: what is read, and that nothing else is."""

import re

import pytest

from attention import UsageError, specs
from attention.specs import SpecItem, parse


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("", ()),
        ("super", (SpecItem("super"),)),
        ("super(per_head=True)|dot_product", (SpecItem("super", {"per_head": True}), SpecItem("dot_product"))),
        ("a|b(x=(0.5, -1))|c(y='z')", (SpecItem("a"), SpecItem("b", {"x": (0.5, -1)}), SpecItem("c", {"y": "z"}))),
        ("a*2|b", (SpecItem("a"), SpecItem("a"), SpecItem("b"))),
        ("a|b(x=1) * 2", (SpecItem("a"), SpecItem("b", {"x": 1}), SpecItem("b", {"x": 1}))),
    ],
)
def test_reads(text, calls):
    assert parse(text) == calls


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("a*3|b", "aaabbbbb"),
        ("cycle(a*3|b)", "aaabaaab"),
        ("cycle(a|b)", "abababab"),
        ("c|b|cycle(a*2|b)", "cbaabaab"),
        ("c*6|cycle(a|b)", "ccccccab"),
    ],
)
def test_counts_and_cycles_give_each_layer_an_item(text, layers):
    assert "".join(specs.one_each(text, str, "layer", 8)) == layers
    assert "".join(specs.one_each(str(specs.pattern(text)), str, "layer", 8)) == layers
    assert "".join(specs.texts(text, "layer", 8)) == layers


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cycle(a*2|b)", "The cycle of 'cycle(a*2|b)' has 3 layers and does not fit 8 layers; 6 or 9 would do."),
        ("c*2|cycle(a*3|b)", "has 4 layers and does not fit 8 layers; 6 or 10 would do"),
        ("c*8|cycle(a)", "has 1 layers and does not fit 8 layers; 9 would do"),
        ("a*8|b", "'a*8|b' names 9 layers, but the model has 8; name at most 8"),
        ("", "A name is needed for each layer; give one"),
    ],
)
def test_what_does_not_fit_the_depth(text, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        specs.one_each(text, str, "layer", 8)


def test_only_layers_have_cycles():
    with pytest.raises(UsageError, match=r"'a\|cycle\(b\)' has a cycle, but no layers to repeat in; write a count"):
        parse("a|cycle(b)")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("neural(dim=2", "'(' was never closed"),
        ("neural(dim=two)", "two is no value; perhaps dim='two'"),
        ("neural(scale=true)", "true is no value; perhaps scale=True"),
        ("neural(dim=1+1)", "a value is a number, a word in quotes"),
        *((text, "a value is a number, a word in quotes") for text in ("a(x=print(1))", "2*a")),
        *((text, "each item is a name") for text in ("a(1)", "a(**b)", "a.b", "a&b", "'a'", "a*2*2", "(a|b)*2")),
        *((f"a*{count}", "a count is a whole number from 1 to 1000") for count in ("0", "1001", "True", "2.0")),
        ("a*999|b*2", "it has more than 1000 items"),
        *(
            (text, "a cycle stands last")
            for text in ("cycle()", "cycle(a)*2", "cycle(cycle(a))", "cycle(a)|b", "cycle")
        ),
    ],
)
def test_says_why_it_cannot_read(text, reason):
    with pytest.raises(UsageError, match=re.escape(f"Cannot read {text!r} ({reason}")):
        parse(text)
