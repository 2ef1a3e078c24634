"""Layers of a published model get other mechanisms: what stays, what is carried over, and what starts like before."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict

from attention import UsageError
from models.encoder_decoder import EncoderDecoderConfig
from models.gpt import GPT, GPTConfig
from models.masked_lm import MaskedLMConfig
from models.published import pretrained
from models.surgery import exchange
from models.surgery.like import like
from tests.models.small import apply, random_params
from tests.sizes import once
from train import loading

TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, 13, (2, 9)))
SPEC = "dot_product(kv_heads=2, window=4)"
FIELDS = {"depth": 3, "width": 16, "heads": 4, "mlp": 24, "norm_type": "rms", "gated": True, "activation": "swish"}
FIELDS |= {"mlp_bias": False, "output_bias": False, "dropout": 0.0, "tied_output": False}
FIELDS |= {"positions": "rotary(base=10000.0)"}


def model_of(attention=SPEC, seed=0):
    model = GPT(GPTConfig(**FIELDS | {"attention": attention}), 13, 12)
    return model, random_params(model, TOKENS, seed=seed)["params"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of published weights: a Mistral."""
    model, params = model_of(seed=1)
    place = tmp_path_factory.mktemp("published") / "model"
    pretrained.export(str(place), model.config, params, length=12)
    return place


@pytest.mark.parametrize(
    ("spec", "source", "expected"),
    [
        ("keep", "a|b(x=1)|a", "a|b(x=1)|a"),
        ("neural(dim=2)|keep", "a|b", "neural(dim=2)|b"),
        ("keep|super", "a|b(y='z')", "a|super"),
        ("cycle(super*2|keep)", "cycle(a*2|b)", "super|super|b"),
    ],
)
def test_keep_stands_for_the_mechanism_of_the_same_layer(spec, source, expected):
    assert exchange.kept(spec, source, 3) == expected


def test_keep_without_a_source_is_a_mistake():
    with pytest.raises(UsageError, match=r"'neural\|keep' keeps the mechanisms of loaded weights; set model.pre"):
        loading.resolve("configs/gpt_pydoc.py", {"model.attention": "neural|keep"})


def loaded(folder, attention):
    model, fresh = model_of(attention, seed=2)
    return model, *pretrained.load(str(folder), model.config, fresh)


@pytest.mark.more
def test_keys_and_values_for_more_heads_are_copies_which_give_the_same_logits(folder):
    grouped, whole = loaded(folder, SPEC), loaded(folder, "dot_product(window=4)")
    expected, logits = (model.apply({"params": params}, TOKENS) for model, params, _ in (grouped, whole))
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    assert len(whole[2].regrouped) == 6
    assert "Repeated or averaged for another number of heads: block_*/attention/key/kernel (3)" in str(whole[2])


@pytest.mark.more
def test_keys_and_values_for_fewer_heads_are_averages(folder):
    _, params, report = loaded(folder, f"dot_product(kv_heads=1)|{SPEC}")
    values = [tree["block_0"]["attention"]["value"]["kernel"] for tree in (params, loaded(folder, SPEC)[1])]
    np.testing.assert_allclose(values[0][:, 0], values[1].mean(axis=1), atol=1e-6)
    assert report.regrouped == ("block_0/attention/key/kernel", "block_0/attention/value/kernel")


SIZES = {"depth": 4, "width": 16, "heads": 4, "mlp": 8, "positions": "learned", "attention_bias": True}
SANDWICH = {"norm": "sandwich", "norm_type": "rms_offset"}
TRANSLATOR = {"depth": 1, "decoder_depth": 1, "norm": "pre", "positions": "sinusoidal"}
CASES = (
    (GPTConfig, SANDWICH, "mlp_qkv|dual_linear|dot_product(align=True)|luong_general"),
    (GPTConfig, {}, "mlp_qkv|dual_linear|mlp_roberta(out='mlp_without_norm')"),
    (MaskedLMConfig, {}, "mlp_qkv|mlp_kv|mlp_roberta"),
    (GPTConfig, SANDWICH, "dot_product(output_gate='head')|mlp_qkv(output_gate='elementwise')|dot_product"),
    (EncoderDecoderConfig, TRANSLATOR, "mlp_qkv"),
)


@pytest.mark.parametrize(("kind", "fields", "attention"), once(CASES, CASES[4:]))
def test_an_exchanged_model_computes_what_it_did(kind, fields, attention):
    config = kind(**SIZES | fields | dict.fromkeys(kind.STACKS, attention))
    original = kind(**SIZES | fields)
    two = kind is EncoderDecoderConfig
    inputs = (TOKENS, None, TOKENS[:, ::-1]) if two else (TOKENS,)
    models = [one.build(13, 13, 9, 9) if two else one.build(13, 9) for one in (original, config)]
    before = random_params(models[0], *inputs)["params"]
    fresh = jax.jit(models[1].init)(jax.random.key(1), *inputs)["params"]
    flat, theirs = flatten_dict(fresh, sep="/"), flatten_dict(before, sep="/")
    carried = unflatten_dict({path: theirs.get(path, value) for path, value in flat.items()}, sep="/")
    params, alike = like(config, carried, original, before)
    expected, start, logits = (
        apply(model, {"params": tree}, *inputs)
        for model, tree in zip((models[0], models[1], models[1]), (before, carried, params), strict=True)
    )
    np.testing.assert_allclose(logits, expected, atol=2e-3)
    assert np.abs(start - expected).max() > 0.1
    doubled = {path.replace("output_gate", "out") for path in flat if path.endswith("output_gate/kernel")}
    assert {path for path in flat if path not in theirs and "/norm/" not in path} == {*alike} - doubled
