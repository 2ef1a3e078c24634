"""The classifiers: a Vision Transformer, a network of convolutions, and an encoder of texts."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention.channel import Cbam, Spatial, SqueezeExcitation
from models.cnn import CNN, CNNConfig, Residual
from models.layers.positions import sinusoids, sinusoids_in_halves
from models.text_classifier import TextClassifierConfig, mean_of_real
from models.vit import patches
from tests.models import test_every_model as every
from tests.models.small import apply, random_params, small
from tests.sizes import more
from train.state import count_parameters

VIT_IMAGES = jax.random.normal(jax.random.key(0), (3, 8, 8, 3))


def test_patches_are_squares_in_row_major_order():
    out = np.asarray(patches(VIT_IMAGES, 4))
    for row in range(2):
        for column in range(2):
            square = np.asarray(VIT_IMAGES)[:, row * 4 : row * 4 + 4, column * 4 : column * 4 + 4]
            np.testing.assert_array_equal(out[:, row * 2 + column], square.reshape(3, -1))


def test_sinusoids_are_vaswanis():
    table, halves = (np.asarray(make(5, 6, first=2)) for make in (sinusoids, sinusoids_in_halves))
    for row in range(5):
        for i in range(3):
            angle = (row + 2) / 10_000 ** (2 * i / 6)
            np.testing.assert_allclose(table[row, 2 * i : 2 * i + 2], [np.sin(angle), np.cos(angle)], atol=1e-6)
    np.testing.assert_array_equal(halves, np.concatenate([table[:, ::2], table[:, 1::2]], axis=1))


CNN_CONFIG = CNNConfig(attention="none", stages=2, depth=1, width=8, groups=2, dropout=0.0)


@pytest.mark.parametrize(
    ("spec", "gates", "more"),  # those of the blocks of 8 and of 16 channels, and their parameters
    [
        ("squeeze_excitation(ratio=4)", (SqueezeExcitation(4), SqueezeExcitation(4)), (2 * 8 * 2, 2 * 16 * 4)),
        ("spatial(kernel=3)", (Spatial(3), Spatial(3)), (18, 18)),
        ("none|cbam(ratio=4)", (None, Cbam(4, 7)), (0, 2 * 16 * 4 + 98)),
    ],
)
def test_each_stage_has_its_attention_and_parameters_their_closed_form(spec, gates, more):
    config = dataclasses.replace(CNN_CONFIG, attention=spec)
    assert config.gates == gates
    shapes = jax.eval_shape(CNN(config, 5, 63).init, jax.random.key(0), jnp.zeros((3, 9, 7, 3)))
    block = lambda c: 2 * (9 * c * c + 2 * c)  # noqa: E731  convolutions and norms
    plain = 9 * 3 * 8 + block(8) + 4 * 8 * 16 + block(16) + 2 * 16 + 16 * 5 + 5
    assert count_parameters(shapes) == plain + sum(more)


def test_attention_is_on_the_residual_branch():
    """Where the last convolution is zero, so is what the gate multiplies, and a block changes nothing."""
    block, x = Residual(CNN_CONFIG, Cbam(4, 7)), jax.random.normal(jax.random.key(0), (3, 9, 7, 8))
    variables = random_params(block, x)
    assert jnp.abs(apply(block, variables, x) - x).max() > 0.1
    variables["params"]["conv_1"]["kernel"] *= 0
    chex.assert_trees_all_close(apply(block, variables, x), x)


@pytest.mark.parametrize(
    ("attention", "layer"), [("dot_product", 4_224), ("optimised", 3_168), ("efficient", 2_112), ("super", 3_168)]
)
def test_parameters_of_hosseinis_imdb_models(attention, layer):
    """Table 8's attention layers in the Keras example's model: 650K in all, the paper says."""
    sizes = {"depth": 1, "width": 32, "heads": 4, "mlp": 32, "norm": "post"}
    model = small(TextClassifierConfig, attention=attention, **sizes).build(20_000, 2, 32)
    params = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 32), int), jnp.array([32]))
    embeddings, mlp, norms, head = 20_000 * 32 + 32 * 32, 2 * (32 * 32 + 32), 4 * 32, 32 * 20 + 20 + 20 * 2 + 2
    assert count_parameters(params["params"]["block_0"]["attention"]) == layer
    assert count_parameters(params) == embeddings + layer + mlp + norms + head
    assert 645_000 < count_parameters(params) < 650_000


@pytest.mark.parametrize(
    ("changes", "pool"), [({"attention": "super"}, "class_token"), more({"norm": "pre", "positions": "rotary"}, "mean")]
)
def test_nothing_of_padding_reaches_a_logit_or_a_gradient(changes, pool):
    model, params, (tokens, lengths) = every.build("text_classifier", pool=pool, **changes)
    padding = jnp.arange(8)[None] >= lengths[:, None]
    tokens = jnp.where(padding, 10, tokens % 9 + 1)

    def loss(params):
        logits = apply(model, params, tokens, lengths)
        return jnp.sum(jnp.sin(logits)), logits

    differentiate = jax.jit(jax.grad(loss, has_aux=True))
    gradient, logits = differentiate(params)
    params["params"]["embed"]["embedding"] = params["params"]["embed"]["embedding"].at[10].set(jnp.nan)
    spoilt_gradient, spoilt_logits = differentiate(params)
    chex.assert_trees_all_equal(spoilt_logits, logits)
    chex.assert_trees_all_equal(spoilt_gradient, gradient)
    chex.assert_tree_all_finite(gradient)
    assert np.all(gradient["params"]["embed"]["embedding"][10] == 0)
    assert np.all(np.abs(gradient["params"]["embed"]["embedding"][np.unique(tokens[~padding])]).max(-1) > 0)


def test_the_mean_is_over_real_tokens():
    x = jax.random.normal(jax.random.key(0), (3, 8, 4))
    expected = [x[0].mean(0), x[1, :5].mean(0), x[2, 0]]
    np.testing.assert_allclose(mean_of_real(x, jnp.array([8, 5, 1])), expected, rtol=1e-5)
    np.testing.assert_array_equal(mean_of_real(x, jnp.array([8, 0, 0]))[1:], 0)
