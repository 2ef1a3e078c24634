"""Spec strings: what is read, and that nothing else is."""

import re

import jax
import jax.numpy as jnp
import pytest

from attention import UsageError, specs
from attention.normaliser import normaliser_of
from attention.scores.dot import DotProduct
from attention.specs import SpecItem, parse
from models.cnn import CNNConfig
from models.gpt import GPTConfig
from tests.models.small import small


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


READ_BY_NONE = ["a(", "a(1)", "a(**b)", "a.b", "a&b", "a(x=print(1))", "a(x=y)", "'a'", "a(x=1)(y=2)", "|a"]
COUNTS = ["a*0", "a*-1", "a*1001", "a*999|b*2", "a*True", "a*2.0", "a*b", "2*a", "a*2*2", "(a|b)*2"]
CYCLES = [
    "cycle()",
    "cycle(a, b)",
    "cycle(a)*2",
    "cycle(cycle(a))",
    "cycle(a|b, x=1)",
    "cycle(a)|b",
    "cycle",
    "cycle(x=1)",
]


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("a*3|b", "aaabbbbb"),
        ("cycle(a*3|b)", "aaabaaab"),
        ("cycle(a|b)", "abababab"),
        ("c|b|cycle(a*2|b)", "cbaabaab"),
        ("c*6|cycle(a|b)", "ccccccab"),
        ("cycle(a)", "aaaaaaaa"),
        ("a*8", "aaaaaaaa"),
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
        ("cycle(a*8|b)", "has 9 layers and does not fit 8 layers; 9 would do"),
        ("c*8|cycle(a)", "has 1 layers and does not fit 8 layers; 9 would do"),
        ("c*7|cycle(a*2)", "has 2 layers and does not fit 8 layers; 9 would do"),
        ("a*8|b", "'a*8|b' names 9 layers, but the model has 8; name at most 8"),
        ("", "A name is needed for each layer; give one"),
    ],
)
def test_what_does_not_fit_the_depth(text, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        specs.one_each(text, str, "layer", 8)


def test_names_of_files_have_counts_and_cycles():
    found = specs.one_each("my.py:Mine(x=1)*2|cycle(b|lib/my.py:Other)", str, "layer", 4)
    assert found == ("my.py:Mine(x=1)", "my.py:Mine(x=1)", "b", "lib/my.py:Other")


def test_only_layers_have_cycles():
    with pytest.raises(UsageError, match=r"'a\|cycle\(b\)' has a cycle, but no layers to repeat in; write a count"):
        parse("a|cycle(b)")


@pytest.mark.parametrize("text", [*READ_BY_NONE, *COUNTS, *CYCLES])
def test_refuses_in_one_sentence(text):
    with pytest.raises(UsageError, match="Cannot read") as raised:
        parse(text)
    assert repr(text) in str(raised.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("neural(dim=2", "'(' was never closed"),
        ("neural(dim=two)", "two is no value; perhaps dim='two'"),
        ("neural(scale=true)", "true is no value; perhaps scale=True"),
        ("neural(dim=1+1)", "a value is a number, a word in quotes"),
        ("neural(2)", "each item is a name, or a name with options in brackets"),
        ("dot_product*0", "a count is a whole number from 1"),
    ],
)
def test_says_why_it_cannot_read(text, reason):
    with pytest.raises(UsageError, match=re.escape(f"Cannot read {text!r} ({reason}")):
        parse(text)


def test_a_config_reads_its_specs_once(monkeypatch):
    gpt = small(GPTConfig, attention="neural(dim=2)|dot_product", name="gpt", tied_output=True, scale_embeddings=False)
    sizes = {"stages": 2, "depth": 1, "width": 8, "groups": 4, "norm_epsilon": 1e-6, "dropout": 0.0}
    cnn = CNNConfig(name="cnn", attention="none|cbam(ratio=4)", **sizes)
    monkeypatch.setattr(specs, "pattern", None)
    for model, x in ((gpt.build(11, 4), jnp.ones((1, 4), int)), (cnn.build((4, 4, 1), 3), jnp.ones((1, 4, 4, 1)))):
        jax.eval_shape(model.init, jax.random.key(0), x)
    assert min(gpt.cost(11, 4).flops, cnn.cost((4, 4, 1), 3).flops) > 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("softmx", "Unknown normaliser 'softmx'. Did you mean 'softmax'"),
        ("sink(learn=True)", "Unknown option of sink 'learn'. Did you mean 'learned'"),
        ("sink|sigmoid", "There is one normaliser, not 'sink|sigmoid'"),
    ],
)
def test_mistakes_in_normalisers_are_one_sentence(text, message):
    with pytest.raises(UsageError, match=message.replace("(", r"\(").replace("|", r"\|")):
        normaliser_of(text)
    with pytest.raises(UsageError):
        DotProduct(normaliser=text)
