"""Count the kernels that a GPU starts for recurrences by chunks, in programs compiled for a described H100.

    python -m benchmarks.compilers.launches --out=benchmarks/results/launches_gpu.json

Nothing runs. A kernel is a fusion or a call of a library, times the trips of the loops around it. Memory is that of
the compiler's plan, temporaries alone. The program needs what `benchmarks.compilers.gpu` needs but for nvdisasm.
"""

import argparse
import re
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import attention
from analysis import measurements
from analysis.tables import plain_markdown
from attention import Mask
from attention.recurrences import state
from benchmarks.compilers import described
from train import cli
from train.dry_run import collectives, topology

SPECS = ("linear", "gated_delta", "kimi_delta")
SEQUENCES, TOKENS, HEADS, WIDTH = 4, 4096, 32, 64
KERNEL = re.compile(r" (?:fusion|custom-call)\(")
HEAD = ("", "pass", "kernels, chunks at once", "kernels, all in a loop", "GB, at once", "GB, in a loop")


@measurements.program(__doc__, cli.flag("--only", nargs="+", default=SPECS, help="mechanisms; default all"))
def main(flags: argparse.Namespace) -> measurements.Measured:
    """Yields both forms of each mechanism."""
    device, result = topology.devices("h100")[0], {"rows": []}
    for spec in flags.only:
        for name, function in passes(spec).items():
            row = {"name": spec, "pass": name, "at_once": counted(spec, function, device)}
            chosen, state.platform = state.platform, lambda: "cpu"
            row["in_a_loop"] = counted(spec, function, device)
            state.platform = chosen
            result["rows"].append(row)
            yield result, table({"rows": [row]})


def passes(spec: str) -> dict[str, Callable]:
    """Makes the forward pass alone, and both."""

    def forward(params: Any, query: Any, key: Any, value: Any, source: Any) -> jax.Array:
        mask = Mask(causal=True)
        return attention.attend(spec, params, query, key, value, source=source, mask=mask, implementation="chunked")

    both = jax.grad(lambda *given: forward(*given).astype(jnp.float32).sum(), (0, 1, 2, 3))
    return {"forward": forward, "forward and backward": both}


def counted(spec: str, function: Callable, device: Any) -> dict[str, int]:
    """Compiles a pass in bfloat16, and counts kernels and temporary bytes."""
    shapes = *described.shapes(spec, TOKENS, HEADS, WIDTH, SEQUENCES), (SEQUENCES, TOKENS, HEADS * WIDTH)
    # A new function each time, so that each form is traced.
    program = described.compiled(lambda *given: function(*given), shapes, "bfloat16", device)
    lines = collectives.lines_of(program.as_text())
    kernels = sum(times for line, times in lines if KERNEL.search(line))
    return {"kernels": kernels, "bytes": program.memory_analysis().temp_size_in_bytes}


def table(result: dict[str, Any]) -> str:
    """Tabulates kernels and memory of both forms."""
    forms = ("at_once", "in_a_loop")
    lines = [
        (
            f"`{row['name']}`",
            row["pass"],
            *(f"{row[form]['kernels']:,}" for form in forms),
            *(f"{row[form]['bytes'] / 1e9:.2f}" for form in forms),
        )
        for row in result["rows"]
    ]
    return plain_markdown(HEAD, lines)


if __name__ == "__main__":
    sys.exit(main())
