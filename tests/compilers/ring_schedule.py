"""Run with the TPU compiler: what attention on a ring sends on 16 described chips, and how much of it during tiles.

python -m tests.compilers.ring_schedule dot_product 'neural(dim=2)'

prints for each score, forward and backward, the bytes that a token sends, and the part of the bytes that travels while
the compiler's final schedule computes arrays over pairs. It has no times: what is sent may still take longer.
"""

import json
import re
import sys

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import attention
from attention import Mask
from attention.mesh import compiled_for
from train.dry_run import topology

AXES = ("data", "fsdp", "context", "tensor")
TOKENS, DEVICES, HEADS, WIDTH = 8192, 4, 8, 64  # DEVICES that share a sequence
BYTES = {"bf16": 2, "f32": 4}


def schedule(spec: str) -> str:
    """Compiles causal attention and its gradients in bfloat16 for a torus of 4 x 4 chips of v5e."""
    chips = topology.devices("v5e:4x4")
    mesh = jax.make_mesh((4, 1, DEVICES, 1), AXES, axis_types=(AxisType.Auto,) * 4, devices=chips)
    place = lambda x, spec: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec))  # noqa: E731
    x = place(jax.ShapeDtypeStruct((4, TOKENS, HEADS, WIDTH), jnp.bfloat16), P("data", "context"))
    params = jax.eval_shape(lambda: attention.init(spec, jax.random.key(0), HEADS, WIDTH))
    params = jax.tree.map(lambda leaf: place(leaf, P()), params)

    def both(given, *arrays):
        out, pull = jax.vjp(lambda *x: attention.attend(spec, *x, mask=Mask(causal=True)), *arrays)
        return out, pull(given)

    with compiled_for(chips[0]), jax.set_mesh(mesh):
        return jax.jit(both).lower(x, params, x, x, x).compile().as_text()


def of_pairs(text: str) -> bool:
    """Tells whether a program multiplies matrices or has an array over queries and keys."""
    shapes = re.findall(r"\w+\[([\d,]+)\]", text)
    return " convolution(" in text or any(
        sum(int(size) >= TOKENS // DEVICES // 2 for size in shape.split(",")) >= 2 for shape in shapes
    )


def sent(text: str) -> dict[str, tuple[float, float]]:
    """Counts bytes per token, and the part that travels during tiles, for both passes."""
    parts = re.split(r"\n(?=%|ENTRY)", text)
    tiles = {name[1] for part in parts if of_pairs(part) and (name := re.match(r"%([\w.\-]+)", part))}
    begun, busy, found = {}, 0, {"forward": [0, 0], "backward": [0, 0]}
    for line in next(part for part in parts if part.startswith("ENTRY")).splitlines():
        called = re.search(r" (?:fusion|while)\(.*(?:calls|body)=%([\w.\-]+)", line)
        busy += " convolution(" in line or bool(called and called[1] in tiles)
        if start := re.match(r"\s*%([\w.\-]+) = \((\w+)\[([\d,]+)\].* collective-permute-start\(", line):
            size = BYTES[start[2]] * eval(start[3].replace(",", "*"))
            size *= re.search(r"source_target_pairs=\{(.*?)\}\}", line)[1].count("{")
            begun[start[1]] = size, busy, "backward" if "transpose(" in line else "forward"
        if done := re.search(r"collective-permute-done\(.*%([\w.\-]+)\)", line):
            size, before, which = begun.pop(done[1])
            found[which][0] += size
            found[which][1] += size * (busy > before)
    return {which: (size / (4 * TOKENS), during / size) for which, (size, during) in found.items()}


if __name__ == "__main__":
    print(json.dumps({spec: sent(schedule(spec)) for spec in sys.argv[1:]}))
