"""Neural Attention against outputs and gradients of the code that DiGiugno published (`data/neural_d*_causal.npz`)."""

from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import Mask, neural_attention
from tests.sizes import once

DATA = Path(__file__).parent / "data"


def layer(weights, x, implementation):
    """The published layer: bias-free projections, a pairwise MLP without 1/√d, causal softmax."""
    batch, length, width = x.shape
    columns = (x @ weights["to_qkv.weight"].T).reshape(batch, length, 8, 3, 4)  # width of a head, q k v, heads
    q, k, v = (columns[..., part, :].swapaxes(-1, -2) for part in range(3))
    linear = lambda name: (weights[f"{name}.weight"].T, weights[f"{name}.bias"])  # noqa: E731
    layers = [linear(f"linear{i}") for i in (1, 2, 3)]
    down = [linear("q_proj"), linear("k_proj")]
    out = neural_attention(q, k, v, layers, down, mask=Mask(causal=True), implementation=implementation)
    return out.reshape(batch, length, width) @ weights["W_out.weight"].T


@pytest.mark.parametrize("implementation", once(["reference", "xla", "chunked"], ["chunked"]))
@pytest.mark.parametrize("dim", once([2, 4], [2]))
def test_neural_attention_is_the_published_code(x64, dim, implementation):
    data = np.load(DATA / f"neural_d{dim}_causal.npz")
    weights = {name[2:]: jnp.asarray(data[name]) for name in data.files if name.startswith("w.")}
    x = jnp.asarray(data["x"])

    def squares(weights, x):
        y = layer(weights, x, implementation)
        return jnp.sum(y**2), y

    (gradients, dx), y = jax.jit(jax.grad(squares, argnums=(0, 1), has_aux=True))(weights, x)
    published = {name[2:]: data[name] for name in data.files if name.startswith("g.")}
    assert set(published) == set(gradients)
    chex.assert_trees_all_close(y, data["y"], rtol=0, atol=1e-10)
    chex.assert_trees_all_close(dx, data["dx"], rtol=0, atol=1e-10)
    chex.assert_trees_all_close(gradients, published, rtol=0, atol=1e-10)
    assert all(np.abs(g).max() > 1 for name, g in published.items() if "bias" not in name)
