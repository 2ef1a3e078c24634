"""Attention on several devices is that of one: those that share the tokens of each sequence are a ring."""

import json
import math

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

import attention
from attention import Mask, UnsupportedError
from attention.kernels import mlp
from attention.kernels.loops.plan import TilePlan, Tiling
from attention.kernels.loops.scores import DotScore
from attention.kernels.ring import visits
from attention.normaliser import SOFTMAX
from attention.scores.pairwise import Neural
from tests.attention.kernels.test_fused import FUSED, ODD, written
from tests.attention.kernels.test_mlp import call_of, inputs
from tests.sizes import more

AXES = ("data", "fsdp", "context", "tensor")
AUTO = (AxisType.Auto,) * len(AXES)
BATCH, TOKENS, HEADS, WIDTH = 4, 24, 4, 8
SEGMENTS = jnp.repeat(jnp.arange(3), TOKENS // 3)[None].repeat(BATCH, 0)
LENGTHS = jnp.array([TOKENS, 5, 0, 13])
CAUSAL, PADDED = Mask(causal=True), Mask(causal=True, key_lengths=LENGTHS)
# A mechanism, the mesh, the mask, the rate of dropout, and the number of key heads, of 4.
RING = [
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
EIGHT = {"data": 2, "fsdp": 2, "tensor": 2}
UNEVEN = (20, 27)
CASES = [  # and the implementation, the shape of a bias, and the numbers of queries and of keys
    *((*case, "chunked(3, 4)") for case in RING),
    (written(*FUSED["l1"]), EIGHT, PADDED, 0.3, 2, "pallas", (), UNEVEN),
    (written(*ODD["gated by the head"]), EIGHT, PADDED, 0.3, 2, "pallas"),
    (written(FUSED["bilinear"][0], (("kernel", (WIDTH, WIDTH)),)), EIGHT, PADDED, 0.3, 2, "pallas"),
    ("dot_product", {"data": 2, "tensor": 2}, PADDED, 0.0, 2, "pallas", (), (180, 180)),  # tiles of 128
    (Neural(None, (3, 2), per_head=True), EIGHT, PADDED, 0.3, 4, "pallas", (1, HEADS, 1, UNEVEN[1]), UNEVEN),
    (Neural(None, (3, 1)), EIGHT, PADDED, 0.3, 4, "pallas"),
    (Neural(None, (9, 7)), {"data": 4}, CAUSAL, 0.3, 4, "chunked"),
]


@pytest.mark.more
def test_a_ring_is_one_device(run_python):
    """So is a mesh whose devices have sequences and heads of their own."""
    done = run_python("-m", "tests.attention.kernels.test_ring", devices=8)
    for case, error in zip(CASES, json.loads(done.stdout), strict=True):
        assert error < (2e-5 if "pallas" in case else 1e-5), case


def program(name, mask, rate, groups, implementation, bias=(), tokens=(TOKENS, TOKENS)):
    """A function of arrays to the output and its gradients, and its arguments: queries, keys and values are first."""
    keys = jax.random.split(jax.random.key(1), 6)
    parts = ((tokens[0], HEADS), (tokens[1], groups), (tokens[1], groups), (tokens[0], HEADS))
    shapes = [(BATCH, *part, WIDTH) for part in parts]
    *arrays, weight = (jax.random.normal(key, shape) for key, shape in zip(keys[:4], shapes, strict=True))
    params = jax.tree.map(lambda x: x + 0.1, attention.init(name, keys[4], HEADS, WIDTH))  # no sum of dead units is 0
    options = {"dropout_rate": rate, "dropout_key": jax.random.key(7)} if rate else {}
    options |= {"mask": mask, "implementation": implementation}
    added = {"bias": jax.random.normal(keys[5], bias)} if bias else {}

    def scalar(query, key, value, params, added):
        out = attention.attend(name, params, query, key, value, **options, **added)
        return jnp.sum(out * weight), out

    return jax.jit(jax.value_and_grad(scalar, argnums=range(5), has_aux=True)), (*arrays, params, added)


def error(name, sizes, mask, rate, groups, implementation, *shapes):
    """The largest difference of any number of output and gradients, relative to the largest of its array if above 1."""
    function, arguments = program(name, mask, rate, groups, "xla", *shapes)
    alone = function(*arguments)
    function, (*arrays, params, added) = program(name, mask, rate, groups, implementation, *shapes)
    shape = tuple(sizes.get(axis, 1) for axis in AXES)
    mesh = jax.make_mesh(shape, AXES, axis_types=AUTO, devices=jax.devices()[: math.prod(shape)])
    with jax.set_mesh(mesh):
        split = NamedSharding(mesh, PartitionSpec(("data", "fsdp"), "context", "tensor"))
        arguments = *jax.device_put(arrays, split), params, added
        traced = function.trace(*arguments)
        compiled = traced.lower().compile()
        if "context" in sizes:
            assert "ppermute" in str(traced.jaxpr)
        else:
            assert not any(word in compiled.as_text() for word in ("all-gather", "all-to-all", "collective-permute"))
        shared = compiled(*arguments)
        assert shared[0][1].sharding.is_equivalent_to(split, 4)
    pairs = zip(jax.tree.leaves(alone), jax.tree.leaves(jax.device_get(shared)), strict=True)
    return max(float(jnp.abs(x - y).max() / jnp.maximum(1, jnp.abs(x).max())) for x, y in pairs)


@pytest.mark.parametrize(("name", "heads"), [("dot_product", "heads of keys"), ("neural", "heads"), ("alibi", "heads")])
def test_devices_must_divide_sequences_and_heads_of_a_kernel(name, heads):
    x, params = jnp.ones((3, 4, 3, 8)), attention.init(name, jax.random.key(0), 3, 8)
    why = f"3 sequences do not divide among 4 devices; 3 {heads} do not divide among 2 devices"
    devices = AbstractMesh((4, 1, 1, 2), AXES, axis_types=AUTO)
    with jax.sharding.use_abstract_mesh(devices), pytest.raises(UnsupportedError, match=why):
        attention.attend(name, params, x, x, x, implementation="pallas")


@pytest.mark.parametrize(
    ("platform", "name", "target"), [more("tpu", "tpu", "tpu_custom_call"), ("cuda", "gpu", "mosaic_gpu_v2")]
)
def test_a_program_of_several_devices_has_one_custom_call(platform, name, target):
    options = {"mask": PADDED, "rate": 0.3}
    run = jax.jit(lambda arrays: mlp.attend(call_of(arrays, **options), platform=name)[0])
    with jax.sharding.use_abstract_mesh(AbstractMesh((2, 2, 1, 2), AXES, axis_types=AUTO)):
        lowered = run.trace(inputs((3, 2), per_head=True, shape=(4, 20, 27, 2))).lower(lowering_platforms=(platform,))
    assert lowered.as_text().count(f"custom_call @{target}(") == 1


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
