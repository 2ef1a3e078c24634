"""The losses that layers have of their own: kept when they are asked for, summed over layers, for each example."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import Mask
from attention.forms import Tokens
from attention.options import Options
from models.gpt import GPT, GPTConfig
from models.layers.multi_head import MultiHeadAttention
from models.layers.own_losses import with_own_loss
from tests.models.small import random_params, small
from tests.sizes import more

SPEC = "deepseek_sparse(heads=2, width=4, top=3, weight=2.0)"
CONFIG = small(GPTConfig, name="gpt", tied_output=False, scale_embeddings=False, attention=SPEC, width=8, mlp=12)
TOKENS = jax.random.randint(jax.random.key(0), (2, 7), 0, 11)


def variables_of(config):
    return random_params(GPT(config, 11, 9), TOKENS)


def losses(config, variables):
    return with_own_loss(GPT(config, 11, 9), variables, TOKENS)


def test_a_layer_keeps_the_loss_of_its_score_and_computes_the_same():
    layer, x = MultiHeadAttention(SPEC, 2), jax.random.normal(jax.random.key(1), (2, 7, 8))
    mask = Mask(causal=True)
    variables = random_params(layer, x)
    out, found = with_own_loss(layer, variables, x, mask=mask)
    chex.assert_trees_all_close(out, layer.apply(variables, x, mask=mask))
    score, params = layer.mechanism.score, variables["params"]
    heads = lambda side: jnp.einsum("btd,dnh->btnh", x, params[side]["kernel"]) + params[side]["bias"][None, None]  # noqa: E731
    query = score.prepare_query(params["score"], heads("query"), Tokens(0, x))
    key = score.prepare_key(params["score"], heads("key"), Tokens(0, x))
    expected = score.own_loss(params["score"], query, key, Options(mask))
    chex.assert_trees_all_close(found, {"own_loss": expected}, rtol=1e-5)
    assert expected.min() > 0


def test_a_models_loss_is_the_sum_of_its_layers_and_others_have_none():
    model, variables = GPT(CONFIG, 11, 9), variables_of(CONFIG)
    _, kept = model.apply(variables, TOKENS, mutable="own_losses")
    each = [kept["own_losses"][f"block_{layer}"]["attention"]["own_loss"] for layer in range(2)]
    total = losses(CONFIG, variables)[1]["own_loss"]
    chex.assert_trees_all_close(total, each[0] + each[1])
    assert np.abs(each[0] - each[1]).min() > 1e-3
    assert set(model.init(jax.random.key(0), TOKENS)) == {"params"}
    plain = dataclasses.replace(CONFIG, attention="dot_product")
    assert losses(plain, variables_of(plain))[1] == {}
    mixed = dataclasses.replace(CONFIG, attention=f"dot_product|{SPEC}")
    assert [config.has_own_loss for config in (CONFIG, mixed, plain)] == [True, True, False]


@pytest.mark.parametrize("change", [{"remat": "block"}, more({"remat": "dots"}), more({"scan": True})])
def test_it_is_the_same_however_a_model_is_compiled(change):
    variables = variables_of(CONFIG)
    other = dataclasses.replace(CONFIG, **change)
    gradient = lambda config: jax.grad(lambda given: losses(config, given)[1]["own_loss"].sum())(variables)  # noqa: E731
    chex.assert_trees_all_close(losses(other, variables), losses(CONFIG, variables), rtol=1e-5)
    chex.assert_trees_all_close(gradient(other), gradient(CONFIG), rtol=1e-4, atol=1e-6)
