"""Channel and spatial attention against their papers' equations, in NumPy."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import UsageError
from attention.channel import (
    Cbam,
    Spatial,
    SqueezeExcitation,
    cbam,
    channel_attention,
    spatial_attention,
    squeeze_excitation,
)

H, W, C, R = 5, 4, 6, 3


def inputs(dtype=jnp.float32):
    keys = jax.random.split(jax.random.key(0), 4)
    shapes = {"x": (2, H, W, C), "down": (C, R), "up": (R, C), "kernel": (3, 3, 2, 1)}
    return {n: jax.random.normal(key, s).astype(dtype) for key, (n, s) in zip(keys, shapes.items(), strict=True)}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def mlp(z, down, up):
    return np.maximum(z @ down, 0) @ up


def squeeze_excitation_by_hand(image, down, up):
    """Hu et al. 2018, eq. 2 to 4."""
    return image * sigmoid(mlp(image.mean((0, 1)), down, up))


def channel_by_hand(image, down, up):
    """Woo et al. 2018, eq. 2."""
    return image * sigmoid(mlp(image.mean((0, 1)), down, up) + mlp(image.max((0, 1)), down, up))


def spatial_by_hand(image, kernel):
    """Woo et al. 2018, eq. 3."""
    side, around = len(kernel), len(kernel) // 2
    maps = np.pad(np.stack([image.mean(-1), image.max(-1)], -1), [(around, around), (around, around), (0, 0)])
    total = sum(maps[i : i + H, j : j + W] @ kernel[i, j, :, 0] for i in range(side) for j in range(side))
    return image * sigmoid(total)[..., None]


FUNCTIONS = {
    "squeeze_excitation": (squeeze_excitation, ("down", "up"), squeeze_excitation_by_hand),
    "channel": (channel_attention, ("down", "up"), channel_by_hand),
    "spatial": (spatial_attention, ("kernel",), spatial_by_hand),
    "cbam": (cbam, ("down", "up", "kernel"), lambda x, d, u, k: spatial_by_hand(channel_by_hand(x, d, u), k)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_it_is_its_papers_equations(name, x64):
    function, weights, by_hand = FUNCTIONS[name]
    given = inputs(jnp.float64)
    x, weights = given["x"], [given[w] for w in weights]
    expected = np.stack([by_hand(np.asarray(image), *map(np.asarray, weights)) for image in x])
    found = function(x[None], *weights)  # two batch axes, then none
    assert found.dtype == jnp.float64
    chex.assert_trees_all_close(found, expected[None], atol=1e-12)
    chex.assert_trees_all_close(function(x[0], *weights), expected[0], atol=1e-12)


@pytest.mark.parametrize("name", ["squeeze_excitation", "channel", "spatial"])
def test_statistics_are_float32_and_results_in_the_inputs_dtype(name):
    function, weights, _ = FUNCTIONS[name]
    given = inputs(jnp.bfloat16)
    arrays = [given["x"], *(given[w] for w in weights)]
    exact = function(*(array.astype(jnp.float32) for array in arrays))
    chex.assert_trees_all_equal(function(*arrays), exact.astype(jnp.bfloat16))


def test_gradients_are_finite_where_nothing_differs(x64):
    """Equal numbers have no one maximum, and zeros are where ReLU has no slope."""
    given = inputs(jnp.float64)
    gradient = jax.jit(jax.grad(lambda *arrays: jnp.sum(jnp.sin(cbam(*arrays))), argnums=range(4)))
    for x in (jnp.zeros_like(given["x"]), jnp.ones_like(given["x"]), 1e30 * given["x"]):
        chex.assert_tree_all_finite(gradient(x, given["down"], given["up"], given["kernel"]))


@pytest.mark.parametrize("piece", [SqueezeExcitation(2), Spatial(3), Cbam(2, 3)])
def test_options_declare_the_weights_that_the_functions_take(piece):
    given = inputs()
    params = {"down_kernel": given["down"], "up_kernel": given["up"], "spatial_kernel": given["kernel"]}
    shapes = {name: declared.shape for name, declared in piece.parameters(C).items()}
    assert shapes == {name: params[name].shape for name in shapes}
    function = {SqueezeExcitation: squeeze_excitation, Spatial: spatial_attention, Cbam: cbam}[type(piece)]
    chex.assert_trees_all_equal(piece(params, given["x"]), function(given["x"], *(params[name] for name in shapes)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda of: Spatial(4), "The option kernel must be at least 1 and odd, but it is 4"),
        (lambda of: SqueezeExcitation(4).parameters(6), "The option ratio=4 does not divide 6 channels"),
        (
            lambda of: channel_attention(of["x"], of["up"], of["down"]),
            r"The weight down must have the shape \(6, any\), but it has \(3, 6\)",
        ),
        (
            lambda of: spatial_attention(of["x"], of["kernel"][..., :1, :]),
            r"The weight kernel must have the shape \(3, 3, 2, 1\)",
        ),
        (lambda of: spatial_attention(of["x"], of["kernel"][:2, :2]), "must have an odd side, not 2"),
    ],
)
def test_mistakes_are_one_sentence(make, message, unchecked_shapes):
    with pytest.raises(UsageError, match=message):
        make(inputs())
