"""The language model: caches, rotary positions, embeddings."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import pytest

from models.gpt import GPT, GPTConfig
from tests.models.small import apply, in_parts, random_params, small
from tests.sizes import once

CONFIG = small(GPTConfig)
TOKENS = jax.random.randint(jax.random.key(0), (2, 9), 0, 11)


def build(**changes):
    model = GPT(dataclasses.replace(CONFIG, **changes), vocabulary=11, length=12)
    return model, random_params(model, TOKENS)


CACHED = [
    ("dot_product", "rotary"),
    ("gaussian(normalise=False)", "sinusoidal"),
    ("super", "learned"),
    ("neural|delta", "none"),
]


@pytest.mark.parametrize(("attention", "positions"), once(CACHED, CACHED[:2]))
def test_prefill_and_single_tokens_equal_the_whole(attention, positions):
    model, params = build(attention=attention, positions=positions)
    whole = apply(model, params, TOKENS)
    step = jax.jit(lambda tokens, caches: model.apply(params, tokens, False, caches))
    logits, _ = in_parts(step, TOKENS, model.init_caches(2, 12), (4, 5, 9))
    chex.assert_trees_all_close(logits, whole, atol=2e-5, rtol=1e-4)


def test_scaled_embeddings_are_multiplied_by_the_root_of_the_width():
    _, params = build(positions="none")
    scaled, _ = build(positions="none", scale_embeddings=True, tied_output=False)
    plain, _ = build(positions="none", tied_output=False)
    params["params"]["head"] = {"kernel": jnp.ones((16, 11)) * jnp.arange(11.0)[None], "bias": jnp.zeros(11)}
    bigger = jax.tree.map(lambda x: x, params)
    bigger["params"]["embed"] = {"embedding": 4.0 * params["params"]["embed"]["embedding"]}
    chex.assert_trees_all_close(apply(scaled, params, TOKENS), apply(plain, bigger, TOKENS), rtol=1e-5)


def test_what_rotary_positions_do_not_make_relative_is_named():
    remarks = lambda **fields: small(GPTConfig, positions="rotary", **fields).remarks()  # noqa: E731
    assert remarks(attention="dot_product|gaussian|cosine|differential|state_space", depth=5) == []
    (remark,) = remarks(attention="neural|linear|path|alibi", depth=4)
    assert remark.startswith("With rotary positions, linear, neural, path depends on where a sequence starts")
