"""What the recurrences of several changes a token are in special cases."""

import chex
import jax.numpy as jnp
import numpy as np
import pytest

import attention
from attention import Mask
from attention.check.subject import HEADS, LENGTH, WIDTH, inputs
from attention.parameters import Sizes
from attention.recurrences.linear import Delta
from attention.recurrences.log_linear import LogLinear
from attention.recurrences.mamba import Mamba3
from attention.recurrences.product import DeltaProduct
from attention.recurrences.rwkv import RWKV7
from attention.recurrences.selective import GatedDelta2, KimiDelta

pytestmark = [pytest.mark.usefixtures("x64"), pytest.mark.xdist_group(__name__)]


def drawn(mixer):
    draw, sizes = np.random.default_rng(0).standard_normal, Sizes(HEADS * WIDTH, HEADS, WIDTH, LENGTH)
    return {name: jnp.asarray(draw(declared.shape)) for name, declared in mixer.parameters(sizes).items()}


def attend(mixer, weights):
    arrays = inputs()
    source = arrays[1].reshape(2, LENGTH, -1)
    return attention.attend(mixer, weights, *arrays, source=source, mask=Mask(causal=True), implementation="chunked")


def test_two_gates_that_are_one_strength_are_kimi_delta_attention():
    weights = drawn(KimiDelta(2.0))
    spread = jnp.broadcast_to(weights["strength_kernel"][..., None], (HEADS * WIDTH, HEADS, WIDTH))
    gates = {"erase_kernel": spread, "write_kernel": spread}
    own = {name: x for name, x in weights.items() if name != "strength_kernel"}
    chex.assert_trees_all_close(attend(GatedDelta2(), own | gates), attend(KimiDelta(), weights), rtol=0, atol=1e-12)


def test_a_product_of_one_step_is_the_delta_rule():
    weights = drawn(DeltaProduct(1))
    one = {"strength_kernel": weights["strength_kernel"][..., 0], "strength_bias": jnp.zeros(HEADS)}
    chex.assert_trees_all_close(attend(DeltaProduct(1, 1.5), weights), attend(Delta(1.5), one), rtol=0, atol=1e-12)


def test_more_steps_write_what_tokens_in_turn_would():
    """Three steps a token, with the layer's key and value and two more, are three tokens of the delta rule."""
    query, key, value = inputs()
    weights, source = drawn(DeltaProduct(3)), key.reshape(2, LENGTH, -1)
    more = [jnp.einsum("btd,dnsh->btsnh", source, weights[f"more_{part}_kernel"]) for part in ("keys", "values")]
    strength = 1 / (1 + jnp.exp(-jnp.einsum("btd,dns->btsn", source, weights["strength_kernel"])))
    three = [jnp.concatenate([x[:, :, None], y], 2) for x, y in zip((key, value), more, strict=True)]
    keys, values = (x.reshape(2, 3 * LENGTH, HEADS, WIDTH) for x in three)
    out = attention.delta_attention(
        jnp.repeat(query, 3, 1), keys, values, strength.reshape(2, 3 * LENGTH, HEADS), mask=Mask(causal=True)
    )
    chex.assert_trees_all_close(attend(DeltaProduct(3, 1.0), weights), out[:, 2::3], rtol=0, atol=1e-12)


@pytest.mark.parametrize("mixer", [GatedDelta2(), DeltaProduct(3), RWKV7(), Mamba3(), LogLinear()])
def test_gates_that_saturate_stay_finite(mixer):
    weights = {name: 100 * x for name, x in drawn(mixer).items()}
    assert np.isfinite(attend(mixer, weights)).all()
