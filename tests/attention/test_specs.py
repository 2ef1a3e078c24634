"""Spec strings: what is read, and that nothing else is."""

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


def test_a_config_reads_its_specs_once(monkeypatch):
    gpt = small(GPTConfig, attention="neural(dim=2)|dot_product", name="gpt", tied_output=True, scale_embeddings=False)
    sizes = {"stages": 2, "depth": 1, "width": 8, "groups": 4, "norm_epsilon": 1e-6, "dropout": 0.0}
    cnn = CNNConfig(name="cnn", attention="none|cbam(ratio=4)", **sizes)
    monkeypatch.setattr(specs, "parse", None)
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
