"""Rotary positions: what they leave as it is, their published scalings, and scores that know only differences."""

import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import Mask, UsageError
from attention.scores.rotary import Rotary
from models.layers.multi_head import MultiHeadAttention
from tests.sizes import more

WIDTH, HEADS, LENGTH = 16, 2, 6


def rates(text, width=64, base=10_000.0):
    """The angle of each pair from one position to the next, read off turned ones."""
    ones = jnp.concatenate([jnp.ones((2, 1, width // 2)), jnp.zeros((2, 1, width // 2))], axis=-1)
    low, high = jnp.split(Rotary(base=base, scaling=text).turn(ones, 0)[1, 0], 2)
    return np.arctan2(high, low), np.hypot(low, high)


def plain(width=64, base=10_000.0):
    return base ** (-np.arange(0, width, 2) / width)


def test_a_part_of_a_head_turns_and_the_rest_stays():
    x = jax.random.normal(jax.random.key(0), (2, 5, 3, 8))
    half = Rotary(fraction=0.5).turn(x, 3)
    chex.assert_trees_all_equal(half[..., 4:], x[..., 4:])
    chex.assert_trees_all_close(half[..., :4], Rotary().turn(x[..., :4], 3), rtol=1e-6)


def llama3(rate, factor=8, low=1, high=4, original=8192):
    wave = 2 * math.pi / rate
    if wave < original / high:
        return rate
    if wave > original / low:
        return rate / factor
    smooth = (original / wave - low) / (high - low)
    return (1 - smooth) * rate / factor + smooth * rate


def yarn(index, rate):
    """Between pairs that turn 32 times and once within the pretraining, rounded outwards, the rates are mixed."""
    first, last = (64 * math.log(2048 / (turns * 2 * math.pi)) / (2 * math.log(10_000)) for turns in (32, 1))
    first, last = math.floor(first), math.ceil(last)
    mix = min(max((index - first) / (last - first), 0), 1)
    return rate * (1 - mix) + rate / 16 * mix


@pytest.mark.parametrize(
    ("scaling", "size", "expected", "gain"),
    [
        ("linear(factor=4)", (64, 1e4), plain() / 4, 1),
        ("ntk(factor=4)", (64, 1e4), plain(base=1e4 * 4 ** (64 / 62)), 1),  # the base is b · s^(W / (W − 2))
        ("llama3(factor=8, original=8192)", (128, 5e5), [llama3(rate) for rate in plain(128, 5e5)], 1),
        ("yarn(factor=16, original=2048)", (64, 1e4), [*map(yarn, range(32), plain())], 0.1 * math.log(16) + 1),
    ],
)
def test_a_scaling_is_as_it_is_published(scaling, size, expected, gain):
    found, gains = rates(scaling, *size)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-7)
    np.testing.assert_allclose(gains, gain, rtol=1e-5)


@pytest.mark.parametrize(
    "spec",
    [
        *("dot_product", "dot_product(latent=3, rotary=4)"),
        *map(more, ("cosine", "differential", "dot_product(kv_heads=1)")),
    ],
)
def test_products_of_turned_tokens_know_only_differences_of_positions(spec):
    """Also of a mechanism that splits its heads: each part turns by itself."""
    layer = MultiHeadAttention(spec, HEADS, LENGTH, rotary=Rotary(base=10.0))
    x = jax.random.normal(jax.random.key(0), (1, LENGTH, WIDTH))
    params = jax.jit(layer.init)(jax.random.key(1), x)
    apply = jax.jit(layer.apply)
    mask = Mask(dense=jnp.tril(jnp.ones((1, 1, LENGTH, LENGTH), bool)))
    whole = apply(params, x, mask=mask)
    later = jnp.concatenate([jnp.zeros((1, 3, WIDTH)), x[:, :-3]], axis=1)  # three positions later
    hidden = mask.dense & (jnp.arange(LENGTH) >= 3)[None, None, None]  # nothing before them
    shifted = apply(params, later, mask=Mask(dense=hidden))
    chex.assert_trees_all_close(shifted[:, 3:], whole[:, :-3], atol=1e-5)
    mirrored = apply(params, x[:, ::-1], mask=mask)[:, ::-1]
    assert not np.allclose(mirrored, whole, atol=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base": 1.0}, "base must be above 1, but it is 1.0"),
        ({"scaling": "yarm(factor=2)"}, "Unknown rotary scaling 'yarm'.*yarn"),
        ({"scaling": "llama3(low=4, high=4)"}, "low=4 of a rotary scaling must be below high=4"),
        ({"fraction": 0.5}, "3 of a head's 6 are to turn"),  # an odd part
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        Rotary(**options).turn(jnp.zeros((1, 1, 6)), 0)
