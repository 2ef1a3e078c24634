"""The frame of trials: what a position sees, the convolution against Flax's own, and its operations."""

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.frame import FrameConfig, mixed
from tests.models.small import apply, random_params, small

TOKENS = jax.random.randint(jax.random.key(0), (2, 7, 2), 0, 11)


def build(pooled=False, **changes):
    model = small(FrameConfig, positions="sinusoidal", convolution=3, **changes).build(11, 2, 7, pooled)
    return model, random_params(model, TOKENS)


def test_the_convolution_is_that_of_flax():
    x, taps = jax.random.normal(jax.random.key(1), (2, 9, 4)), jax.random.normal(jax.random.key(2), (3, 4))
    theirs = nn.Conv(4, (3,), padding=((2, 0),), feature_group_count=4, use_bias=False)
    # Flax's first tap is that of the earliest token.
    expected = theirs.apply({"params": {"kernel": taps[::-1, None]}}, x)
    chex.assert_trees_all_close(mixed(x, taps), expected, atol=1e-6)


def test_a_position_sees_itself_and_those_before():
    """In a row that has each token once, the gradient by a token's embedding is that by a place."""
    model, params = build()
    tokens = jnp.arange(7)[None, :, None] + jnp.zeros((1, 1, 2), int)

    def output(embedding):
        return model.apply({"params": params["params"] | {"embed": {"embedding": embedding}}}, tokens)[0].sum(-1)

    slope = jax.jit(jax.jacobian(output))(params["params"]["embed"]["embedding"])
    depends = np.abs(slope).sum(-1)[:, :7] > 0
    np.testing.assert_array_equal(depends, np.tril(np.ones((7, 7), bool)))


def test_tokens_of_a_position_are_added():
    model, params = build()
    np.testing.assert_allclose(apply(model, params, TOKENS), apply(model, params, TOKENS[..., ::-1]), atol=1e-5)


def test_pooled_answers_are_made_of_the_last_position_alone():
    """Without positions, it sees earlier tokens alike in any order, which other positions do not."""
    others = TOKENS[:, ::-1].at[:, -1].set(TOKENS[:, -1]).at[:, :-1].set(TOKENS[:, :-1][:, ::-1])
    for pooled in (True, False):
        model = small(FrameConfig, positions="none", depth=1).build(11, 2, 7, pooled)
        params = random_params(model, TOKENS)
        same = np.isclose(apply(model, params, TOKENS), apply(model, params, others), atol=1e-4).all(axis=(0, 2))
        assert same.all() == pooled
        assert same[-1]
    assert np.abs(np.diff(apply(model, params, TOKENS), axis=1)).max() > 0


@pytest.mark.parametrize("pooled", [False, True])
def test_products_are_exactly_the_programs(pooled):
    from tests.models.test_costs import products

    model, params = build(pooled)
    jaxpr = jax.make_jaxpr(lambda params: model.apply(params, TOKENS[:1]))(params)
    assert model.config.cost(11, 2, 7, pooled).products == products(jaxpr.jaxpr)
