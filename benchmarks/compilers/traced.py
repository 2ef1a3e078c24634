"""Digests of the programs that a GPU would run of our Pallas kernels, both passes, traced for a described H100.

    python -m benchmarks.compilers.traced > before.txt

Equal lines before and after a change of sources mean that a GPU runs the same. `benchmarks.device.about.SAME` names
such changes, so that measurements stay those of the present kernels. The program needs what `benchmarks.compilers.gpu`
does.
"""

import argparse
import hashlib
import itertools
import re

import jax

import attention
from attention import Mask, mesh
from benchmarks.compilers import described
from train import cli
from train.dry_run import topology

MLPS = ("neural(dim=2)", "neural(dim=3)", "neural(dim=16)", "additive")
PAIRS = (
    "dot_product",
    "alibi",
    "alibi(learned=True)",
    "soft_cap",
    "relative",
    "gaussian(squared=False)",
    "sink",
    "sigmoid",
)
MASKS = {"full": Mask(), "causal": Mask(causal=True), "window": Mask(window=100)}
TOKENS, HEADS, WIDTH = 1024, 8, 64


@cli.program(__doc__)
def main(_: argparse.Namespace) -> None:
    """Prints a line for each mechanism, dtype and mask."""
    device = topology.devices("h100")[0]
    for spec, dtype, mask in itertools.product((*MLPS, *PAIRS), ("float32", "bfloat16"), MASKS):
        print(spec, dtype, mask, digest(spec, dtype, MASKS[mask], device), flush=True)


def digest(spec: str, dtype: str, mask: Mask, device: jax.Device) -> str:
    """Computes the digest of the program of both passes, without places in memory and in files."""

    def loss(params: dict[str, jax.Array], *arrays: jax.Array) -> jax.Array:
        return attention.attend(spec, params, *arrays, mask=mask, implementation="pallas").astype("float32").sum()

    shapes = described.shapes(spec, TOKENS, HEADS, WIDTH)
    with mesh.compiled_for(device):
        traced = jax.jit(jax.grad(loss, (0, 1, 2, 3))).trace(*described.arrays(shapes, dtype, device))
    text = re.sub(r"0x[0-9a-f]+|\S*attention/kernels\S*", "", str(traced.jaxpr))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


if __name__ == "__main__":
    main()
