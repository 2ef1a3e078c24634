"""Reports on a record: short tables at the end of a call, the tables of the page, and the choices of `auto`."""

import collections
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from analysis.tables import plain_markdown
from benchmarks.attention import mechanism_of
from benchmarks.device import about, core, right, timing
from benchmarks.device.items import GROUPS, Row
from benchmarks.device.record import read
from train.cli.terminal import counted

Rows = dict[str, Row]
RATE, BENCH = "units_per_second", "bench"
BY_XLA = ("chunked", "xla")
BY = ("cudnn", "pallas", *BY_XLA)
BASE = "dot_product, cudnn"
NETWORKS = ("neural(dim=2)", "neural(dim=16)", "additive")  # pairwise scores with kernels for GPUs


def short(record: dict[str, Any], names: Sequence[str]) -> str:
    """Tabulates the state of each group, problems, the contestants of the first measured shape, and whole models."""
    rows: Rows = record["rows"]
    parts = ["", states(rows, names), *problems(rows, names)]
    shapes = list(dict.fromkeys(shape_of(row) for row in rows.values() if "contestant" in row and "seconds" in row))
    parts += [
        *(core_table(rows, shape) for shape in shapes[:1]),
        models_table({n: rows[n] for n in names if n in rows}),
    ]
    if missing := [name for name in names if name not in rows]:
        parts.append(
            f"{counted(len(missing), 'item')} {'is' if len(missing) == 1 else 'are'} left; the same command continues."
        )
    return "\n\n".join(part for part in parts if part) + "\n"


LEGEND = (
    "GB are planned by the compiler for programs of JAX, and counted by the allocator for PyTorch. The peak is that of "
    "a large product in the same dtype. † marks figures of an earlier version of our code, and ‡ those by the host's "
    "clock, if the profiler saw nothing."
)


def page(path: Path, names: Sequence[str]) -> str:
    """Writes a record's part of a page: machine, commands and all tables of items."""
    record = read(path)
    rows: Rows = record["rows"]
    shapes = dict.fromkeys(shape_of(row) for row in rows.values() if "contestant" in row and "seconds" in row)
    tables = [made(record["calls"]), LEGEND, states(rows, names), *problems(rows, rows)]
    return "\n\n".join([*tables, *(core_table(rows, shape) for shape in shapes), models_table(rows)])


SHORT = (  # rows of the short table
    *("dot_product, cudnn", "dot_product, pallas", "dot_product, xla", "PyTorch flash", "FlexAttention, dot_product"),
    *(f"{spec}, {by}" for spec in NETWORKS for by in ("pallas", "chunked")),
    *(f"{spec}, {by}" for spec in core.FUSED for by in ("pallas", "chunked")),
    *("FlexAttention, alibi", "FlexAttention, soft_cap", "linear, chunked"),
    *("gated_delta, chunked", "flash-linear-attention, gated_delta"),
    *("kimi_delta, chunked", "flash-linear-attention, kimi_delta"),
)
OF_SHORT = ("bfloat16", 4, 4096, 32, 64)  # its shape


def in_short(path: Path) -> str:
    """Tabulates times as multiples of those of cuDNN's dot product, and the memory likewise."""
    found = ratios(path)
    lines = []
    for name in SHORT:
        times = [found.get((OF_SHORT, name, what), {}) for what in core.PASSES]
        spec, _, by = name.rpartition(", ")
        cells = [f"{row['seconds']:.1f} ×" if row else "" for row in times]
        memory = f"{times[1]['bytes']:.1f} ×" if times[1] else ""
        lines.append((f"`{spec}`, `{by}`" if by in BY else name.replace(", ", ": "), *cells, memory))
    return plain_markdown(("", "forward", "forward and backward", "memory of both"), [x for x in lines if any(x[1:])])


def ratios(path: Path) -> dict[tuple[Any, ...], dict[str, float]]:
    """Divides seconds and bytes by those of cuDNN's dot product, for each shape, contestant and pass."""
    rows = (row for row in read(path)["rows"].values() if "contestant" in row and "seconds" in row)
    found = {(shape_of(row), row["contestant"], row["pass"]): row for row in rows}
    return {
        (shape, name, what): {unit: row[unit] / found[shape, BASE, what][unit] for unit in ("seconds", "bytes")}
        for (shape, name, what), row in found.items()
        if (shape, BASE, what) in found
    }


def kernels(path: Path) -> str:
    """Tabulates how many times as long XLA's better form takes as each kernel, over all shapes that have both."""
    found: dict[Any, dict[str, dict[Any, float]]] = {}
    for (shape, name, what), ratio in ratios(path).items():
        spec, _, by = name.rpartition(", ")
        found.setdefault((spec, what), {}).setdefault(by, {})[shape] = ratio["seconds"]
    lines = []
    for spec in (*NETWORKS, "dot_product", *core.FUSED):
        cells = []
        for what in core.PASSES:
            by = found[spec, what]
            xla = {
                shape: min(by[form][shape] for form in BY_XLA if shape in by.get(form, {})) for shape in by["chunked"]
            }
            times = [xla[shape] / by["pallas"][shape] for shape in by["pallas"] if shape in xla]
            cells.append(f"{min(times):.1f} to {max(times):.1f}" if len(times) > 1 else f"{times[0]:.1f}")
        lines.append((f"`{spec}`", "by hand" if spec in NETWORKS else "made from `pair`", *cells))
    return plain_markdown(("", "the kernel is", "XLA takes … times as long, forward", "in training"), lines)


def made(calls: Sequence[dict[str, Any]]) -> str:
    """Writes a line for each call that measured something: device, versions, command and commit."""
    lines = []
    for call in calls:
        device = call.get("jax") or call.get("torch") or {}
        packages = ", ".join(f"{name} {version}" for name, version in call["versions"].items())
        driver = f", driver {device['driver']}" if device.get("driver") else ""
        if device:
            lines.append(f"- {device['device']}{driver}, `{call['command']}` at `{call['git']}`; {packages}")
    return "\n".join(lines)


def models_table(rows: Rows) -> str:
    """Tabulates the speed of whole models, compared with dot product: steps, forward passes, the loop and decoding."""
    peak, done = peak_of(rows, "bfloat16"), {n: r for n, r in rows.items() if n.startswith("models") and RATE in r}
    bases = {_kind(name, row): row for name, row in done.items() if _is_base(row)}
    lines = [_of_model(name, row, bases.get(_kind(name, row)), peak) for name, row in done.items()]
    titles = ("", "a second", "ms on the device", "of peak", "times as long", "GB", "times as much")
    return plain_markdown(titles, lines) if lines else ""


def _kind(name: str, row: Row) -> tuple[Any, ...]:
    return name.split(", ")[1], row.get("model"), row["batch"]


def _is_base(row: Row) -> bool:
    """Tells whether others are compared with a row: the bench's own, with dot product if there is a choice."""
    return row["by"] == BENCH and row.get("attention", "dot_product").startswith("dot_product")


def peak_of(rows: Rows, dtype: str) -> float:
    """Reads the operations per second of a large product; NaN if it was not measured."""
    return rows.get(f"core, roof, {dtype}", {}).get("flops_per_second", float("nan"))


def of_peak(speed: float, peak: float) -> str:
    """Writes a share of the peak; '' if that was not measured."""
    return "" if math.isnan(peak) else f"{100 * speed / peak:.0f} %"


def _of_model(name: str, row: Row, base: Row | None, peak: float) -> list[str]:
    seconds = row.get("device_seconds", row.get("seconds"))
    longer = f"{base[RATE] / row[RATE]:.2f}" if base else ""
    more = f"{row['bytes'] / base['bytes']:.2f}" if base and "bytes" in row else ""
    what = name.removeprefix("models, ").replace("|", "\\|") + marks([row])
    on_device = f"{1e3 * seconds:.1f}" if seconds else ""
    share = of_peak(row["flops"] / seconds, peak) if "flops" in row else ""
    memory = f"{row['bytes'] / 1e9:.2f}" if "bytes" in row else ""
    speed = f"{row[RATE]:,.0f} {row['unit']}"
    return [what, speed, on_device, share, longer, memory, more]


def states(rows: Rows, names: Sequence[str]) -> str:
    """Tabulates how many items of each group are done, skipped, refused, failed, wrong and left."""
    counts = {group: collections.Counter() for group in GROUPS}
    for name in names:
        counts[next(group for group in GROUPS if name.startswith(group))][state(rows.get(name))] += 1
    titles = ("done", "wrong", "failed", "refused", "skipped", "left")
    lines = ((group, *(count[title] or "" for title in titles)) for group, count in counts.items() if count)
    return plain_markdown(("", *titles), lines)


def state(row: Row | None) -> str:
    """Names an item's state."""
    if row is None:
        return "left"
    kinds = [kind for kind in ("failed", "refused", "skipped") if kind in row]
    return kinds[0] if kinds else "wrong" if right.is_wrong(row) else "done"


def problems(rows: Rows, names: Iterable[str]) -> list[str]:
    """Writes a line for each item that is wrong or has failed."""
    lines = []
    for name in names:
        if state(row := rows.get(name)) == "wrong":
            error = (
                "not finite" if row["error"] is None else f"off by {row['error']:.1e}, allowed is {row['limit']:.1e}"
            )
            lines.append(f"- wrong: {name}: {row['worst']} is {error}")
        elif state(row) == "failed":
            lines.append(f"- failed: {name}: {row['failed'].splitlines()[0][:200]}")
    return ["\n".join(lines)] if lines else []


def shape_of(row: Row) -> tuple[Any, ...]:
    """Reads a row's dtype, sequences, tokens per sequence, heads and their width."""
    return tuple(row[name] for name in ("dtype", "batch", "length", "heads", "width"))


def core_table(rows: Rows, shape: tuple[Any, ...]) -> str:
    """Tabulates the contestants of a shape, the fastest in both passes first."""
    by_name: dict[str, Rows] = collections.defaultdict(dict)
    for row in rows.values():
        if "contestant" in row and "seconds" in row and shape_of(row) == shape:
            by_name[row["contestant"]][row["pass"]] = row
    peak = peak_of(rows, shape[0])
    dtype, batch, length, heads, width = shape
    dtype += " (products in TF32)" if dtype == "float32" else ""
    title = f"{dtype}, causal, {batch} x {length:,} tokens, {heads} heads of {width}"
    titles = (title, "forward, ms", "TFLOP/s", "of peak", "both, ms", "TFLOP/s", "of peak", "GB")
    order = sorted(by_name, key=lambda name: by_name[name].get(core.BOTH, {}).get("seconds", math.inf))
    lines = (_cells(name, by_name[name], peak) for name in order)
    return plain_markdown(titles, lines)


def _cells(name: str, passes: Rows, peak: float) -> list[str]:
    cells = [name + marks(passes.values())]
    for what in core.PASSES:
        row = passes.get(what)
        if row is None:
            cells += ["", "", ""]
            continue
        speed = row["flops"] / row["seconds"]
        span = f"{1e3 * row['seconds']:.2f} ({1e3 * row['least']:.2f} – {1e3 * row['greatest']:.2f})"
        cells += [span, f"{speed / 1e12:.0f}", of_peak(speed, peak)]
    of = next(reversed(passes.values()))
    return [*cells, f"{of['bytes'] / 1e9:.2f}" if "bytes" in of else ""]


def marks(rows: Iterable[Row]) -> str:
    """Writes the marks that `LEGEND` explains."""
    by_clock = (row.get("method") == timing.CLOCK and "contestant" in row for row in rows)
    return " †" * any(map(is_stale, rows)) + " ‡" * any(by_clock)


def is_stale(row: Row) -> bool:
    """Tells whether a GPU would now run something else than what made a row."""
    return "digest" in row and about.SAME.get(row["digest"], row["digest"]) != about.digest(row["made_by"])


def current(record: dict[str, Any]) -> Rows:
    """Selects the rows that an earlier version of our code did not make."""
    return {name: row for name, row in record["rows"].items() if not is_stale(row)}


def faster_on_gpu(record: dict[str, Any]) -> set[str]:
    """Selects the pairwise scores whose Pallas kernels `auto` takes on a GPU, by a record.

    A kernel must be right in all its checks, and in both passes faster than XLA's forms wherever both were measured.
    """
    rows = current(record)
    return {spec for spec in NETWORKS if _is_right(rows, spec) and _is_faster(rows, spec, {*core.PASSES})}


def fused_pays_on_gpu(record: dict[str, Any]) -> bool:
    """Tells whether `auto` takes the kernels of any function of a pair on a GPU, by a record.

    All their checks must be right, and those that were timed faster in training, which is forward and backward.
    """
    rows, checks = current(record), [check for check in right.checks() if check.kind == "fused"]
    return _are_right(rows, checks) and all(
        _is_faster(rows, spec, {core.BOTH}) for spec in ("dot_product", *core.FUSED)
    )


def _is_right(rows: Rows, spec: str) -> bool:
    score = mechanism_of(spec).score
    kernels = [check for check in right.checks() if check.implementation == "pallas"]
    return _are_right(rows, [check for check in kernels if check.mechanism.score == score])


def _are_right(rows: Rows, checks: Sequence[right.Check]) -> bool:
    found = {state(rows.get(check.name)) for check in checks}
    return "done" in found and found <= {"done", "refused"}


def _is_faster(rows: Rows, spec: str, passes: set[str]) -> bool:
    seconds: dict[Any, dict[str, float]] = collections.defaultdict(dict)
    for row in rows.values():
        by = row.get("contestant", "").removeprefix(f"{spec}, ")
        if by in ("pallas", *BY_XLA) and row["pass"] in passes and "seconds" in row:
            seconds[*shape_of(row), row["pass"]][by] = row["seconds"]
    pairs = {at: x for at, x in seconds.items() if "pallas" in x and len(x) > 1}
    return {at[-1] for at in pairs} == passes and all(min(x, key=x.get) == "pallas" for x in pairs.values())
