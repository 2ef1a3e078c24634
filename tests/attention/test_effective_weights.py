"""The weights of mechanisms that keep a running state: how much of each value is in each output."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import Mask
from attention.check.subject import HEADS, LENGTH, WIDTH, causal_mask, inputs
from tests.attention.cases import CASES
from tests.sizes import once

pytestmark = [pytest.mark.usefixtures("x64"), pytest.mark.xdist_group(__name__)]
KEPT = ("linear", "delta", "retention", "gated_delta")
APART = ("gated_delta2", "delta_product")  # the numbers of a value have gates, or other values are written too


def weights_of(name, mask, arrays):
    case = CASES[name]
    return jax.jit(lambda *arrays: case.call(case.weights(), *arrays, mask=mask, return_weights=True))(*arrays)


MASKS = {"all": Mask(), "both": causal_mask(), "off": Mask(causal=True, query_offset=2)}


@pytest.mark.parametrize("mask", once(MASKS, ["both"]))
@pytest.mark.parametrize("name", KEPT)
def test_they_make_the_output_and_hide_what_the_mask_hides(name, mask):
    arrays, mask = inputs(key_heads=2) if name == "linear" else inputs(), MASKS[mask]
    out, found = weights_of(name, mask, arrays)
    assert found.shape == (2, HEADS, LENGTH, LENGTH)
    made = jnp.einsum("bnts,bsnh->btnh", found, jnp.repeat(arrays[2], HEADS // arrays[2].shape[2], 2))
    if name == "retention":  # whose output is normed after
        made = made / jnp.sqrt(jnp.mean(made**2, -1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(made, out, atol=1e-10)
    allowed = mask.materialise(LENGTH, LENGTH, 4)
    assert allowed is None or not np.asarray(jnp.where(allowed, 0.0, found)).any()


@pytest.mark.parametrize("name", once(["delta", "state_space", "gated_delta", *APART], ["delta", "gated_delta"]))
def test_they_are_the_derivative_of_outputs_by_values(name):
    """Where the numbers of a value are not written alike, the mean over them."""
    query, key, value = (x[:1] for x in inputs())
    _, found = weights_of(name, Mask(causal=True), (query, key, value))
    case = CASES[name]
    output = lambda value: case.call(case.weights(), query, key, value, mask=Mask(causal=True))  # noqa: E731
    slopes = jax.jit(jax.jacobian(output))(value)[0, :, :, :, 0]  # of (T, N, V) by (S, N, V)
    for head in range(HEADS):
        own = np.asarray(slopes[:, head][:, :, :, head])
        expected = np.einsum("ij,tu->itju", found[0, head], np.eye(WIDTH))
        if name in APART:
            own, expected = np.einsum("itjt->ij", own) / WIDTH, found[0, head]
        np.testing.assert_allclose(own, expected, atol=1e-12)
