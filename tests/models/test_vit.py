"""The Vision Transformer: its shape arithmetic, its parameters, its options."""

import dataclasses
from functools import partial

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import UsageError
from attention.activations import gelu
from models.layers.positions import sinusoids
from models.vit import ViT, ViTConfig, patches
from tests.models.small import apply, random_params, small
from tests.sizes import more, once
from train.state import count_parameters

CONFIG = small(
    ViTConfig,
    name="vit",
    attention="super",
    patch=2,
    pool="class_token",
    norm_epsilon=1e-6,
)
IMAGES = jax.random.normal(jax.random.key(0), (3, 8, 8, 3))


def build(**changes):
    config = dataclasses.replace(CONFIG, **changes)
    model = ViT(config, classes=5, length=config.tokens((8, 8, 3)))
    return model, random_params(model, IMAGES)


def test_patches_are_squares_in_row_major_order():
    out = np.asarray(patches(IMAGES, 4))
    for row in range(2):
        for column in range(2):
            square = np.asarray(IMAGES)[:, row * 4 : row * 4 + 4, column * 4 : column * 4 + 4]
            np.testing.assert_array_equal(out[:, row * 2 + column], square.reshape(3, -1))


def test_parameters_of_cifar100s_super_model():
    """8 x (attention 197,890 + MLP + LayerNorms) + embedding + class token + positions + norm + head."""
    config = dataclasses.replace(CONFIG, depth=8, width=256, heads=8, mlp=512)
    model = ViT(config, classes=100, length=config.tokens((32, 32, 3)))
    params = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 32, 32, 3)))
    block = 197_890 + 2 * 256 * 512 + 512 + 256 + 4 * 256
    assert count_parameters(params) == 8 * block + (12 * 256 + 256) + 256 + 257 * 256 + 512 + (256 * 100 + 100)


@pytest.mark.more
@pytest.mark.parametrize(
    "changes",
    [{"norm": "post"}, *map(more, [{"positions": "sinusoidal"}, {"positions": "none"}, {"activation": "relu"}])],
)
def test_options_without_parameters_of_their_own_change_the_function(changes):
    model, variables = build(positions="sinusoidal") if changes.get("positions") == "none" else build()
    other, fresh = build(**changes)
    kept = jax.tree.map(lambda _, own: own, fresh, _subtree(variables, fresh))
    assert jnp.abs(apply(other, kept, IMAGES) - apply(model, variables, IMAGES)).max() > 1e-4


def _subtree(variables, like):
    return {k: _subtree(variables[k], v) if isinstance(v, dict) else variables[k] for k, v in like.items()}


def test_the_mean_pools_every_token_and_needs_no_class_token():
    model, variables = build(pool="mean")
    assert "class_token" not in variables["params"]
    order = jax.random.permutation(jax.random.key(5), 16)
    plain, free = build(pool="mean", positions="none", attention="dot_product")
    shuffled = patches(IMAGES, 2)[:, order].reshape(3, 4, 4, 2, 2, 3).transpose(0, 1, 3, 2, 4, 5).reshape(3, 8, 8, 3)
    chex.assert_trees_all_close(apply(plain, free, shuffled), apply(plain, free, IMAGES), atol=1e-5)
    chex.assert_shape(apply(model, variables, IMAGES), (3, 5))


def test_each_layer_has_the_mechanism_of_its_place():
    _, variables = build(attention="efficient|dot_product")
    assert [sorted(variables["params"][f"block_{i}"]["attention"]) for i in (0, 1)] == [
        ["out", "query"],
        ["key", "out", "query", "value"],
    ]


@pytest.mark.more
@pytest.mark.parametrize("place", once(["embedding_dropout", "dropout", "attention_dropout"], ["attention_dropout"]))
def test_dropout_is_off_in_evaluation_and_keyed_in_training(place):
    model, variables = build(**{place: 0.2})
    plain, _ = build()

    def train(seed):
        return apply(model, variables, IMAGES, train=True, rngs={"dropout": jax.random.key(seed)})

    chex.assert_trees_all_equal(apply(model, variables, IMAGES), apply(plain, variables, IMAGES))
    chex.assert_trees_all_equal(train(0), train(0))
    assert jnp.abs(train(0) - train(1)).max() > 1e-3


def test_bfloat16_computes_in_it_and_keeps_float32_parameters():
    model, variables = build()
    low = ViT(CONFIG, classes=5, length=17, dtype=jnp.bfloat16)
    out = apply(low, variables, IMAGES)
    assert out.dtype == jnp.float32
    chex.assert_trees_all_close(out, apply(model, variables, IMAGES), atol=0.1)
    initial = jax.eval_shape(low.init, jax.random.key(0), IMAGES)
    assert {leaf.dtype for leaf in jax.tree.leaves(initial)} == {jnp.dtype("float32")}


def test_sinusoids_are_vaswanis():
    table = np.asarray(sinusoids(7, 6))
    for position in range(7):
        for i in range(3):
            angle = position / 10_000 ** (2 * i / 6)
            np.testing.assert_allclose(table[position, 2 * i : 2 * i + 2], [np.sin(angle), np.cos(angle)], atol=1e-6)


@pytest.mark.more
def test_smaller_images_use_the_leading_block_and_larger_ones_name_both_lengths():
    model, variables = build(positions="sinusoidal")
    chex.assert_shape(apply(model, variables, IMAGES[:, :4]), (3, 5))
    with pytest.raises(UsageError, match=r"at most 17 tokens, but this one has 26"):
        apply(model, variables, jnp.zeros((1, 10, 10, 3)))
    model, variables = build(attention="efficient")
    with pytest.raises(UsageError, match=r"learned for 17 tokens, but this sequence has 26"):
        apply(model, variables, jnp.zeros((1, 10, 10, 3)))


@pytest.mark.more
@pytest.mark.parametrize("spec", ["dot_product", "optimised", "efficient", "super", "super(per_head=True)"])
def test_analytic_flops_equal_xlas_count(spec):
    """XLA counts products as 2mnk; LayerNorms, residuals and the like are the small rest that is left out."""
    model, variables = build(
        attention=spec, width=128, mlp=256, heads=4, implementation="xla", activation="relu", positions="none"
    )
    image = IMAGES[:1]
    counted = jax.jit(model.apply).lower(variables, image).compile().cost_analysis()["flops"]
    analytic = model.config.cost((8, 8, 3), 5).flops
    assert 0.97 < analytic / counted <= 1.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": 3}, r"model.heads=3 does not divide model.width=16"),
        ({"attention": "supr"}, r"Did you mean 'super'"),
        ({"implementation": "cuda"}, r"Unknown model.implementation 'cuda'"),
        ({"implementation": "xla|"}, r"Unknown model.implementation ''"),
        ({"norm": "prre"}, r"Unknown model.norm 'prre'\. Did you mean 'pre'"),
        ({"pool": "max"}, r"Unknown model.pool 'max'"),
        ({"positions": "rotary"}, r"Unknown model.positions"),
        ({"activation": "gelo"}, r"Did you mean 'gelu'"),
        ({"remat": "all"}, r"Unknown model.remat"),
    ],
)
def test_mistakes_are_one_sentence(change, message):
    with pytest.raises(UsageError, match=message):
        dataclasses.replace(CONFIG, **change)


def test_a_patch_that_does_not_divide():
    with pytest.raises(UsageError, match=r"model.patch=3 does not divide images of 8x8"):
        dataclasses.replace(CONFIG, patch=3).tokens((8, 8, 3))


def test_gelu_and_its_gradient_are_flaxs(x64):
    x = jnp.linspace(-9, 9, 1001)
    exact = partial(nn.gelu, approximate=False)
    chex.assert_trees_all_close(gelu(x), exact(x), atol=1e-14)
    chex.assert_trees_all_close(jax.vmap(jax.grad(gelu))(x), jax.vmap(jax.grad(exact))(x), atol=1e-14)
