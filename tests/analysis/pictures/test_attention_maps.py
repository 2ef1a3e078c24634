"""Rollout and mixing by hand, and which models have weights."""

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import pytest

from analysis.pictures.attention_maps import mixing, rollout
from attention import UnsupportedError
from models.layers.attention_weights import attention_weights

TOKENS = jnp.zeros((1, 3), jnp.int32)


@pytest.mark.parametrize(
    ("layers", "rolled"),
    [
        (
            [[[[0.5, 0.5], [0, 1]]], [[[1, 0], [0.25, 0.75]]]],
            [[[0.75, 0.25], [0, 1]], [[0.75, 0.25], [0.125 * 0.75, 0.125 * 0.25 + 0.875]]],
        ),
        ([[[[1, 0], [0, 1]], [[0, 1], [1, 0]]]], [[[0.75, 0.25], [0.25, 0.75]]]),  # the mean over heads
        # what alignment makes, by its size in each head
        ([[[[2, -6], [0, -1]], [[-2, 6], [0, 1]]]], [[[0.5 * 0.25 + 0.5, 0.5 * 0.75], [0, 1]]]),
        ([np.zeros((2, 3, 3))], [np.eye(3)]),
    ],
)
def test_rollout_by_hand(layers, rolled):
    """(I + W)/2 of each layer, the later on the left (Abnar and Zuidema 2020, eq. 1)."""
    np.testing.assert_allclose(rollout([np.array(weights, float) for weights in layers]), rolled)


@pytest.mark.parametrize(("causal", "heads"), [(False, ()), (True, (2,))])
def test_mixing_is_the_weights_times_the_leading_block_of_w_a(causal, heads):
    rng = np.random.default_rng(0)
    weights, kernel = rng.random((3, 2, 4, 4), np.float32), rng.standard_normal((*heads, 6, 6)).astype(np.float32)
    block = kernel[..., :4, :4]
    expected = weights @ (np.tril(block) if causal else block)
    np.testing.assert_allclose(mixing(weights, jnp.asarray(kernel), causal=causal), expected, rtol=1e-4, atol=1e-5)


def test_models_without_attention_between_tokens_are_refused():
    with pytest.raises(UnsupportedError, match="A Dense has no attention weights"):
        attention_weights(nn.Dense(1), {"kernel": jnp.ones((2, 1)), "bias": jnp.ones(1)}, jnp.ones((3, 2)))
