"""The pairwise and dot families in tiles: equal to the definitions, with memory that does not grow with T·S."""

import itertools

import chex
import jax
import jax.numpy as jnp
import pytest

from attention import Mask, dot_product_attention, neural_attention
from attention.kernels import loops
from attention.kernels.loops import plan
from tests.sizes import more, once

T, S, HEADS, WIDTH = 7, 11, 4, 6
LATE = Mask(causal=True, query_offset=4)


@pytest.fixture
def small_tiles(monkeypatch):
    """Tiles that divide neither length, one sequence at a time."""
    monkeypatch.setattr(loops, "rule", lambda call, score, units: plan.Tiling(4, 3))


def inputs(hidden=(4, 3), *, per_head=False, key_heads=HEADS, queries=T, keys=S, batch=2, dtype=jnp.float64):
    """Query, key, value and layers."""
    draw = iter(jax.random.split(jax.random.key(0), 20))
    normal = lambda *shape: jax.random.normal(next(draw), shape, dtype)  # noqa: E731
    lead = (HEADS,) if per_head else ()
    widths = [2 * WIDTH, *hidden, 1]
    arrays = (
        normal(batch, queries, HEADS, WIDTH),
        normal(batch, keys, key_heads, WIDTH),
        normal(batch, keys, key_heads, 5),
    )
    return (*arrays, [(normal(*lead, m, n), normal(*lead, n)) for m, n in itertools.pairwise(widths)])


def outcome(implementation, arrays, bias=None, *, rate=0.0, **options):
    """Output and all gradients of a generic scalar of it."""

    def scalar(arrays, bias):
        key = jax.random.key(5) if rate else None
        options_ = options | {"bias": bias, "dropout_rate": rate, "dropout_key": key, "implementation": implementation}
        out = (neural_attention if len(arrays) == 4 else dot_product_attention)(*arrays, **options_)
        return jnp.sum(jnp.sin(out)), out

    return jax.jit(jax.value_and_grad(scalar, argnums=(0, 1), has_aux=True))(arrays, bias)


def check(arrays, *more, other="xla", atol=1e-10, **options):
    got, expected = (outcome(name, arrays, *more, **options) for name in ("chunked", other))
    chex.assert_trees_all_close(got, expected, rtol=0, atol=atol)


MASKS = {
    "none": lambda: Mask(),
    "causal": lambda: Mask(causal=True, query_offset=S - T),
    "causal before the keys": lambda: Mask(causal=True, query_offset=-2),
    "traced offset": lambda: Mask(causal=True, query_offset=jnp.int32(3)),
    "window": lambda: Mask(window=3),
    "causal window": lambda: Mask(causal=True, window=2, query_offset=1),
    "lengths": lambda: Mask(key_lengths=jnp.array([0, 5])),
    "segments": lambda: Mask(
        query_segments=jnp.arange(2 * T).reshape(2, T) // 3, key_segments=jnp.arange(2 * S).reshape(2, S) // 4
    ),
    "dense": lambda: Mask(dense=jax.random.bernoulli(jax.random.key(9), 0.6, (2, HEADS, T, S)).at[:, :, 2].set(False)),
    "dense of keys": lambda: Mask(dense=jax.random.bernoulli(jax.random.key(9), 0.6, (1, 1, 1, S))),
}


def bias(*shape):
    return jax.random.normal(jax.random.key(3), shape)


@pytest.mark.usefixtures("small_tiles", "x64")
@pytest.mark.parametrize("mask", once(MASKS, ["causal window"]))
def test_equals_the_reference_under_every_mask(mask):
    check(inputs(), other="reference", mask=MASKS[mask]())


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


SHARDED = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from attention import Mask, neural_attention
mesh = jax.make_mesh((8, 1, 1), ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)
x = jax.random.normal(jax.random.key(0), (16, 24, 4, 6))
layers = [(jax.random.normal(jax.random.key(n), (m, n)), jnp.ones(n)) for m, n in ((12, 9), (9, 7), (7, 1))]
def scalar(x, layers):
    options = {"mask": Mask(causal=True), "dropout_rate": 0.3, "dropout_key": jax.random.key(2)}
    return jnp.sum(jnp.sin(neural_attention(x, x, x, layers, implementation="chunked", **options)))
alone = jax.jit(jax.grad(scalar, argnums=(0, 1)))(x, layers)
with jax.set_mesh(mesh):
    spread = jax.device_put(x, NamedSharding(mesh, P("data")))
    run = jax.jit(jax.grad(scalar, argnums=(0, 1))).lower(spread, layers).compile()
    text = run.as_text()
    assert not any(word in text for word in ("all-gather", "all-to-all", "collective-permute")), "batches move"
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), run(spread, layers), alone)
"""


@pytest.mark.more
def test_a_sharded_batch_stays_where_it_is(run_python):
    run_python("-c", SHARDED, devices=8)
