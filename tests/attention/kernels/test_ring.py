"""Attention on devices that share the tokens of each sequence is that of one device; see `attention.kernels.ring`."""

import json
import math

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType

import attention
from attention import Mask
from attention.kernels.loops.plan import TilePlan, Tiling
from attention.kernels.loops.scores import DotScore
from attention.kernels.ring import visits
from attention.normaliser import SOFTMAX

AXES = ("data", "fsdp", "context", "tensor")
BATCH, TOKENS, HEADS, WIDTH = 4, 24, 4, 8
SEGMENTS = jnp.repeat(jnp.arange(3), TOKENS // 3)[None].repeat(BATCH, 0)
LENGTHS = jnp.array([TOKENS, 5, 0, 13])
CAUSAL, PADDED = Mask(causal=True), Mask(causal=True, key_lengths=LENGTHS)
# A mechanism, the mesh, the mask, the rate of dropout, and the number of key heads, of 4.
CASES = [
    ("dot_product", {"context": 4, "tensor": 2}, PADDED, 0.3, 2),
    ("dot_product", {"context": 8}, CAUSAL, 0.3, 4),
    ("dot_product", {"context": 4}, Mask(causal=True, window=8), 0.0, 4),
    ("dot_product", {"context": 4}, Mask(window=5), 0.3, 4),
    ("neural", {"context": 4}, Mask(causal=True, query_segments=SEGMENTS, key_segments=SEGMENTS), 0.3, 4),
    ("neural", {"context": 2, "data": 2, "tensor": 2}, Mask(), 0.0, 2),
    ("dot_product(normaliser='sink(learned=True)')", {"context": 4}, CAUSAL, 0.3, 1),
    ("dot_product(normaliser='softpick')", {"context": 4}, Mask(), 0.0, 4),
    ("scalable_softmax", {"context": 4}, CAUSAL, 0.0, 4),
    ("dot_product(normaliser='none')", {"context": 4, "fsdp": 2}, PADDED, 0.0, 4),
    ("alibi", {"context": 4}, CAUSAL, 0.0, 2),
    ("gaussian(decay=0.1)", {"context": 4}, CAUSAL, 0.0, 4),
    ("differential(initial=0.8)", {"context": 3}, CAUSAL, 0.0, 4),
    ("additive", {"context": 4, "tensor": 2}, Mask(causal=True, window=20), 0.0, 4),
    ("soft_cap", {"context": 6}, Mask(key_lengths=LENGTHS), 0.0, 4),
]


@pytest.mark.more
def test_a_ring_is_one_device(run_python):
    done = run_python("-m", "tests.attention.kernels.test_ring", devices=8)
    for case, error in zip(CASES, json.loads(done.stdout), strict=True):
        assert error < 1e-5, case


def program(name, mask, rate, groups, implementation):
    """A function of parameters, queries, keys and values to the output and its gradients, and its arguments."""
    keys = jax.random.split(jax.random.key(1), 5)
    shapes = [(BATCH, TOKENS, heads, WIDTH) for heads in (HEADS, groups, groups, HEADS)]
    *arrays, weight = (jax.random.normal(key, shape) for key, shape in zip(keys[:4], shapes, strict=True))
    params = attention.init(name, keys[4], HEADS, WIDTH)
    options = {"dropout_rate": rate, "dropout_key": jax.random.key(7)} if rate else {}

    def scalar(params, *arrays):
        out = attention.attend(name, params, *arrays, mask=mask, implementation=implementation, **options)
        return jnp.sum(out * weight), out

    return jax.jit(jax.value_and_grad(scalar, argnums=(0, 1, 2, 3), has_aux=True)), (params, *arrays)


def error(name, sizes, mask, rate, groups):
    """The largest difference of any number of output and gradients, relative to the largest of its array if above 1."""
    function, arguments = program(name, mask, rate, groups, "xla")
    alone = function(*arguments)
    function, arguments = program(name, mask, rate, groups, "chunked(3, 4)")
    shape = tuple(sizes.get(axis, 1) for axis in AXES)
    devices = jax.devices()[: math.prod(shape)]
    with jax.set_mesh(jax.make_mesh(shape, AXES, axis_types=(AxisType.Auto,) * 4, devices=devices)):
        traced = function.trace(*arguments)
        assert "ppermute" in str(traced.jaxpr)
        shared = traced.lower().compile()(*arguments)
    pairs = zip(jax.tree.leaves(alone), jax.tree.leaves(shared), strict=True)
    return max(float(jnp.abs(x - y).max() / jnp.maximum(1, jnp.abs(x).max())) for x, y in pairs)


def pairs(count, causal, window, stretch):
    """How often each pair of a device's queries and keys is computed, in halves, and the work of each device."""
    plan = TilePlan(DotScore(1.0), SOFTMAX, Tiling(4, 4), stretch, 1, causal, window, 0.0)
    computed, work = {}, [0] * count
    for visit in visits(plan, count):
        for device in range(count):
            home = (device - visit.distance) % count
            if device in visit.hosts:
                rows, pair = range(stretch)[visit.own], (device, home)
            elif device in visit.helpers:
                rows, pair = range(stretch)[visit.guests], (home, device)
            else:
                continue
            work[device] += len(rows) // (2 if causal and not visit.distance else 1)
            for row in rows:
                computed[pair, row] = computed.get((pair, row), 0) + 1
    return computed, work


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 16])
@pytest.mark.parametrize(("causal", "window"), [(False, 0), (True, 0), (True, 6), (False, 6), (True, 1), (True, 13)])
@pytest.mark.parametrize("stretch", [4, 5])
def test_every_pair_that_is_seen_is_computed_once(count, causal, window, stretch):
    computed, _ = pairs(count, causal, window, stretch)
    assert set(computed.values()) == {1}
    for query in range(count * stretch):
        for key in range(count * stretch):
            seen = (key <= query or not causal) and (not window or abs(query - key) < window)
            if seen:
                assert (((query // stretch), key // stretch), query % stretch) in computed


@pytest.mark.parametrize("count", [2, 3, 4, 8, 15, 16])
def test_causal_work_is_the_same_on_every_device(count):
    _, work = pairs(count, True, 0, 4)
    assert len(set(work)) == 1
    assert work[0] == 4 * count / 2


if __name__ == "__main__":
    print(json.dumps([error(*case) for case in CASES]))
