"""The MLP of a block against its equation."""

import chex
import jax
import jax.numpy as jnp

from models.layers.blocks import Mlp


def test_a_gated_mlp_multiplies_its_activated_layer_by_another():
    """(swish(x W_g + b_g) ⊙ (x W_u + b_u)) W_d + b_d (Shazeer 2020, eq. 6, with biases)."""
    x = jax.random.normal(jax.random.key(0), (2, 3, 4))
    mlp = Mlp(5, "swish", gated=True)
    shapes = jax.eval_shape(lambda: mlp.init(jax.random.key(1), x, train=False)["params"])
    params = jax.tree.map(lambda leaf: jax.random.normal(jax.random.key(leaf.size), leaf.shape), shapes)
    dense = lambda name, x: jnp.dot(x, params[name]["kernel"]) + params[name]["bias"][None, None]  # noqa: E731
    expected = dense("down", jax.nn.silu(dense("gate", x)) * dense("up", x))
    chex.assert_trees_all_close(mlp.apply({"params": params}, x, train=False), expected, atol=1e-5)
