"""The classifiers: a Vision Transformer, a network of convolutions, and an encoder of texts."""

import dataclasses
from functools import partial

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention.activations import gelu
from attention.channel import Cbam, Spatial, SqueezeExcitation
from models.cnn import CNN, CNNConfig
from models.layers.positions import sinusoids
from models.text_classifier import TextClassifier, TextClassifierConfig, mean_of_real
from models.vit import ViT, ViTConfig, patches
from tests.models.small import apply, random_params, small
from tests.sizes import more, once
from train.state import count_parameters

VIT_CONFIG = small(ViTConfig, attention="super", pool="class_token", norm_epsilon=1e-6)
VIT_IMAGES = jax.random.normal(jax.random.key(0), (3, 8, 8, 3))


def build_vit(**changes):
    config = dataclasses.replace(VIT_CONFIG, **changes)
    model = ViT(config, classes=5, length=config.tokens((8, 8, 3)))
    return model, random_params(model, VIT_IMAGES)


def test_patches_are_squares_in_row_major_order():
    out = np.asarray(patches(VIT_IMAGES, 4))
    for row in range(2):
        for column in range(2):
            square = np.asarray(VIT_IMAGES)[:, row * 4 : row * 4 + 4, column * 4 : column * 4 + 4]
            np.testing.assert_array_equal(out[:, row * 2 + column], square.reshape(3, -1))


def test_parameters_of_cifar100s_super_model():
    """8 x (attention 197,890 + MLP + LayerNorms) + embedding + class token + positions + norm + head."""
    config = dataclasses.replace(VIT_CONFIG, depth=8, width=256, heads=8, mlp=512)
    model = ViT(config, classes=100, length=config.tokens((32, 32, 3)))
    params = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 32, 32, 3)))
    block = 197_890 + 2 * 256 * 512 + 512 + 256 + 4 * 256
    assert count_parameters(params) == 8 * block + (12 * 256 + 256) + 256 + 257 * 256 + 512 + (256 * 100 + 100)


def test_the_mean_pools_every_token_and_needs_no_class_token():
    model, variables = build_vit(pool="mean")
    assert "class_token" not in variables["params"]
    order = jax.random.permutation(jax.random.key(5), 16)
    plain, free = build_vit(pool="mean", positions="none", attention="dot_product")
    shuffled = (
        patches(VIT_IMAGES, 2)[:, order].reshape(3, 4, 4, 2, 2, 3).transpose(0, 1, 3, 2, 4, 5).reshape(3, 8, 8, 3)
    )
    chex.assert_trees_all_close(apply(plain, free, shuffled), apply(plain, free, VIT_IMAGES), atol=1e-5)
    chex.assert_shape(apply(model, variables, VIT_IMAGES), (3, 5))


def test_sinusoids_are_vaswanis():
    table = np.asarray(sinusoids(7, 6))
    for position in range(7):
        for i in range(3):
            angle = position / 10_000 ** (2 * i / 6)
            np.testing.assert_allclose(table[position, 2 * i : 2 * i + 2], [np.sin(angle), np.cos(angle)], atol=1e-6)


def test_gelu_and_its_gradient_are_flaxs(x64):
    x = jnp.linspace(-9, 9, 1001)
    exact = partial(nn.gelu, approximate=False)
    chex.assert_trees_all_close(gelu(x), exact(x), atol=1e-14)
    chex.assert_trees_all_close(jax.vmap(jax.grad(gelu))(x), jax.vmap(jax.grad(exact))(x), atol=1e-14)


CNN_CONFIG = CNNConfig(
    name="cnn", attention="none", stages=2, depth=1, width=8, groups=2, norm_epsilon=1e-6, dropout=0.0
)
CNN_IMAGES = jax.random.normal(jax.random.key(0), (3, 9, 7, 3))


def build_cnn(**changes):
    model = CNN(dataclasses.replace(CNN_CONFIG, **changes), classes=5, length=63)
    shapes, numbers = jax.eval_shape(model.init, jax.random.key(1), CNN_IMAGES), np.random.default_rng(0)
    return jax.jit(model.apply), jax.tree.map(lambda x: numbers.normal(0, 0.3, x.shape).astype(x.dtype), shapes)


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
    shapes = jax.eval_shape(CNN(config, 5, 63).init, jax.random.key(0), CNN_IMAGES)
    block = lambda c: 2 * (9 * c * c + 2 * c)  # noqa: E731  convolutions and norms
    plain = 9 * 3 * 8 + block(8) + 4 * 8 * 16 + block(16) + 2 * 16 + 16 * 5 + 5
    assert count_parameters(shapes) == plain + sum(more)


@pytest.mark.parametrize("spec", ["squeeze_excitation(ratio=4)", "none|cbam(ratio=4)"])
def test_attention_is_on_the_residual_branch_and_zero_weights_halve_it(spec):
    """With zeros for its weights each gate is 1/2: the last convolution's weights halved give the same network."""
    apply, variables = build_cnn(attention=spec)
    params = variables["params"]
    for name in [name for name in params if "attention" in params[name]]:
        halves = 2 if "cbam" in spec else 1
        params[name] |= {"attention": jax.tree.map(np.zeros_like, params[name]["attention"])}
        params[name] |= {"conv_1": {"kernel": params[name]["conv_1"]["kernel"] * 2**halves}}
    plain, fresh = build_cnn()
    undone = {n: dict(p) for n, p in params.items()}
    for name in [name for name in params if "attention" in params[name]]:
        del undone[name]["attention"]
        undone[name] |= {"conv_1": {"kernel": params[name]["conv_1"]["kernel"] / 2**halves}}
    chex.assert_trees_all_equal_shapes(undone, fresh["params"])
    chex.assert_trees_all_close(apply({"params": params}, CNN_IMAGES), plain({"params": undone}, CNN_IMAGES), atol=1e-5)


def test_an_examples_logits_are_its_own():
    apply, params = build_cnn()
    changed = apply(params, CNN_IMAGES.at[1:].multiply(3.0))
    chex.assert_trees_all_close(apply(params, CNN_IMAGES)[:1], changed[:1], atol=1e-5)


@pytest.mark.long
def test_eight_devices_give_what_one_gives(run_python):
    """Loss and gradient with all that can be split over data and fsdp, in one process."""
    code = """
import jax, jax.numpy as jnp, numpy as np
from train import loading
from train.mesh import sharding
from train import tasks
plain = loading.load("configs/cnn_digits.py:none")
plain.mesh.update(data=2, fsdp=2, tensor=2)
plain.model.update(stages=2, width=8, dropout=0.0)
config = loading.validate(plain.to_dict())
task, mesh = tasks.find(config.task)(config), sharding.make_mesh(config.mesh)
params = task.init(jax.random.key(0))
batch = {"image": jax.random.uniform(jax.random.key(1), (8, 4, 4, 1)), "label": jnp.arange(8)}
step = jax.value_and_grad(lambda params, batch: task.loss(params, batch, None)["loss"])
one = jax.jit(step)(params, batch)
with jax.set_mesh(mesh):
    split = jax.device_put(params, sharding.state_shardings(params, mesh))
    batch = sharding.to_devices({name: np.asarray(x) for name, x in batch.items()}, mesh)
    eight = jax.jit(step)(split, batch)
assert split["block_0"]["conv_0"]["kernel"].addressable_shards[0].data.shape == (3, 3, 8, 4)
jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), eight, one)
print("the same")
"""
    assert "the same" in run_python("-c", code, devices=8).stdout


TEXT_CONFIG = small(TextClassifierConfig, depth=1, mlp=24, norm="post", norm_epsilon=1e-6, activation="relu")
TEXT_TOKENS = jax.random.randint(jax.random.key(0), (3, 8), 1, 11)
TEXT_LENGTHS = jnp.array([8, 5, 1])


def build_text(**changes):
    model = TextClassifier(dataclasses.replace(TEXT_CONFIG, **changes), vocabulary=11, classes=3, length=8)
    return model, random_params(model, TEXT_TOKENS, TEXT_LENGTHS)


@pytest.mark.parametrize(
    ("attention", "layer"), [("dot_product", 4_224), ("optimised", 3_168), ("efficient", 2_112), ("super", 3_168)]
)
def test_parameters_of_hosseinis_imdb_models(attention, layer):
    """Table 8's attention layers in the Keras example's model: 650K in all, the paper says."""
    config = dataclasses.replace(TEXT_CONFIG, attention=attention, width=32, heads=4, mlp=32)
    model = TextClassifier(config, vocabulary=20_000, classes=2, length=32)
    params = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 32), int), jnp.array([32]))
    embeddings, mlp, norms, head = 20_000 * 32 + 32 * 32, 2 * (32 * 32 + 32), 4 * 32, 32 * 20 + 20 + 20 * 2 + 2
    assert count_parameters(params["params"]["block_0"]["attention"]) == layer
    assert count_parameters(params) == embeddings + layer + mlp + norms + head
    assert 645_000 < count_parameters(params) < 650_000


@pytest.mark.parametrize("pool", ["mean", more("class_token")])
@pytest.mark.parametrize("attention", once(["dot_product", "super", "linear"], ["super"]))
def test_padding_after_a_text_is_as_if_it_were_not_there(attention, pool):
    model, params = build_text(attention=attention, pool=pool)
    logits = apply(model, params, TEXT_TOKENS, TEXT_LENGTHS)
    alone = apply(model, params, TEXT_TOKENS[1:2, :5], TEXT_LENGTHS[1:2])
    np.testing.assert_allclose(logits[1:2], alone, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("pool", [more("mean"), "class_token"])
@pytest.mark.parametrize("changes", [more({}), {"attention": "super"}, more({"norm": "pre", "positions": "rotary"})])
def test_nothing_of_padding_reaches_a_logit_or_a_gradient(changes, pool):
    model, params = build_text(pool=pool, **changes)
    padding = jnp.arange(8)[None] >= TEXT_LENGTHS[:, None]
    tokens = jnp.where(padding, 10, TEXT_TOKENS % 9 + 1)

    def loss(params):
        logits = apply(model, params, tokens, TEXT_LENGTHS)
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


def test_a_text_without_tokens_has_finite_logits_and_gradients():
    model, params = build_text()
    empty = jnp.zeros(3, int)
    loss = lambda params: jnp.sum(apply(model, params, TEXT_TOKENS, empty) ** 2)  # noqa: E731
    chex.assert_tree_all_finite(jax.jit(jax.grad(loss))(params))


def test_the_mean_is_over_real_tokens():
    x = jax.random.normal(jax.random.key(0), (3, 8, 4))
    expected = [np.asarray(x)[row, :length].mean(0) for row, length in enumerate(np.asarray(TEXT_LENGTHS))]
    np.testing.assert_allclose(mean_of_real(x, TEXT_LENGTHS), expected, rtol=1e-5)
    np.testing.assert_array_equal(mean_of_real(x, jnp.array([8, 0, 0]))[1:], 0)
