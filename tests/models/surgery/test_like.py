"""Layers that are set to be like those before: the model computes what it did."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict

from models.encoder_decoder import EncoderDecoderConfig
from models.gpt import GPTConfig
from models.masked_lm import MaskedLMConfig
from models.surgery.like import like
from tests.models.small import apply, random_params
from tests.sizes import once

SIZES = {"depth": 4, "width": 16, "heads": 4, "mlp": 8, "positions": "learned", "attention_bias": True}
GPT = {"norm": "sandwich", "norm_type": "rms_offset"}
TRANSLATOR = {"depth": 1, "decoder_depth": 1, "norm": "pre", "positions": "sinusoidal"}
TOKENS = jnp.asarray(np.random.default_rng(0).integers(2, 13, (2, 9)))
CASES = (
    (GPTConfig, GPT, "mlp_qkv|dual_linear|dot_product(align=True)|luong_general"),
    (GPTConfig, {}, "mlp_qkv|dual_linear|mlp_roberta(out='mlp_without_norm')"),
    (MaskedLMConfig, {}, "mlp_qkv|mlp_kv|mlp_roberta"),
    (GPTConfig, GPT, "dot_product(output_gate='head')|mlp_qkv(output_gate='elementwise')|dot_product"),
    (EncoderDecoderConfig, TRANSLATOR, "mlp_qkv"),
)


@pytest.mark.parametrize(("kind", "fields", "attention"), once(CASES, CASES[4:]))
def test_an_exchanged_model_computes_what_it_did(kind, fields, attention):
    config = kind(**SIZES | fields | dict.fromkeys(kind.STACKS, attention))
    original = kind(**SIZES | fields)
    two = kind is EncoderDecoderConfig
    inputs = (TOKENS, None, TOKENS[:, ::-1]) if two else (TOKENS,)
    models = [one.build(13, 13, 9, 9) if two else one.build(13, 9) for one in (original, config)]
    before, fresh = (random_params(model, *inputs, seed=seed)["params"] for seed, model in enumerate(models))
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
