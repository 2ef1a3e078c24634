"""Compute the definition in float64 on the CPU, for `benchmarks.device.right`, and write a file for each check.

python -m benchmarks.device.oracle FOLDER [--tiny] < NAMES
"""

import concurrent.futures
import os
import sys
from pathlib import Path

import jax
import numpy as np

from benchmarks.device import right

LONG = 512  # tokens from which the definition, computed pair by pair, needs too much memory


def main(folder: Path, tiny: bool) -> None:
    """Computes the checks named on standard input, several at a time."""
    known = {check.name: check for check in right.checks(tiny)}
    with concurrent.futures.ThreadPoolExecutor(max(2, (os.cpu_count() or 2) // 2)) as pool:
        for line in sys.stdin:
            pool.submit(write, folder, known[line.rstrip("\n")])


def write(folder: Path, check: right.Check) -> None:
    """Writes the arrays of a check, or the reason why there are none."""
    try:
        arrays = definition(check)
    except Exception as error:  # whatever it is, the other checks continue
        arrays = {right.FAILED: np.array(f"{type(error).__name__}: {error}")}
    temporary = folder / f"{right.file_of(check)}.tmp"
    with temporary.open("wb") as file:
        np.savez(file, **arrays)
    temporary.replace(folder / right.file_of(check))


def definition(check: right.Check) -> dict[str, np.ndarray]:
    """Computes the arrays of a check and, where it may be large, the error of the forms by XLA."""
    arrays, plain = compute(check, "reference" if check.length < LONG else "xla", "float64"), 0.0
    if check.dtype == "bfloat16" or check.spec in right.NETWORKS:
        forms = {"xla", "chunked"} & {*check.mechanism.score.implementations}
        plain = max(right.errors(check, compute(check, form, check.dtype), arrays)["error"] or 0.0 for form in forms)
    return arrays | {right.PLAIN: np.array(plain)}


def compute(check: right.Check, implementation: str, dtype: str) -> dict[str, np.ndarray]:
    """Computes the output and the gradients of a check."""
    return right.flat(jax.jit(right.program(check, implementation, dtype))(*right.arguments(check)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), "--tiny" in sys.argv)
