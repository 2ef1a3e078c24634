"""Every row in the examples of docs/own_model.md: it runs in Linen and in NNX, or one sentence says what to do."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from flax.nnx import bridge

from attention import Mask, UsageError
from attention.recurrences.recurrence import Recurrence
from models.layers import MultiHeadAttention
from models.mechanisms import MECHANISMS
from tests.sizes import once

LENGTH, WIDTH, HEADS = 16, 64, 8
CAUSAL = jnp.tril(jnp.ones((1, 1, LENGTH, LENGTH), bool))
KEPT = ("neural", "super", "gated_delta", "forgetting")
BY_PLACE = [name for name, row in MECHANISMS.items() if isinstance(row.score, Recurrence) or row.align]  # no dense mask
TABLES = ("super", "positional", "positional_factorised")  # of a length


def ways():
    """A layer and a call of it, in Linen and in NNX."""
    x = jax.random.normal(jax.random.key(0), (2, LENGTH, WIDTH))

    def linen(layer, mask):
        variables = layer.init(jax.random.key(1), x, mask=mask)
        return layer.apply(variables, x, mask=mask)

    def in_nnx(layer, mask):
        return bridge.ToNNX(layer, rngs=nnx.Rngs(0)).lazy_init(x, mask=mask)(x, mask=mask)

    return linen, in_nnx


@pytest.mark.parametrize("way", ways(), ids=["linen", "nnx"])
@pytest.mark.parametrize("name", once(MECHANISMS, KEPT))
def test_a_name_runs_as_the_page_says(name, way):
    layer = MultiHeadAttention(name, heads=HEADS, length=LENGTH if name in TABLES else 0)
    out = way(layer, Mask(causal=True))
    assert out.shape == (2, LENGTH, WIDTH)
    assert jnp.isfinite(out).all()
    if name not in (*BY_PLACE, "forgetting", "path"):
        assert jnp.allclose(way(layer, CAUSAL), out, atol=1e-5)


@pytest.mark.parametrize("name", [*BY_PLACE, "forgetting", "path"])
def test_what_takes_no_array_as_a_mask_says_what_to_give(name):
    layer = MultiHeadAttention(name, heads=HEADS, length=LENGTH)
    with pytest.raises(UsageError, match=r"Mask\(causal=True\)|causal mask"):
        ways()[0](layer, CAUSAL)


@pytest.mark.parametrize("name", TABLES)
def test_a_table_without_a_length_says_so(name):
    with pytest.raises(UsageError, match="length"):
        ways()[0](MultiHeadAttention(name, heads=HEADS), Mask(causal=True))
