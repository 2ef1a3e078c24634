"""Run in a process with eight fake devices: how far attention on a ring is from all pairs on one device, as JSON.

python -m tests.attention.kernels.on_ring '[["dot_product", {"context": 4}, {"causal": true}, 0.0, 2]]'
"""

import json
import math
import sys

import jax
import jax.numpy as jnp
from jax.sharding import AxisType

import attention
from attention import Mask

AXES = ("data", "fsdp", "context", "tensor")
BATCH, TOKENS, HEADS, WIDTH = 4, 24, 4, 8


def mesh(sizes):
    shape = tuple(sizes.get(axis, 1) for axis in AXES)
    return jax.make_mesh(shape, AXES, axis_types=(AxisType.Auto,) * 4, devices=jax.devices()[: math.prod(shape)])


def mask_of(said):
    lengths = {"key_lengths": jnp.array([TOKENS, 5, 0, 13])} if said.get("key_lengths") else {}
    if said.get("segments"):
        segments = jnp.repeat(jnp.arange(3), TOKENS // 3)[None].repeat(BATCH, 0)
        lengths = {"query_segments": segments, "key_segments": segments}
    return Mask(causal=said.get("causal", False), window=said.get("window", 0), **lengths)


def program(name, said, rate, groups, implementation):
    """A function of parameters, queries, keys and values to the output and its gradients, and its arguments."""
    keys = jax.random.split(jax.random.key(1), 5)
    shapes = [(BATCH, TOKENS, heads, WIDTH) for heads in (HEADS, groups, groups, HEADS)]
    *arrays, weight = (jax.random.normal(key, shape) for key, shape in zip(keys[:4], shapes, strict=True))
    params = attention.init(name, keys[4], HEADS, WIDTH)
    options = {"dropout_rate": rate, "dropout_key": jax.random.key(7)} if rate else {}

    def scalar(params, *arrays):
        given = {"mask": mask_of(said), "implementation": implementation, **options}
        out = attention.attend(name, params, *arrays, **given)
        return jnp.sum(out * weight), out

    return jax.jit(jax.value_and_grad(scalar, argnums=(0, 1, 2, 3), has_aux=True)), (params, *arrays)


def error(name, sizes, said, rate, groups):
    """The largest difference of any number of output and gradients, relative to the largest of its array if above 1."""
    function, arguments = program(name, said, rate, groups, "xla")
    alone = function(*arguments)
    function, arguments = program(name, said, rate, groups, "chunked(3, 4)")
    with jax.set_mesh(mesh(sizes)):
        traced = function.trace(*arguments)
        assert "ppermute" in str(traced.jaxpr)
        shared = traced.lower().compile()(*arguments)
    pairs = zip(jax.tree.leaves(alone), jax.tree.leaves(shared), strict=True)
    return max(float(jnp.abs(x - y).max() / jnp.maximum(1, jnp.abs(x).max())) for x, y in pairs)


if __name__ == "__main__":
    print(json.dumps([error(*case) for case in json.loads(sys.argv[1])]))
