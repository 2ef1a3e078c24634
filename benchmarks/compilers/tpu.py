"""Compile attention's kernels and their opponents for a described TPU, and read the compiler's schedules.

    python -m benchmarks.compilers.tpu CHIP [NAME ...]

Of `xla` and `chunked`, which are no kernels, it adds up XLA's own estimates of its instructions' cycles.
`benchmarks.schedules` starts this program in a separate process, since libtpu reads its options only once, and reads
the JSON that it prints.
"""

import dataclasses
import functools
import itertools
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu import flash_attention as flash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

from attention.kernels import fused
from attention.kernels.mlp import tpu
from attention.kernels.mlp.network import Network, PairPlan
from attention.kernels.mlp.strips import STRIP
from attention.kernels.mlp.tile import rows_together
from benchmarks.compilers import bundles, described
from benchmarks.schedules import BY_XLA, LENGTHS, NETWORKS, OF_PAIRS, SHORT
from train.dry_run import collectives, topology

COMPILED, HEADS, WIDTH = 4096, 2, 64  # heads run one after another, and a schedule does not depend on the length
BLOCKS = (128, 512, 1024)
OF_SPLASH = (SHORT, 512, 1024)
MATRIX = (512, 1024, 1024)  # rows, contraction and columns of a block of the matrix product that is checked


@dataclasses.dataclass(frozen=True)
class Contestant:
    """A function to compile, with the trips of its kernels' regions.

    Attributes:
      name: Its name in tables.
      function: The function.
      shapes: The shapes of its arguments, in bfloat16.
      trips: Counts how often a kernel's regions run for one head, given the kernel's name and the number of tokens.
      tokens: The numbers of tokens.
    """

    name: str
    function: Callable
    shapes: Any
    trips: Callable[[str, int], bundles.Trips]
    tokens: tuple[int, ...] = LENGTHS


def causal(tokens: int, rows: int, across: int, turned: bool = False, together: int = 0) -> bundles.Trips:
    """Counts how often regions run for one head, with a causal mask and tiles of `rows` and `across` tokens."""
    rows, across = min(rows, tokens), min(across, tokens)
    queries, keys = (across, rows) if turned else (rows, across)
    tiles = [(i * queries, j * keys) for i in range(tokens // queries) for j in range(tokens // keys)]
    visible = sum(j <= i + queries - 1 for i, j in tiles)
    whole = sum(j + keys - 1 <= i for i, j in tiles)
    loop = rows // together if together else 1
    return bundles.Trips(len(tiles), tokens // rows, visible, whole, loop, loop if together else rows // STRIP)


def ours(spec: str) -> Contestant:
    """Makes a contestant of both passes of a mechanism's Pallas kernels."""

    def trips(kernel, tokens):
        network, turned = Network(NETWORKS[spec], (True,), "relu"), "backward" in kernel
        block = tpu.block_sizes(tokens, tokens, network)
        mask = {"causal": True, "window": 0, "limited": False, "rate": 0.0}
        sizes = {"queries": tokens, "keys": tokens, "block": block, "platform": "tpu"}
        plan = PairPlan(network=network, rounded=True, **mask, **sizes)
        return causal(tokens, *(block[::-1] if turned else block), turned, rows_together(plan, turned))

    shapes = described.shapes(spec, COMPILED, HEADS, WIDTH)
    return Contestant(spec, described.gradients(spec, "pallas"), shapes, trips)


def of_pairs(spec: str) -> Contestant:
    """Makes a contestant of the kernels made from a mechanism's `pair`, whose loops visit a tile of rows' tiles."""

    def trips(kernel, tokens):
        turned = "pair_d_all" in kernel
        rows, across = (
            fused.tpu.backward_sizes(tokens, tokens)[::-1] if turned else fused.tpu.block_sizes(tokens, tokens)
        )
        return dataclasses.replace(causal(tokens, rows, across, turned), steps=tokens // rows)

    shapes = described.shapes(spec, COMPILED, HEADS, WIDTH)
    return Contestant(spec, described.gradients(spec, "pallas"), shapes, trips)


def opponents() -> Iterator[Contestant]:
    """Yields JAX's own flash and splash attention for TPUs, with blocks of several sizes."""

    def contestant(name: str, attend: Callable, size: int, tokens: Iterable[int]) -> Contestant:
        both = jax.grad(lambda q, k, v: attend(q, k, v).astype(jnp.float32).sum(), (0, 1, 2))
        shapes = ((1, HEADS, COMPILED, WIDTH),) * 3
        return Contestant(name, both, shapes, lambda kernel, length: causal(length, size, size), tuple(tokens))

    for size in BLOCKS:
        sizes = flash.BlockSizes(*(size, size, size, 1), *(size,) * 7)
        attend = functools.partial(flash.flash_attention, causal=True, block_sizes=sizes)
        yield contestant(f"flash({size})", attend, size, (n for n in LENGTHS if n > size))
    for size, one_pass in [*itertools.product(OF_SPLASH, (True,)), (512, False)]:
        dq = () if one_pass else (size, size)
        sizes = splash.BlockSizes(*(size,) * 6, *dq, use_fused_bwd_kernel=one_pass)
        mask = masks.MultiHeadMask([masks.CausalMask((COMPILED, COMPILED))] * HEADS)
        kernel = splash.make_splash_mha_single_device(mask, block_sizes=sizes)
        name = f"splash({size})" if one_pass else f"splash({size}), two passes"
        yield contestant(name, jax.vmap(kernel), size, (n for n in (SHORT, *LENGTHS) if n >= size))


def product(size: int) -> Contestant:
    """Makes a contestant of the matrix product from JAX's page on Pallas, whose published time checks the method."""
    rows, depth, across = MATRIX

    def matmul_kernel(x, y, out, total):
        @pl.when(pl.program_id(2) == 0)
        def _():
            total[...] = jnp.zeros_like(total)

        total[...] += jnp.dot(x[...], y[...], preferred_element_type=jnp.float32)

        @pl.when(pl.program_id(2) == size // depth - 1)
        def _():
            out[...] = total[...].astype(out.dtype)

    def multiply(x, y):
        return pl.pallas_call(
            matmul_kernel,
            out_shape=jax.ShapeDtypeStruct((size, size), x.dtype),
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=0,
                grid=(size // rows, size // across, size // depth),
                in_specs=[
                    pl.BlockSpec((rows, depth), lambda i, j, k: (i, k)),
                    pl.BlockSpec((depth, across), lambda i, j, k: (k, j)),
                ],
                out_specs=pl.BlockSpec((rows, across), lambda i, j, k: (i, j)),
                scratch_shapes=[pltpu.VMEM((rows, across), jnp.float32)],
            ),
            compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
            name="matmul_kernel",
        )(x, y)

    def trips(kernel, size):
        steps = size**3 // (rows * depth * across)
        return bundles.Trips(steps, steps * depth // size, steps, steps)

    return Contestant("matrix product", multiply, ((size, size), (size, size)), trips, (size,))


def contestants() -> Iterator[Contestant]:
    """Yields all contestants."""
    yield product(8192)
    yield from map(ours, NETWORKS)
    yield from map(of_pairs, OF_PAIRS)
    yield from opponents()


def compiled(contestant: Contestant, device: Any, folder: Path) -> dict[str, Any]:
    """Compiles a contestant, and collects its kernels' regions and the bundles of a head for each number of tokens."""
    start = time.perf_counter()
    described.compiled(contestant.function, contestant.shapes, "bfloat16", device)
    kernels = []
    for name, regions in bundles.read(folder):
        kernel = {"name": re.sub(r"_*(\.\d+)?$", "", name), "regions": [dataclasses.asdict(x) for x in regions]}
        kernel["tokens"] = {}
        for tokens in contestant.tokens:
            counts = contestant.trips(name, tokens).of(regions)
            slots = [
                sum(n * x.slots[slot] for n, x in zip(counts, regions, strict=True))
                for slot in range(len(bundles.SLOTS))
            ]
            total = sum(n * x.bundles for n, x in zip(counts, regions, strict=True))
            kernel["tokens"][tokens] = {"bundles": total, "slots": dict(zip(bundles.SLOTS, slots, strict=True))}
        kernels.append(kernel)
    return {"name": contestant.name, "kernels": kernels, "seconds": time.perf_counter() - start}


def by_xla(name: str, device: Any) -> dict[str, Any]:
    """Counts the cycles of both passes of one head, by XLA's estimates of the instructions for `xla` or `chunked`.

    Args:
      name: A mechanism and an implementation, such as `dot_product, xla`.
    """
    spec, implementation = name.rsplit(", ", 1)
    start, cycles = time.perf_counter(), {}
    for tokens in (SHORT, *LENGTHS):
        heads = min(8, 2 * max(LENGTHS) // tokens)
        both, shapes = described.gradients(spec, implementation), described.shapes(spec, tokens, heads, WIDTH)
        lines = collectives.lines_of(described.compiled(both, shapes, "bfloat16", device).as_text())
        found = ((times, re.search(r'"estimated_cycles":"(\d+)"', line)) for line, times in lines)
        cycles[tokens] = sum(times * int(estimate[1]) for times, estimate in found if estimate) / heads
    return {"name": name, "estimates": cycles, "seconds": time.perf_counter() - start}


def main(chip: str, names: list[str]) -> None:
    """Prints a line of JSON for each row."""
    with tempfile.TemporaryDirectory() as folder:
        dump = f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true --xla_jf_dump_llo_pass_label_regex=final"
        os.environ["LIBTPU_INIT_ARGS"] = dump
        device = topology.devices(f"{chip}:2x2")[0]
        rows = {one.name: functools.partial(compiled, one, device, Path(folder)) for one in contestants()}
        rows |= {name: functools.partial(by_xla, name, device) for name in BY_XLA}
        for name in [name for name in rows if not names or name in names]:
            try:
                with described.emptied(Path(folder)):
                    result = rows[name]()
            except jax.errors.JaxRuntimeError as error:
                result = {"name": name, "refused": str(error).splitlines()[0]}
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
