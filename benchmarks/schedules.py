"""Cycles of the TPU kernels by the compiler's own schedules, for described chips.

    python -m benchmarks.schedules --out=benchmarks/results/schedules_tpu.json

libtpu compiles every Pallas kernel of the pairwise family, those made from two functions of a pair, and JAX's own flash
and splash attention; nothing runs. A schedule is a list of bundles, of which a chip runs one per cycle. Bundles times
their trips are cycles without stalls: they include neither waiting for memory nor XLA's work around the kernels. For
`xla` and `chunked`, the program adds up XLA's own estimates. With `--chips` or `--only`, the other rows of the file
stay. The program needs requirements-tpu.txt, in a separate environment.
"""

import argparse
import importlib.util
import itertools
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from analysis import measurements
from analysis.tables import plain_markdown
from attention.errors import UsageError, unknown
from benchmarks.compilers.bundles import SPILLS
from benchmarks.measure import ROOT
from models.files import read_json
from train import cli

CHIPS = ("v5e", "v6e")
CLOCK = 1.5e9  # Hz of a v5e, whose 4 units of 128 x 128 multiply-adds do 197 TFLOP/s
KINDS = {"TPU v5 lite": "v5e", "TPU v5e": "v5e"}  # JAX's names of chips whose clock is known
RECORD = ROOT / "benchmarks/results/schedules_tpu.json"
PUBLISHED = 6.0994e-3  # seconds of the product of 8,192 x 8,192 in bfloat16 on a v5e: JAX's page on Pallas matmul
NETWORKS = {"neural(dim=2)": (2, 1), "neural(dim=16)": (16, 8), "neural(dim=None)": (64, 32)}
OF_PAIRS = ("alibi", "soft_cap")  # whose kernels are made from `pair`
LENGTHS = (1024, 4096, 16384)
SHORT = 256  # tokens; the pairwise kernels have no schedule for so few
BY_XLA = ("dot_product, xla", "dot_product, chunked", *(f"{spec}, chunked" for spec in NETWORKS))
WIDE = {"v5e": 128, "v6e": 256}  # rows and columns of a matrix unit
PASSES = ("forward", "backward")
NAMES = ("pallas", "xla", "chunked")
VECTOR, TRANSCENDENTAL = 4 * 1024, 1024  # numbers that a bundle's vector slots and its exponential slot process


@measurements.program(
    __doc__,
    cli.flag("--chips", nargs="+", default=CHIPS, choices=CHIPS, help="chips to compile for; default all"),
    cli.flag("--only", nargs="+", default=[], help="rows, such as splash(512); default all"),
)
def main(flags: argparse.Namespace) -> measurements.Measured:
    """Yields the schedules, compiled for each chip in a separate process.

    Raises:
      UsageError: The compiler is not installed, there is no such row, or another compiler made the rows that stay.
    """
    rows = [*BY_XLA, *(row["name"] for chip in CHIPS for row in json.loads(RECORD.read_text())["chips"][chip])]
    for name in {*flags.only} - {*rows}:
        raise unknown("row", name, {*rows})
    if importlib.util.find_spec("libtpu") is None:
        raise UsageError("The TPU compiler is not installed: pip install -r requirements-tpu.txt -c constraints.txt.")
    partly = flags.only or {*flags.chips} != {*CHIPS}
    compiler = {name: metadata.version(name) for name in ("jaxlib", "libtpu")}
    result: dict[str, Any] = {"compiler": compiler, "chips": kept(flags.out, compiler) if partly else {}}
    for chip in flags.chips:
        known = {row["name"]: row for row in result["chips"].get(chip, ()) if flags.only}
        known |= {row["name"]: row for row in compiled(chip, flags.only)}
        result["chips"][chip] = [*known.values()]
        yield result, f"{chip}\n\n{table(result, chip)}\n"


def kept(file: Path | None, compiler: dict[str, str]) -> dict[str, list[dict[str, Any]]]:
    """Reads the rows of each chip from a record, if there is one; raises a UsageError if another compiler made it."""
    if file is None or not file.exists():
        return {}
    record = read_json(file)
    if not isinstance(record, dict) or record.get("compiler") != compiler or "chips" not in record:
        here = " and ".join(f"{name} {version}" for name, version in compiler.items())
        raise UsageError(f"The rows of {file} are not of {here}; choose another --out, or compile all of them.")
    return record["chips"]


def compiled(chip: str, names: list[str]) -> Iterator[dict[str, Any]]:
    """Yields what `benchmarks.compilers.tpu` prints for a chip, in a separate process."""
    command = [sys.executable, "-m", "benchmarks.compilers.tpu", chip, *names]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        yield from map(json.loads, process.stdout or ())
    if process.returncode:
        raise UsageError(f"{' '.join(command[1:])} failed; run it to see why.")


def by_name(result: dict[str, Any], chip: str) -> dict[str, dict[str, Any]]:
    """Finds the contestants of a chip that compiled, by name."""
    return {row["name"]: row for row in result["chips"][chip] if "kernels" in row}


def cycles(row: dict[str, Any], tokens: int, which: str = "") -> float:
    """Counts the bundles per pair that the mask allows, in both passes or one of them; NaN if not compiled."""
    chosen = [k for k in row["kernels"] if not which or _pass(k["name"]) == which]
    if not all(str(tokens) in kernel["tokens"] for kernel in chosen):
        return float("nan")
    return sum(k["tokens"][str(tokens)]["bundles"] for k in chosen) / (tokens * (tokens + 1) / 2)


def _pass(kernel: str) -> str:
    return "backward" if any(word in kernel for word in ("backward", "bwd", "dkv", "dq", "pair_d")) else "forward"


def spills(row: dict[str, Any], which: str = "") -> int:
    """Counts the registers spilled in one run of the regions that visit pairs."""
    chosen = [k for k in row["kernels"] if not which or _pass(k["name"]) == which]
    return sum(max(r["slots"][SPILLS] for r in kernel["regions"]) for kernel in chosen)


def best(result: dict[str, Any], chip: str, tokens: int) -> str:
    """Names the fastest row of flash and splash attention; '' if there is none."""
    rows = {n: cycles(r, tokens) for n, r in by_name(result, chip).items() if n.startswith(("flash", "splash"))}
    return min((n for n, x in rows.items() if not math.isnan(x)), key=rows.__getitem__, default="")


def predicted(result: dict[str, Any], chip: str) -> dict[tuple[str, int], dict[str, float]]:
    """Predicts each implementation's cycles per pair in both passes, by mechanism and number of tokens.

    Predictions for `pallas` come from the schedules of its kernels, which for dot products are JAX's splash attention;
    those for `xla` and `chunked` are XLA's estimates.
    """
    kernels, cases = by_name(result, chip), {}
    estimates = {row["name"]: row["estimates"] for row in result["chips"][chip] if "estimates" in row}
    for spec, tokens in itertools.product(("dot_product", *NETWORKS), (SHORT, *LENGTHS)):
        name = _row(spec, tokens)
        found = {"pallas": cycles(kernels[name], tokens)} if name in kernels else {}
        for name, by_tokens in estimates.items():
            if name.startswith(f"{spec}, "):
                found[name.removeprefix(f"{spec}, ")] = by_tokens[str(tokens)] / (tokens * (tokens + 1) / 2)
        if len(found) > 1 and not math.isnan(found.get("pallas", math.nan)):
            cases[spec, tokens] = found
    return cases


def _row(spec: str, tokens: int) -> str:
    """Names the row of a mechanism's kernels for a number of tokens."""
    if spec == "dot_product":
        return f"splash({min(tokens, 512)})" + ", two passes" * (tokens > 4096)
    return "neural(dim=2)" if spec == "neural" else spec


def choices(result: dict[str, Any]) -> str:
    """Tabulates the predictions by which `auto` chooses on a TPU."""
    lines = [
        (chip, f"`{spec}`", f"{tokens:,}", *(f"{found[name]:.4f}" if name in found else "" for name in NAMES))
        for chip in result["chips"]
        for (spec, tokens), found in predicted(result, chip).items()
    ]
    return plain_markdown(("chip", "", "tokens", *(f"`{name}`" for name in NAMES)), lines)


def roofline(result: dict[str, Any], chip: str, spec: str, which: str) -> dict[str, float]:
    """Computes the fewest cycles per pair that each unit needs for this algorithm, in bfloat16 with values of 64.

    Vector units compute sums, activations, softmax and, of ReLUs and one last unit, the layers, as
    `attention.kernels.mlp.strips.Rectified` does. Matrix units compute products with values and the layers of other
    networks; each product has 1 row for `WIDE` pairs. Their rate is that of a large product by the same schedules.
    """
    units, outputs = NETWORKS[spec]
    product = by_name(result, chip)["matrix product"]["kernels"][0]["tokens"]["8192"]["bundles"]
    rows_a_cycle = 8192**3 / product / WIDE[chip] ** 2
    back = which == "backward"
    if outputs == 1:
        vector = 3 * units + 2  # of a unit a maximum, product and sum; the second ReLU and its factor
        extra = 2 + 2 * units + 2 * units + 1  # where units are positive, and sums for rows and columns
        multiplied = 0
    else:
        vector = 2.5 * units + 2.5 * outputs
        extra = 4 * units + 3.5 * outputs
        multiplied = 2 * outputs + units if back else outputs
    vector += 4.5 + (extra if back else 0)
    products = multiplied + (2 if back else 1)
    return {
        "vectors": vector / VECTOR,
        "exponentials": 1 / TRANSCENDENTAL,
        "products": products / (WIDE[chip] * rows_a_cycle),
    }


def table(result: dict[str, Any], chip: str) -> str:
    """Tabulates every contestant's cycles per pair by length, ratios to the best opponent, and spills."""
    lines, rows = [], by_name(result, chip)
    bests = {tokens: cycles(rows[name], tokens) for tokens in LENGTHS if (name := best(result, chip, tokens))}
    for name, row in rows.items():
        if name == "matrix product":
            continue
        times = [cycles(row, tokens) for tokens in LENGTHS]
        ratios = [cycles(row, tokens) / bests.get(tokens, math.nan) for tokens in LENGTHS]
        shown = ["" if math.isnan(x) else f"{x:.4f}" for x in times]
        shown += ["" if math.isnan(x) else f"{x:.2f}" for x in ratios]
        lines.append((f"`{name}`", *shown, spills(row)))
    titles = ("", *(f"cycles a pair, {n:,}" for n in LENGTHS), *(f"× best, {n:,}" for n in LENGTHS), "spills")
    return plain_markdown(titles, lines)


def roofline_table(result: dict[str, Any]) -> str:
    """Tabulates each of our kernels' cycles per pair at 16,384 tokens, its roofline, and the unit that sets it."""
    lines = []
    for chip in result["chips"]:
        rows = by_name(result, chip)
        for spec in filter(rows.__contains__, NETWORKS):
            for which in PASSES:
                roof = roofline(result, chip, spec, which)
                unit, least = max(roof.items(), key=lambda item: item[1])
                taken = cycles(rows[spec], 16384, which)
                units = (f"{roof[name]:.4f}" for name in ("vectors", "exponentials", "products"))
                ratio = f"{taken / least:.1f}"
                lines.append((chip, f"`{spec}`", which, f"{taken:.4f}", *units, unit, ratio, spills(rows[spec], which)))
    titles = ("chip", "", "pass", "cycles a pair", "vectors", "exponentials", "products", "bound", "× bound", "spills")
    return plain_markdown(titles, lines)


def against(measured: dict[str, Any], kind: str) -> str:
    """Compares measurements of our kernels on a TPU with the predictions of their schedules.

    Args:
      measured: A result of `benchmarks.attention`, with `shape` and the rows of both passes.
      kind: JAX's name of the device.

    Returns:
      A table; '' without predictions for the device or the shape (bfloat16, causal, heads of 64).
    """
    chip, shape = KINDS.get(kind), measured["shape"]
    like = (shape["dtype"], shape["causal"], shape["width"]) == ("bfloat16", True, 64) and shape["length"] in LENGTHS
    if chip is None or not like:
        return ""
    rows, tokens, lines = by_name(json.loads(RECORD.read_text(encoding="utf-8")), chip), shape["length"], []
    pairs = shape["batch"] * shape["heads"] * tokens * (tokens + 1) / 2
    for what, which in (("forward", "forward"), ("forward+backward", "")):
        for row in measured[what]:
            spec = _row(name := row["name"].removesuffix(", pallas"), tokens)
            if name != row["name"] and "seconds" in row and spec in rows:
                least = cycles(rows[spec], tokens, which) * pairs / CLOCK
                seconds = (f"{1e3 * x:.3f}" for x in (row["seconds"], least))
                lines.append((f"`{spec}`", what, *seconds, f"{row['seconds'] / least:.2f}"))
    return plain_markdown(("", "pass", "measured ms", "predicted ms", "measured / predicted"), lines)


def check(result: dict[str, Any]) -> tuple[float, float]:
    """Computes the predicted and the published milliseconds of a large matrix product on a v5e."""
    product = by_name(result, "v5e")["matrix product"]["kernels"][0]["tokens"]["8192"]["bundles"]
    return 1e3 * product / CLOCK, 1e3 * PUBLISHED


def numbers(result: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields the names and texts of the numbers in sentences."""
    predicted, published = check(result)
    yield "schedules product predicted", f"{predicted:.2f}"
    yield "schedules product published", f"{published:.2f}"
    yield "schedules product ratio", f"{predicted / published:.2f}"
    yield "schedules libtpu", result["compiler"]["libtpu"]
    for chip in result["chips"]:
        rows = by_name(result, chip)
        for name, specs in (("neural", ("neural(dim=2)",)), ("pairs", OF_PAIRS)):
            cases = itertools.product(filter(rows.__contains__, specs), LENGTHS)
            ratios = [cycles(rows[spec], n) / cycles(rows[best(result, chip, n)], n) for spec, n in cases]
            yield f"schedules {chip} {name}", f"{min(ratios):.1f} to {max(ratios):.1f}"


if __name__ == "__main__":
    sys.exit(main())
