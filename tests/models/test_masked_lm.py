"""RoBERTa's architecture: its parameters, its positions, its padding. `tests/parity` compares it with transformers'."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from attention import Mask, UsageError
from models.layers.positions import after_padding
from models.masked_lm import MaskedLM, MaskedLMConfig
from tests.models.small import apply, random_params, small

CONFIG = small(MaskedLMConfig, norm="post")
TOKENS = jax.random.randint(jax.random.key(0), (2, 9), 2, 11)


def build(length=9, depth=1, **changes):
    model = MaskedLM(dataclasses.replace(CONFIG, depth=depth, **changes), vocabulary=11, length=length)
    return model, random_params(model, TOKENS[:, :length])


def test_positions_count_what_is_not_padding():
    tokens = jnp.array([[5, 7, 6, 1, 1], [1, 1, 4, 9, 1], [1, 1, 1, 1, 1]])
    expected = [[2, 3, 4, 1, 1], [1, 1, 2, 3, 1], [1, 1, 1, 1, 1]]
    np.testing.assert_array_equal(after_padding(tokens, 1), expected)
    np.testing.assert_array_equal(after_padding(tokens + 3, 0), np.arange(1, 6) * np.ones((3, 1), int))


def layer_norm(x, params):
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return x * params["scale"] + params["bias"]


def dense(x, params, axes=1):
    return np.tensordot(x, params["kernel"], axes) + params["bias"]


def gelu(x):
    return x * 0.5 * (1 + special.erf(x / np.sqrt(2)))


def test_logits_are_those_of_the_equations():
    """Post-norm blocks on normalised embeddings, and the head, written out in NumPy."""
    model, variables = build()
    params = jax.tree.map(np.asarray, variables["params"])
    tokens = np.asarray(TOKENS)
    x = params["embed"]["embedding"][tokens] + params["positions"]["embedding"][2:11]
    x = layer_norm(x + params["token_types"]["embedding"][0], params["norm_embedding"])
    block = params["block_0"]
    q, k, v = (dense(x, block["attention"][name]) for name in ("query", "key", "value"))
    scores = np.einsum("btnh,bsnh->bnts", q, k) / np.sqrt(8)
    weights = special.softmax(scores, axis=-1)
    out = dense(np.einsum("bnts,bsnh->btnh", weights, v), block["attention"]["out"], axes=2)
    x = layer_norm(x + out, block["norm_attention"])
    x = layer_norm(x + dense(gelu(dense(x, block["mlp"]["up"])), block["mlp"]["down"]), block["norm_mlp"])
    x = layer_norm(gelu(dense(x, params["head"]["dense"])), params["head"]["norm"])
    expected = x @ params["embed"]["embedding"].T + params["head"]["bias"]
    np.testing.assert_allclose(apply(model, variables, TOKENS), expected, atol=2e-5, rtol=1e-4)


def test_a_padding_mask_may_have_padding_anywhere():
    """Positions count real tokens alone, so padding in front changes nothing either."""
    model, params = build()
    left = jnp.concatenate([jnp.ones((2, 3), int), TOKENS[:, :6]], axis=1)
    logits = apply(model, params, left, Mask(dense=(left != 1)[:, None, None, :]))
    np.testing.assert_allclose(logits[:, 3:], apply(model, params, TOKENS[:, :6]), atol=2e-5, rtol=1e-4)


def test_no_nan_of_padding_reaches_a_real_token_or_a_gradient():
    model, params = build()
    padded = TOKENS.at[:, 6:].set(1)
    params["params"]["positions"]["embedding"] = params["params"]["positions"]["embedding"].at[1].set(jnp.nan)
    mask = Mask(key_lengths=jnp.array([6, 6]))

    def loss(params):
        logits = apply(model, params, padded, mask)[:, :6]
        return jnp.sum(jnp.sin(logits)), logits

    gradient, logits = jax.jit(jax.grad(loss, has_aux=True))(params)
    assert np.all(np.isfinite(logits))
    chex.assert_tree_all_finite(gradient)
    assert np.all(gradient["params"]["positions"]["embedding"][1] == 0)


def test_types_choose_among_their_embeddings():
    model, params = build(token_types=2)
    zeros, ones = (apply(model, params, TOKENS, types=jnp.full_like(TOKENS, kind)) for kind in (0, 1))
    chex.assert_trees_all_equal(zeros, apply(model, params, TOKENS))
    swapped = jax.tree.map(lambda x: x, params)
    swapped["params"]["token_types"]["embedding"] = params["params"]["token_types"]["embedding"][::-1]
    chex.assert_trees_all_close(ones, apply(model, swapped, TOKENS), atol=1e-6)
    assert np.abs(zeros - ones).max() > 1e-3


def test_hidden_units_of_mlps_are_not_dropped():
    """RoBERTa drops an MLP's outputs alone."""

    def shown(params, key):
        of_mlps = lambda module, _: module.name in ("dropout_hidden", "dropout_out")  # noqa: E731
        options = {"capture_intermediates": of_mlps, "mutable": "intermediates"}
        return model.apply(params, TOKENS, train=True, rngs={"dropout": key}, **options)[1]["intermediates"]

    model, params = build(dropout=0.5)
    mlp = jax.jit(shown)(params, jax.random.key(0))["block_0"]["mlp"]
    zeros = {name: np.mean(np.asarray(mlp[name]["__call__"][0]) == 0) for name in ("dropout_hidden", "dropout_out")}
    assert zeros["dropout_hidden"] == 0
    assert 0.4 < zeros["dropout_out"] < 0.6


def test_inputs_that_the_model_cannot_take_are_one_sentence():
    model, params = build(length=5)
    with pytest.raises(UsageError, match="Positions were learned for 5 tokens, but this sequence has 9"):
        apply(model, params, TOKENS)
    model, params = build(token_types=0)
    with pytest.raises(UsageError, match="tokens have no types; leave them out"):
        model.apply(params, TOKENS, types=jnp.zeros_like(TOKENS))
