"""Time and memory of every mechanism and implementation, compared with PyTorch, `jax.nn` and the papers' forms.

    python -m benchmarks.attention --out=benchmarks/results/attention_cpu.json

The program measures the core of attention, from projected queries, keys and values to a head's output. Mechanisms with
the same core (such as `optimised` and `dot_product`) are measured once. On a CPU, PyTorch is measured too if it is
installed (`requirements-bench.txt`); its memory is not known.
"""

import argparse
import dataclasses
import functools
import importlib.util
import statistics
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from matplotlib.figure import Figure

import attention
from analysis import measurements
from analysis.pictures import style
from analysis.tables import plain_markdown
from attention import operations
from attention.errors import UnsupportedError, UsageError
from attention.forms import Tokens
from attention.operations import Cost
from attention.options import Options
from attention.parameters import Sizes
from benchmarks import measure, schedules
from models import mechanisms
from models.mechanisms import MECHANISMS, Mechanism
from train import cli
from train.run import workdir

BASELINE, OWN, PYTORCH = "dot_product, jax.nn", "dot_product, chunked", "dot_product, PyTorch"
SPECS = (*MECHANISMS, "neural(dim=16)", "neural(dim=None)")
PAPER = ("neural", "neural(dim=16)", "neural(dim=None)")
YARDSTICKS = (PYTORCH, BASELINE, OWN, "additive, chunked", *(f"{spec}, chunked" for spec in PAPER))
GROWTH = (
    PYTORCH,
    BASELINE,
    f"{BASELINE} cudnn",
    OWN,
    "neural, xla",
    "neural, chunked",
    "neural, pallas",
    "neural(dim=16), chunked",
)
PASSES = ("forward", "forward+backward")
GENERAL = "fused"  # the kernel of any function of a pair, also where another would be taken
GB = 1e9


@dataclasses.dataclass(frozen=True)
class Shape:
    """The sizes of a measurement: sequences, tokens, heads and their width; the dtype; whether attention is causal."""

    batch: int
    length: int
    heads: int
    width: int
    dtype: str
    causal: bool

    @property
    def sizes(self) -> Sizes:
        """The sizes of a layer."""
        return Sizes(self.heads * self.width, self.heads, self.width, self.length)

    @property
    def mask(self) -> attention.Mask:
        """The mask: causal or none."""
        return attention.Mask(causal=self.causal)


@dataclasses.dataclass(frozen=True)
class Core:
    """A contestant.

    Attributes:
      name: `mechanism, implementation`.
      function: Computes the heads' output `(B, T, N, H)` from (weights, query, key, value, source).
      weights: A tree of arrays.
      cost: Useful work of the forward pass of one sequence.
    """

    name: str
    function: Any
    weights: Any
    cost: Cost


@measurements.program(
    __doc__,
    cli.flag("--batch", type=cli.count, default=1, help="number of sequences"),
    cli.flag("--length", type=cli.count, default=1024, help="tokens per sequence"),
    cli.flag("--heads", type=cli.count, default=8, help="number of heads"),
    cli.flag("--width", type=cli.count, default=64, help="width of a head"),
    cli.flag("--dtype", default="float32", choices=("float32", "bfloat16"), help="type of queries, keys and values"),
    cli.flag("--full", action="store_true", help="without a causal mask"),
    cli.flag("--only", nargs="*", default=SPECS, help="spec strings of mechanisms"),
    cli.flag("--growth", nargs="*", type=int, default=(256, 1024, 4096, 16384), help="lengths in the table of growth"),
    measure.rounds(9),
    cli.flag("--budget", type=float, default=10.0, help="seconds for all rounds of a contestant"),
    cli.flag("--memory", type=float, default=4.0, help="most GB of a contestant; others are not timed"),
    measurements.DEVICE,
    cli.flag("--plot", type=cli.new_file, help="file for the picture of growth"),
)
def main(flags: argparse.Namespace) -> measurements.Measured:
    """Yields the results of both passes, then those by length, and draws the latter.

    Raises:
      UsageError: There are no lengths to draw, or a mechanism is misspelt.
    """
    if flags.plot and not flags.growth:
        raise UsageError(f"--plot={flags.plot} draws the growth of time and memory; give lengths to --growth.")
    shape = Shape(flags.batch, flags.length, flags.heads, flags.width, flags.dtype, not flags.full)
    contestants = list(cores(shape, flags.only))  # first, so that a misspelt mechanism is refused at once
    peer, about = peer_of(), workdir.environment()
    result: dict[str, Any] = {"shape": dataclasses.asdict(shape)}
    if peer is None:
        print(f"{PYTORCH} is left out: it is for CPUs, and needs pip install -r requirements-bench.txt.", flush=True)
    else:
        result["versions"] = about["versions"] | {"torch": peer.VERSION}
    roof = measure.Roof.measured(flags.dtype)
    result["roof"] = dataclasses.asdict(roof)
    print(f"{about['devices']}, {roof.flops / 1e9:.0f} GFLOP/s, {roof.bandwidth / 1e9:.0f} GB/s; {shape}", flush=True)
    for what in PASSES:
        result[what] = compare(contestants, shape, what, roof, flags)
        yield result, f"\n{what}\n\n{table(result[what])}"
    if beside := schedules.against(result, jax.devices()[0].device_kind):
        yield result, f"\nagainst the compiler's schedules, without stalls\n\n{beside}"
    if flags.growth:
        result["growth"] = list(growth(shape, flags, {row["name"]: row for row in result["forward+backward"]}))
        yield result, f"\nforward+backward by length\n\n{growth_table(result['growth'])}"
    if flags.plot:
        style.save(growth_figure(result["growth"]), flags.plot)


def cores(shape: Shape, specs: tuple[str, ...]) -> Iterator[Core]:
    """Yields PyTorch, the baseline, each distinct core in each implementation for the device, and the paper's forms."""
    sizes = shape.sizes
    if peer_of() is not None:
        yield Core(PYTORCH, None, (), useful(mechanism_of("dot_product"), shape))
    fused = jax.default_backend() == "gpu" and shape.dtype == "bfloat16"  # cuDNN has no float32
    for library in ("xla", "cudnn") if fused else ("xla",):
        name = BASELINE if library == "xla" else f"dot_product, jax.nn {library}"
        yield Core(name, jax_nn(shape.causal, library), (), useful(mechanism_of("dot_product"), shape))
    excluded = {"reference"} | ({"pallas", "cudnn"} if jax.default_backend() == "cpu" else set())
    for spec in distinct(specs):
        score = mechanism_of(spec).score
        if shape.causal or score.traits.cross:  # without cross it must be causal
            yield from (ours(spec, name, shape) for name in score.implementations if name not in excluded)
    for spec in specs:
        if spec in PAPER:
            weights = _weights(mechanism_of(spec).score.parameters(sizes), jax.random.key(1), shape.dtype)
            yield Core(f"{spec}, paper", _concatenated(shape.mask), weights, useful(mechanism_of(spec), shape))


def peer_of() -> Any:
    """Imports the module that calls PyTorch; None if the device is not a CPU or PyTorch is not installed."""
    if jax.default_backend() != "cpu" or importlib.util.find_spec("torch") is None:
        return None
    return importlib.import_module("benchmarks.peers.attention_torch")


@functools.cache
def mechanism_of(spec: str) -> Mechanism:
    """Resolves the spec string of a layer."""
    return mechanisms.resolve(spec, 1)[0]


def distinct(specs: Iterable[str]) -> list[str]:
    """Lists the mechanisms that are the first with their score, alignment and kind of values."""
    first: dict[Any, str] = {}
    for spec in specs:
        row = mechanism_of(spec)
        first.setdefault((row.score, row.align, row.value == "tied"), spec)
    return [*first.values()]


def useful(mechanism: Mechanism, shape: Shape) -> Cost:
    """Counts the work of a sequence's forward pass; a causal mask halves the work for pairs."""
    sizes, length = shape.sizes, shape.length
    cost = mechanism.score.cost(sizes, length, length)
    if mechanism.align is not None:
        cost += operations.align(length, sizes.heads, sizes.head)
    if not shape.causal:
        return cost
    tokens = mechanism.score.cost(sizes, length, 0) + mechanism.score.cost(sizes, 0, length)
    twice = cost + tokens + mechanism.score.cost(sizes, 0, 0) * -1
    return Cost(twice.products // 2, twice.pointwise // 2, cost.bytes)


def jax_nn(causal: bool, implementation: str) -> Any:
    """Makes a contestant's function of JAX's own attention."""
    return lambda weights, query, key, value, source: jax.nn.dot_product_attention(
        query, key, value, is_causal=causal, implementation=implementation
    )


def _weights(declared: dict, key: jax.Array, dtype: str) -> dict[str, jax.Array]:
    keys = jax.random.split(key, max(1, len(declared)))
    return {name: p.init(k, p.shape, dtype) for k, (name, p) in zip(keys, declared.items(), strict=False)}


def ours(spec: str, implementation: str, shape: Shape) -> Core:
    """Makes a contestant of a mechanism of ours, with random weights."""
    mechanism, sizes, mask = mechanism_of(spec), shape.sizes, shape.mask
    score = mechanism.score
    score, named = (_without_form(score), "pallas") if implementation == GENERAL else (score, implementation)
    weights = {"score": _weights(score.arrays(sizes), jax.random.key(1), shape.dtype)}
    if mechanism.align is not None:
        table = jax.random.normal(jax.random.key(2), (sizes.length, sizes.length), shape.dtype)
        weights |= {"align": (table / sizes.length**0.5, jnp.zeros(sizes.length, shape.dtype))}

    def function(weights, query, key, value, source):
        query = score.prepare_query(weights["score"], query, Tokens(0, source))
        key = score.prepare_key(weights["score"], key, Tokens(0, source))
        value = key if mechanism.value == "tied" else value
        if mechanism.align is not None:
            value = attention.align_values(value, *weights["align"], mask=mask)
        return score.attend(weights["score"], query, key, value, Options(mask, implementation=named))

    return Core(f"{spec}, {implementation}", function, weights, useful(mechanism, shape))


def _without_form(score: Any) -> Any:
    """Gives a score that offers its function of a pair alone, so that no other kernel can do it."""
    kind = type(score)
    fields = {field.name: getattr(score, field.name) for field in dataclasses.fields(score)}
    return type(kind.__name__, (kind,), {"form": lambda *_: None})(**fields)


def _concatenated(mask: attention.Mask) -> Any:
    """Makes Neural Attention as DiGiugno publishes it: dense layers over concatenated pairs (B, N, T, S, 2d')."""

    def function(weights, query, key, value, source):
        if "down_query_kernel" in weights:
            query = query @ weights["down_query_kernel"] + weights["down_query_bias"][None, None, None]
            key = key @ weights["down_key_kernel"] + weights["down_key_bias"][None, None, None]
        query, key = query.swapaxes(1, 2)[..., :, None, :], key.swapaxes(1, 2)[..., None, :, :]
        shape = jnp.broadcast_shapes(query.shape, key.shape)
        hidden = jnp.concatenate([jnp.broadcast_to(query, shape), jnp.broadcast_to(key, shape)], axis=-1)
        count = sum(name.startswith("layer") and name.endswith("kernel") for name in weights)
        for layer in range(count):
            kernel, bias = weights[f"layer_{layer}_kernel"], weights[f"layer_{layer}_bias"]
            hidden = hidden @ kernel + jnp.expand_dims(bias, range(hidden.ndim - 1))
            hidden = jax.nn.relu(hidden) if layer < count - 1 else hidden
        allowed = mask.materialise(*hidden.shape[2:4], rank=4)
        scores = hidden[..., 0] if allowed is None else jnp.where(allowed, hidden[..., 0], -1e9)
        return jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(scores.astype(jnp.float32)).astype(value.dtype), value)

    return function


def program(core: Core, shape: Shape, what: str) -> measure.Program:
    """Compiles a contestant, forward or with all gradients."""
    drawn = jax.random.normal(jax.random.key(0), (4, shape.batch, shape.length, shape.heads, shape.width))
    query, key, value, weigh = drawn.astype(shape.dtype)
    if core.name == PYTORCH:
        call = peer_of().program(query, key, value, weigh, shape.causal, what != "forward")
        return measure.Program(call, temp=None, peak=0)
    source = query.reshape(shape.batch, shape.length, -1)
    arguments = (core.weights, query, key, value, source)
    if what == "forward":
        return measure.Program.of(core.function, *arguments)

    def loss(*arguments):
        return jnp.sum(core.function(*arguments).astype(jnp.float32) * weigh.astype(jnp.float32))

    return measure.Program.of(jax.value_and_grad(loss, argnums=(0, 1, 2, 3)), *arguments)


def supported(contestants: Iterable[Core], shape: Shape, what: str) -> dict[str, measure.Program]:
    """Compiles the contestants that this device supports, and names the others."""
    programs, others = {}, []
    for core in contestants:
        try:
            programs[core.name] = program(core, shape, what)
        except UnsupportedError:
            others.append(core.name)
    if others:
        print(f"\nnot supported here: {'; '.join(others)}", flush=True)
    return programs


def compare(
    contestants: list[Core], shape: Shape, what: str, roof: measure.Roof, flags: argparse.Namespace
) -> list[dict[str, Any]]:
    """Measures the contestants that this device supports; those that need too much memory get no time."""
    programs = supported(contestants, shape, what)
    fits = {name: p.call for name, p in programs.items() if p.peak <= flags.memory * GB}
    # Allocating gigabytes slows the next contestant, so large contestants get separate rounds.
    small = {name: call for name, call in fits.items() if programs[name].peak <= GB}
    large = {name: call for name, call in fits.items() if name in YARDSTICKS or name not in small}
    both = {"large": large if len(large) > len(large.keys() & set(YARDSTICKS)) else {}, "small": small}
    times = {kind: measure.in_turn(calls, flags.rounds, flags.budget) for kind, calls in both.items()}
    times_of = {name: times["small" if name in small else "large"] for name in programs}
    by_name = {core.name: core for core in contestants}
    return [_row(by_name[name], programs[name], times_of[name], shape, what, roof) for name in programs]


def _row(
    core: Core, program: measure.Program, times: measure.Times, shape: Shape, what: str, roof: measure.Roof
) -> dict[str, Any]:
    # A backward pass counts as two forward passes.
    passes = shape.batch * (1 if what == "forward" else 3)
    work = {"flops": core.cost.flops * passes, "bytes": core.cost.bytes * passes * jnp.dtype(shape.dtype).itemsize // 4}
    row = {"name": core.name, **_memory(program), **work}
    if core.name not in times:
        return row
    seconds = statistics.median(times[core.name])
    against = {name: measure.ratio(times, core.name, name) for name in (*YARDSTICKS, own_form(core.name))}
    row |= {"seconds": seconds, "rounds": len(times[core.name]), "flops_per_second": work["flops"] / seconds}
    row["roofline"] = roof.seconds(work["flops"], work["bytes"]) / seconds
    return row | {"ratios": {name: ratio for name, ratio in against.items() if ratio}}


def _memory(program: measure.Program) -> dict[str, int]:
    return {} if program.temp is None else {"temp_bytes": program.temp, "planned_bytes": program.peak}


def own_form(name: str) -> str:
    """Names the tiled form of a contestant's mechanism."""
    return f"{name.rsplit(', ', 1)[0]}, chunked"


def growth(shape: Shape, flags: argparse.Namespace, measured: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Measures both passes of some contestants at each length, unless they take too much time or memory.

    Args:
      shape: The shape, whose length is replaced.
      flags: The program's flags.
      measured: The rows of `compare` by name, which are used again at the length of `shape`.
    """
    last: dict[str, tuple[int, float]] = {}
    for length in flags.growth:
        at = dataclasses.replace(shape, length=length)
        known = measured if length == shape.length else {}
        contestants = [core for core in cores(at, ("dot_product", "neural", "neural(dim=16)")) if core.name in GROWTH]
        programs = supported([core for core in contestants if core.name not in known], at, "forward+backward")
        found = {core.name: _kept(known.get(core.name, {})) for core in contestants}
        found |= {name: _memory(compiled) for name, compiled in programs.items()}
        calls = {}
        for name, compiled in programs.items():
            before, seconds = last.get(name, (length, 0.0))
            if compiled.peak <= flags.memory * GB and seconds * (length / before) ** 2 <= 6 * flags.budget:
                calls[name] = compiled.call
        for name, values in measure.in_turn(calls, 3, 0.0).items():
            found[name] |= {"seconds": statistics.median(values), "rounds": len(values)}
        last |= {name: (length, core["seconds"]) for name, core in found.items() if "seconds" in core}
        yield {"length": length, "cores": found}


def _kept(row: dict[str, Any]) -> dict[str, Any]:
    kept = ("temp_bytes", "planned_bytes", "seconds", "rounds")
    return {name: x for name, x in row.items() if name in kept}


def table(rows: list[dict[str, Any]]) -> str:
    """Writes a pass as Markdown: milliseconds, ratios by round with their range, memory, fraction of the roofline."""
    base = next(row for row in rows if row["name"] == BASELINE)
    titles = ("mechanism, implementation", "ms", "rounds", "× PyTorch", "× jax.nn", "× own dot product", "× own form")

    def ratio(row: dict[str, Any], yardstick: str) -> str:
        return measure.spread(row["ratios"].get(yardstick))

    def cells(row: dict[str, Any]) -> list[str]:
        memory = ["", ""]
        if "temp_bytes" in row:
            memory = [f"{row['temp_bytes'] / 1e6:.1f}", f"{row['temp_bytes'] / base['temp_bytes']:.3f}"]
        if "seconds" not in row:
            return [row["name"], "too much memory", "", "", "", "", "", *memory, ""]
        ratios = [ratio(row, yardstick) for yardstick in (PYTORCH, BASELINE, OWN, own_form(row["name"]))]
        time = [f"{row['seconds'] * 1e3:.1f}", row["rounds"], *ratios]
        return [row["name"], *time, *memory, f"{100 * row['roofline']:.0f}"]

    return plain_markdown((*titles, "temp MB", "× jax.nn", "% of roofline"), map(cells, rows))


def growth_table(rows: list[dict[str, Any]]) -> str:
    """Tabulates milliseconds and temporary megabytes at each length."""
    names = list(rows[0]["cores"])

    def cell(core: dict[str, Any]) -> str:
        time = f"{core['seconds'] * 1e3:.0f} ms" if "seconds" in core else "not run"
        return f"{time}, {core['temp_bytes'] / 1e6:.0f} MB" if "temp_bytes" in core else time

    lines = ([row["length"], *(cell(row["cores"][name]) for name in names)] for row in rows)
    return plain_markdown(["tokens", *names], lines)


@style.quiet
def growth_figure(rows: list[dict[str, Any]]) -> Figure:
    """Draws time and temporary memory against the number of tokens, both axes logarithmic."""
    figure = Figure(figsize=(7.6, 3.4))
    time, memory = figure.subplots(1, 2)
    lengths = [row["length"] for row in rows]
    for name, (colour, marker) in style.colours(rows[0]["cores"]).items():
        by_length = [(row["length"], row["cores"][name]) for row in rows]
        look = {"color": colour, "marker": marker, "label": name}
        timed = [(length, core["seconds"] * 1e3) for length, core in by_length if "seconds" in core]
        time.plot(*zip(*timed, strict=True), **look)
        planned = [(length, core["temp_bytes"] / 1e6) for length, core in by_length if "temp_bytes" in core]
        memory.plot(*zip(*planned, strict=True) if planned else ([], []), **look)
    time.set(ylabel="ms, forward + backward", title="time")
    memory.set(ylabel="MB", title="temporary memory")
    for axes in (time, memory):
        axes.set(xscale="log", yscale="log", xlabel="tokens")
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
        axes.minorticks_off()
    figure.legend(handles=time.lines, loc="outside lower center", ncols=3)
    figure.suptitle("Attention of one sequence: what grows with its length")
    return figure


if __name__ == "__main__":
    sys.exit(main())
