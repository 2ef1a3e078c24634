"""Compile `xla` and `chunked` for a described TPU, and add up XLA's own estimates of its instructions' cycles.

    python -m benchmarks.compilers.estimates CHIP [NAME ...]

`benchmarks.schedules` starts this program in a separate process and reads the JSON that it prints.
"""

import json
import re
import sys
import time
from typing import Any

import jax

from benchmarks.compilers import described
from benchmarks.schedules import BY_XLA, LENGTHS, SHORT
from train.dry_run import collectives, topology

WIDTH = 64


def by_xla(name: str, device: Any) -> dict[str, Any]:
    """Counts the cycles of both passes of one head, by XLA's estimates of the instructions for `xla` or `chunked`.

    Args:
      name: A mechanism and an implementation, such as `dot_product, xla`.
    """
    spec, implementation = name.rsplit(", ", 1)
    start, cycles = time.perf_counter(), {}
    for tokens in (SHORT, *LENGTHS):
        heads = min(8, 2 * max(LENGTHS) // tokens)
        x = (1, tokens, heads, WIDTH)
        shapes = described.parameters(spec, heads, WIDTH), x, x, x
        both = described.gradients(spec, implementation)
        program = described.compiled(both, shapes, "bfloat16", device).as_text()
        found = (
            (times, re.search(r'"estimated_cycles":"(\d+)"', line)) for line, times in collectives.lines_of(program)
        )
        cycles[tokens] = sum(times * int(estimate[1]) for times, estimate in found if estimate) / heads
    return {"name": name, "estimates": cycles, "seconds": time.perf_counter() - start}


def main(chip: str, names: list[str]) -> None:
    """Prints a line of JSON for each mechanism and implementation."""
    device = topology.devices(f"{chip}:2x2")[0]
    for name in [name for name in BY_XLA if not names or name in names]:
        try:
            result = by_xla(name, device)
        except jax.errors.JaxRuntimeError as error:
            result = {"name": name, "refused": str(error).splitlines()[0]}
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
