"""Registers, spills, occupancy and instructions of the Hopper kernels, compiled for a described H100.

    python -m benchmarks.compilers.gpu --out=benchmarks/results/schedules_gpu.json

XLA's plugin for CUDA and ptxas compile our kernels and JAX's own dot product for sm_90a; nothing runs. Instructions are
those of one tile of pairs and one warp, loops included. Divided by the rate at which an SM issues them, they are the
fewest cycles that the SM needs: waiting for memory, barriers and results does not count. The program needs
requirements-cuda12.txt or requirements-cuda13.txt, and `nvdisasm` from the package triton, in a separate environment
with JAX_PLATFORMS=cpu. The two versions of CUDA give different figures; the record is of CUDA 12.
"""

import argparse
import collections
import contextlib
import dataclasses
import importlib.util
import math
import os
import re
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from analysis import measurements
from analysis.tables import plain_markdown
from attention.errors import UsageError, unknown
from attention.kernels.mlp import gpu
from attention.kernels.mlp.network import Network
from benchmarks.compilers import described
from train import cli
from train.dry_run import topology

SPECS = {"neural(dim=2)": (2, 1), "neural(dim=16)": (16, 8), "additive": (64,)}
OF_JAX = "JAX's dot product"
TOKENS, HEADS, WIDTH = 1024, 8, 64
WARPS, WARP = 4, 32  # warps of a warpgroup; threads of a warp
REGISTERS, SHARED, SLOTS, THREADS = 2**16, 228 * 2**10, 32, 2048  # limits of an SM; a block reserves 1 KiB more
# Instructions of a warp that an SM of compute capability 9.0 issues per cycle: the arithmetic throughputs of NVIDIA's
# CUDA C++ Programming Guide over 32 threads. `products` count 2,048 multiply-adds per cycle.
RATES = {"floats": 4.0, "compares and integers": 2.0, "exponentials": 0.5, "memory and shuffles": 1.0, "all": 4.0}
KINDS = {
    "floats": "FADD FFMA FMUL HADD2 HFMA2 HMUL2",
    "compares and integers": "FMNMX FSEL FSETP FSET FCHK IADD3 IMAD IMNMX ISETP LEA LOP3 SEL SHF VIADD PRMT F2FP",
    "exponentials": "MUFU F2F I2F F2I I2FP",
    "memory and shuffles": "LD LDG LDS LDSM ST STG STS STSM ATOM ATOMS ATOMG RED SHFL",
}
KIND = {opcode: kind for kind, opcodes in KINDS.items() for opcode in opcodes.split()}
PASSES = {"pair_out": "forward", "pair_d_query": "backward, queries", "pair_d_key": "backward, keys"}
# For each version of CUDA: the packages that compile, the one with ptxas, and the version of PTX that this ptxas reads.
# XLA may write a later version, but our kernels need nothing of it.
PACKAGES = {"12": ("jax-cuda12-plugin", "nvidia-cuda-nvcc-cu12"), "13": ("jax-cuda13-plugin", "nvidia-cuda-nvcc")}
PTXAS = {"12": "nvidia.cuda_nvcc", "13": "nvidia.cu13"}
PTX = {"12": "8.8", "13": "9.0"}


def instructions(text: str) -> tuple[list[str], list[range], list[range]]:
    """Reads the instructions printed by `nvdisasm -c`.

    Returns:
      The instructions; the numbers of those in each loop, which branches back; and of those that forward branches skip.
    """
    found: list[str] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            labels[label[1]] = len(found)
        elif one := re.match(r"\s*/\*[0-9a-f]+\*/\s+(.*?);", line):
            found.append(one[1].strip())
    jumps = ((re.search(r"BRA\S* `\((\.L_x_\d+)\)", one), number) for number, one in enumerate(found))
    ends = [(labels.get(jump[1], number), number) for jump, number in jumps if jump]
    return found, [range(to, n + 1) for to, n in ends if to < n], [range(n + 1, to) for to, n in ends if to > n]


def of_tile(text: str, trips: int) -> tuple[dict[str, float], float]:
    """Counts the instructions of one tile of pairs by kind, and the cycles of its matrix products.

    The tile's loop is the smallest with exponentials and matrix products. Loops with floats in it visit units. Masks,
    which a branch skips in most tiles, do not count.

    Args:
      text: The disassembled kernel.
      trips: Trips of loops over units.

    Raises:
      ValueError: There is no such loop.
    """
    found, loops, skipped = instructions(text)
    opcodes = [re.sub(r"^@!?U?P\d+\s+", "", one).split()[0] for one in found]

    def kinds(part: range) -> set[str]:
        return {opcodes[number].split(".")[0] for number in part}

    tiles = [loop for loop in loops if "MUFU" in kinds(loop) and {"HGMMA", "HMMA"} & kinds(loop)]
    if not tiles:
        raise ValueError("no loop has exponentials and matrix products")
    tile = min(tiles, key=len)
    units = [loop for loop in loops if _within(loop, tile) and {"FFMA", "FADD"} & kinds(loop)]
    compares = [part for part in skipped if _within(part, tile) and {"ISETP", "FSEL"} <= kinds(part)]
    masks = [part for part in compares if not {"MUFU", "HGMMA", "HMMA"} & kinds(part)]
    counts: collections.Counter[str] = collections.Counter()
    products = 0.0
    for number in tile:
        if any(number in part for part in masks):
            continue
        often = trips if any(number in loop for loop in units) else 1
        opcode = opcodes[number].split(".")[0]
        counts[KIND.get(opcode, "others")] += often
        if size := re.search(r"HGMMA\.64x(\d+)x16", opcodes[number]):
            products += often * 64 * int(size[1]) * 16 / 2048
    return dict(counts), products


def _within(part: range, whole: range) -> bool:
    return part != whole and whole.start <= part.start and part.stop <= whole.stop


def occupancy(registers: int, shared: int, warps: int) -> int:
    """Counts the blocks that an SM holds, given registers per thread, bytes of shared memory, and warps per block."""
    a_warp = -(-registers * WARP // 256) * 256  # registers are allocated in units of 256
    limits = (REGISTERS // a_warp // warps, SHARED // (shared + 1024), THREADS // (WARP * warps), SLOTS)
    return min(limits)


def least(kernel: dict[str, Any]) -> dict[str, float]:
    """Counts an SM's cycles for each pair that every unit needs, for the pairs of a tile."""
    counts = kernel["instructions"] | {"all": sum(kernel["instructions"].values())}
    cycles = {kind: WARPS * counts.get(kind, 0) / rate for kind, rate in RATES.items()}
    return {kind: x / kernel["pairs"] for kind, x in (cycles | {"products": kernel["products"]}).items()}


@measurements.program(__doc__, cli.flag("--only", nargs="+", default=[], help="rows, such as additive; default all"))
def main(flags: argparse.Namespace) -> measurements.Measured:
    """Yields the kernels of each contestant.

    Raises:
      UsageError: A compiler is not installed, or there is no such row.
    """
    for name in {*flags.only} - {*SPECS, OF_JAX}:
        raise unknown("row", name, (*SPECS, OF_JAX))
    ptxas, nvdisasm = found_tools()
    packages = ("jaxlib", *PACKAGES[topology.cuda()], "triton")
    result: dict[str, Any] = {"compiler": {name: metadata.version(name) for name in packages}, "rows": []}
    with tempfile.TemporaryDirectory() as folder, dumping(folder):
        for case in contestants():
            if not flags.only or case.name in flags.only:
                with described.emptied(Path(folder)):
                    result["rows"].append(compiled(case, Path(folder), ptxas, nvdisasm))
                yield result, table(result)


def dumping(folder: str) -> contextlib.AbstractContextManager[None]:
    """Makes the compilers dump into a folder, and leaves XLA the flags that it was given."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_dump_to={folder}".strip()
    return described.environment(MOSAIC_GPU_DUMP_TO=folder, MOSAIC_GPU_DUMP_PTX="1", XLA_FLAGS=flags)


def found_tools() -> list[str]:
    """Lists the paths of ptxas and nvdisasm.

    Raises:
      UsageError: One is not installed.
    """
    paths, cuda = [], topology.cuda()
    for package, path in ((PTXAS[cuda], "bin/ptxas"), ("triton", "backends/nvidia/bin/nvdisasm")):
        try:
            there = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            there = None
        where = [Path(folder) / path for folder in (there.submodule_search_locations or ())] if there else []
        if not where or not where[0].is_file():
            raise UsageError(f"{path} is missing: pip install --no-deps -r requirements-cuda{cuda}.txt triton.")
        paths.append(str(where[0]))
    return paths


@dataclasses.dataclass(frozen=True)
class GpuCase:
    """A function to compile.

    Attributes:
      name: Its name in tables.
      dtype: The dtype of its arrays.
      function: The function.
      shapes: The shapes of its arguments.
      pairs: Number of pairs in a tile.
      units: Trips of loops over units.
    """

    name: str
    dtype: str
    function: Callable
    shapes: Any
    pairs: int
    units: int = 1


def contestants() -> Iterator[GpuCase]:
    """Yields our mechanisms with both passes, and JAX's own attention kernels."""
    for spec, units in SPECS.items():
        shapes = described.shapes(spec, TOKENS, HEADS, WIDTH)
        network = Network(units, (True,) * (len(units) - 1), "relu")
        for dtype in ("float32", "bfloat16"):
            both = described.gradients(spec, "pallas")
            yield GpuCase(spec, dtype, both, shapes, gpu.ROWS * gpu.columns_of(network, dtype == "bfloat16"), units[0])
    yield GpuCase(OF_JAX, "float16", _mosaic, ((1, TOKENS, HEADS, WIDTH),) * 3, 64 * 128)


def _mosaic(query, key, value):
    from jax.experimental.pallas.ops.gpu import attention_mgpu

    attention_mgpu.cuda_versions = types.SimpleNamespace(cuda_runtime_get_version=lambda: 12091)  # there is no driver
    return attention_mgpu.attention(query, key, value, attention_mgpu.TuningConfig(64, 128, 2, causal=True))


def compiled(case: GpuCase, folder: Path, ptxas: str, nvdisasm: str) -> dict[str, Any]:
    """Compiles a contestant and analyses its kernels, or reports why a compiler refused it."""
    device, row = topology.devices("h100")[0], {"name": case.name, "dtype": case.dtype}
    began = time.process_time()
    try:
        described.compiled(case.function, case.shapes, case.dtype, device)
    except (jax.errors.JaxRuntimeError, NotImplementedError, ValueError, RuntimeError) as error:
        return row | {"refused": str(error).splitlines()[0]}
    row["cpu_seconds"] = time.process_time() - began
    row["kernels"] = [
        of_kernel(file, case, ptxas, nvdisasm)
        for file in sorted(folder.glob("*.ptx"))
        if "mosaic_gpu_kernel" in file.read_text()
    ]
    return row


def of_kernel(file: Path, case: GpuCase, ptxas: str, nvdisasm: str) -> dict[str, Any]:
    """Reads registers, spills, shared memory, blocks per SM and a tile's instructions from a dumped kernel."""
    text, binary = file.read_text(), file.with_suffix(".cubin")
    file.write_text(re.sub(r"(?m)^\.version .*$", f".version {PTX[topology.cuda()]}", text))
    said = _output(ptxas, "-arch=sm_90a", "-v", str(file), "-o", str(binary))
    registers, spills = (int(re.search(found, said)[1]) for found in (r"Used (\d+) registers", r"(\d+) bytes spill st"))
    log = file.with_suffix(".mlir-passes.log").read_text()
    shared = int(re.search(r"dynamic_shared_memory_size %c(\d+)_i32", log)[1])
    threads = math.prod(map(int, re.search(r"\.(?:req|max)ntid ([\d, ]+)", text)[1].split(",")))
    counts, products = of_tile(_output(nvdisasm, "-c", str(binary)), case.units)
    return {
        "name": re.sub(r"_\d+$", "", file.stem),
        "registers": registers,
        "spills": spills,
        "shared": shared,
        "warps": threads // WARP,
        "blocks": occupancy(registers, shared, threads // WARP),
        "pairs": case.pairs,
        "instructions": counts,
        "products": products,
    }


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def table(result: dict[str, Any]) -> str:
    """Writes a row for each kernel, without contestants that were refused."""
    lines = []
    for row in result["rows"]:
        for kernel in row.get("kernels", ()):
            cycles = least(kernel)
            unit = max(cycles, key=cycles.__getitem__)
            warps = f"{kernel['blocks'] * kernel['warps']} of 64"
            pairs = kernel["pairs"]
            counts = (f"{kernel['instructions'].get(kind, 0) * WARPS * WARP / pairs:.1f}" for kind in KINDS)
            alone = len(row["kernels"]) == 2 and kernel["name"] == "pair_d_key"
            name = "backward" if alone else PASSES.get(kernel["name"], "forward")
            fixed = (kernel["registers"], kernel["spills"], kernel["shared"] // 1024, warps)
            lines.append((f"`{row['name']}`", row["dtype"], name, *fixed, *counts, f"{cycles[unit]:.4f}", unit))
    titles = ("", "", "pass", "registers", "bytes of spills", "KiB shared", "warps an SM")
    return plain_markdown((*titles, *KINDS, "cycles a pair", "bound"), lines)


if __name__ == "__main__":
    sys.exit(main())
