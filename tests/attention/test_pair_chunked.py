"""The pairwise family in tiles: equal to the definitions; both families with memory that does not grow with T·S."""

import itertools

import chex
import jax
import jax.numpy as jnp
import pytest

from attention import Mask, dot_product_attention, neural_attention
from attention.kernels import loops
from attention.kernels.loops import plan
from tests.attention.cases import MASKS, outcome
from tests.sizes import more, once

T, S, HEADS, WIDTH = 20, 27, 4, 6
LATE = Mask(causal=True, query_offset=4)


@pytest.fixture
def small_tiles(monkeypatch):
    """Tiles that divide neither length, one sequence at a time."""
    monkeypatch.setattr(loops, "rule", lambda call, score, units: plan.Tiling(4, 3))


def inputs(hidden=(4, 3), *, per_head=False, key_heads=HEADS, batch=2):
    """Query, key, value and layers."""
    draw = iter(jax.random.split(jax.random.key(0), 20))
    normal = lambda *shape: jax.random.normal(next(draw), shape)  # noqa: E731
    lead = (HEADS,) if per_head else ()
    widths = [2 * WIDTH, *hidden, 1]
    arrays = normal(batch, T, HEADS, WIDTH), normal(batch, S, key_heads, WIDTH), normal(batch, S, key_heads, 5)
    return (*arrays, [(normal(*lead, m, n), normal(*lead, n)) for m, n in itertools.pairwise(widths)])


def check(arrays, bias=None, *, other="xla", rate=0.0, **options):
    """Output and all gradients are those of another implementation."""
    options |= {"dropout_rate": rate, "dropout_key": jax.random.key(5)}
    found, expected = (
        outcome(lambda x, b, way=way: neural_attention(*x, bias=b, implementation=way, **options), arrays, bias)
        for way in ("chunked", other)
    )
    chex.assert_trees_all_close(found, expected, rtol=0, atol=1e-10)


DENSE = jax.random.bernoulli(jax.random.key(9), 0.6, (2, HEADS, T, S)).at[:, :, 2].set(False)
ALL_MASKS = MASKS | {"dense": Mask(dense=DENSE), "dense of keys": Mask(dense=DENSE[:1, :1, :1])}


def bias(*shape):
    return jax.random.normal(jax.random.key(3), shape)


@pytest.mark.usefixtures("small_tiles", "x64")
@pytest.mark.parametrize("mask", once(ALL_MASKS, ["causal window"]))
def test_equals_the_reference_under_every_mask(mask):
    check(inputs(), other="reference", mask=ALL_MASKS[mask])


@pytest.mark.usefixtures("small_tiles", "x64")
@pytest.mark.parametrize("shape", [(1, HEADS, T, S), more((2, 1, 1, S))])
def test_bias_and_its_gradient_with_dropout(shape):
    check(inputs(), bias(*shape), mask=LATE, rate=0.3)


@pytest.mark.more
@pytest.mark.usefixtures("small_tiles", "x64")
@pytest.mark.parametrize(("hidden", "per_head"), [((4, 3), True), ((9, 7), True), ((40,), False), ((3, 2, 4), False)])
def test_depths_unit_by_unit_and_as_products(hidden, per_head):
    check(inputs(hidden, per_head=per_head, key_heads=2), activation="gelu", mask=LATE, rate=0.2)


@pytest.mark.more
@pytest.mark.usefixtures("x64")
def test_sequences_together_change_nothing(monkeypatch):
    monkeypatch.setattr(loops, "rule", lambda call, score, units: plan.Tiling(T, S, 3))
    check(inputs(batch=6), bias(1, HEADS, T, S), mask=Mask(key_lengths=jnp.arange(6) + 3))


def temporary_memory(length, attend, *more):
    array = jax.ShapeDtypeStruct((1, length, 8, 16), jnp.float32)
    gradient = jax.grad(lambda *arrays: attend(*arrays).sum(), argnums=(0, 1, 2))
    return jax.jit(gradient).lower(array, array, array, *more).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("family", ["pair", "dot"])
def test_memory_grows_with_the_length_and_not_its_square(family):
    def attend(query, key, value):
        segments = jnp.arange(query.shape[1])[None] // 100
        mask = Mask(causal=True, query_segments=segments, key_segments=segments)
        if family == "dot":
            return dot_product_attention(query, key, value, mask=mask, implementation="chunked")
        layers = [(jnp.ones((32, 2)), jnp.ones(2)), (jnp.ones((2, 1)), jnp.ones(1))]
        return neural_attention(query, key, value, layers, mask=mask, implementation="chunked")

    small, large = (temporary_memory(length, attend) for length in (2048, 8192))
    assert large < 5 * small
    assert large < 8192 * 8192  # bytes: not even booleans of all pairs
