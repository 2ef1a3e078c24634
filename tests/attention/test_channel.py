"""Channel and spatial attention against their papers' equations, written with loops over single numbers."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

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
    hidden = [max(0.0, sum(z[c] * down[c, r] for c in range(C))) for r in range(R)]
    return np.array([sum(hidden[r] * up[r, c] for r in range(R)) for c in range(C)])


def pooled(image, channel):
    values = [image[i, j, channel] for i in range(H) for j in range(W)]
    return sum(values) / len(values), max(values)


def by_channel(image, weights):
    return np.stack([image[:, :, c] * weights[c] for c in range(C)], axis=-1)


def squeeze_excitation_loops(image, down, up):
    """Hu et al. 2018, eq. 2 to 4."""
    return by_channel(image, sigmoid(mlp([pooled(image, c)[0] for c in range(C)], down, up)))


def channel_loops(image, down, up):
    """Woo et al. 2018, eq. 2."""
    means, maxima = zip(*(pooled(image, c) for c in range(C)), strict=True)
    return by_channel(image, sigmoid(mlp(means, down, up) + mlp(maxima, down, up)))


def spatial_loops(image, kernel):
    """Woo et al. 2018, eq. 3."""
    side, out = len(kernel), np.zeros_like(image)
    for i in range(H):
        for j in range(W):
            total = 0.0
            for di in range(side):
                for dj in range(side):
                    row, column = i + di - side // 2, j + dj - side // 2
                    if 0 <= row < H and 0 <= column < W:
                        position = image[row, column]
                        total += kernel[di, dj, 0, 0] * sum(position) / C + kernel[di, dj, 1, 0] * max(position)
            out[i, j] = image[i, j] * sigmoid(total)
    return out


FUNCTIONS = {
    "squeeze_excitation": (squeeze_excitation, ("down", "up"), squeeze_excitation_loops),
    "channel": (channel_attention, ("down", "up"), channel_loops),
    "spatial": (spatial_attention, ("kernel",), spatial_loops),
    "cbam": (cbam, ("down", "up", "kernel"), lambda x, d, u, k: spatial_loops(channel_loops(x, d, u), k)),
}


def jitted(name):
    function, *rest = FUNCTIONS[name]
    return jax.jit(function), *rest


EACH = pytest.mark.parametrize("name", FUNCTIONS)


@EACH
def test_it_is_its_papers_equations(name, x64):
    function, weights, loops = jitted(name)
    given = inputs(jnp.float64)
    x, weights = given["x"], [given[w] for w in weights]
    expected = np.stack([loops(np.asarray(image), *map(np.asarray, weights)) for image in x])
    found = function(x[None], *weights)  # two batch axes, then none
    assert found.dtype == jnp.float64
    chex.assert_trees_all_close(found, expected[None], atol=1e-12)
    chex.assert_trees_all_close(function(x[0], *weights), expected[0], atol=1e-12)


@EACH
def test_statistics_are_float32_and_results_in_the_inputs_dtype(name):
    function, weights, _ = jitted(name)
    given = inputs(jnp.bfloat16)
    arrays = [given["x"], *(given[w] for w in weights)]
    found = function(*arrays)
    assert found.dtype == jnp.bfloat16
    exact = function(*(array.astype(jnp.float32) for array in arrays))
    if name == "cbam":  # which rounds between its two parts, too
        chex.assert_trees_all_close(found.astype(jnp.float32), exact, rtol=0.02, atol=0.02)
    else:
        chex.assert_trees_all_equal(found, exact.astype(jnp.bfloat16))


@EACH
def test_gradients_are_finite_where_nothing_differs(name, x64):
    """Equal numbers have no one maximum, and zeros are where ReLU has no slope."""
    function, weights, _ = FUNCTIONS[name]
    given = inputs(jnp.float64)
    gradient = jax.jit(jax.grad(lambda *a: jnp.sum(jnp.sin(function(*a))), argnums=range(1 + len(weights))))
    for x in (given["x"], jnp.zeros_like(given["x"]), jnp.ones_like(given["x"]), 1e30 * given["x"]):
        chex.assert_tree_all_finite(gradient(x, *(given[w] for w in weights)))
    arrays = (given["x"], *(given[w] for w in weights))
    plain = jax.jit(lambda *arrays: function(*map(jnp.asarray, arrays)))
    check_grads(plain, arrays, order=1, modes="rev", atol=1e-4, rtol=1e-4)


PIECES = {
    "squeeze_excitation": (SqueezeExcitation(2), ("down_kernel", "up_kernel")),
    "spatial": (Spatial(3), ("spatial_kernel",)),
    "cbam": (Cbam(2, 3), ("down_kernel", "up_kernel", "spatial_kernel")),
}


@pytest.mark.parametrize("name", PIECES)
def test_options_declare_the_weights_that_the_functions_take(name):
    piece, names = PIECES[name]
    given, short = inputs(), {"down": "down_kernel", "up": "up_kernel", "kernel": "spatial_kernel"}
    function, weights, _ = FUNCTIONS[name]
    params = {short[w]: given[w] for w in weights}
    assert {n: p.shape for n, p in piece.parameters(C).items()} == {n: params[n].shape for n in names}
    found = piece(params, given["x"])
    chex.assert_trees_all_equal(found, function(given["x"], *(given[w] for w in weights)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SqueezeExcitation(0), "The option ratio must be at least 1, but it is 0"),
        (lambda: Cbam(ratio=2.0), "The option ratio must be a whole number, but it is 2.0"),
        (lambda: Spatial(4), "The option kernel must be at least 1 and odd, but it is 4"),
        (lambda: Cbam(kernel=True), "The option kernel must be a whole number, but it is True"),
        (lambda: SqueezeExcitation(4).parameters(6), "The option ratio=4 does not divide 6 channels"),
    ],
)
def test_wrong_options_are_one_sentence(make, message, unchecked_shapes):
    with pytest.raises(UsageError, match=message):
        make()


def test_weights_that_do_not_fit_are_named(unchecked_shapes):
    given = inputs()
    with pytest.raises(UsageError, match=r"The weight up must have the shape \(3, 6\), but it has \(6, 3\)"):
        squeeze_excitation(given["x"], given["down"], given["down"])
    with pytest.raises(UsageError, match=r"The weight down must have the shape \(6, any\), but it has \(3, 6\)"):
        channel_attention(given["x"], given["up"], given["down"])
    with pytest.raises(UsageError, match=r"The weight kernel must have the shape \(3, 3, 2, 1\)"):
        spatial_attention(given["x"], given["kernel"][..., :1, :])
    with pytest.raises(UsageError, match="must have an odd side, not 2"):
        spatial_attention(given["x"], given["kernel"][:2, :2])
