"""Time and memory of every mechanism and implementation, beside `jax.nn`'s dot-product attention and the papers' form.

    python -m benchmarks.attention --out=benchmarks/results/attention_cpu.json

Cores are measured, from projected queries, keys and values to a head's output: what projections cost is known. Rows of
the table with the same core (`optimised` and `dot_product`, say) are measured once.
"""

import argparse
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import attention
from attention import flops
from attention.errors import UnsupportedError
from attention.flops import Cost
from attention.score import Sizes
from benchmarks import measure, plots
from models import mechanisms
from models.mechanisms import MECHANISMS, Mechanism

BASELINE = "dot_product, jax.nn"
SPECS = (*MECHANISMS, "neural(dim=16)", "neural(dim=None)")
PAPER = ("neural", "neural(dim=16)", "neural(dim=None)")
GROWTH = (BASELINE, "dot_product, chunked", "neural, xla", "neural, chunked", "neural(dim=16), chunked")
PASSES = ("forward", "forward+backward")
GB = 1e9


@dataclasses.dataclass(frozen=True)
class Shape:
    """What is measured: sequences, tokens, heads, their width, dtype, and whether attention is causal."""

    batch: int
    length: int
    heads: int
    width: int
    dtype: str
    causal: bool

    @property
    def sizes(self) -> Sizes:
        """As a layer has them."""
        return Sizes(self.heads * self.width, self.heads, self.width, self.length)

    @property
    def mask(self) -> attention.Mask:
        """Who may attend to whom."""
        return attention.Mask(causal=self.causal)


@dataclasses.dataclass(frozen=True)
class Core:
    """One contestant: a function of (weights, query, key, value, source), its weights, and its work forward.

    Attributes:
      name: `mechanism, implementation`.
      function: To `(B, T, N, H)`.
      weights: A tree of arrays.
      cost: Useful work, one sequence.
    """

    name: str
    function: Any
    weights: Any
    cost: Cost


def main() -> None:
    """Measures, prints tables, writes JSON and a plot."""
    flags = parse()
    if flags.device:
        jax.config.update("jax_platforms", flags.device)
    shape = Shape(flags.batch, flags.length, flags.heads, flags.width, flags.dtype, not flags.full)
    result = measure.header("attention") | {"shape": dataclasses.asdict(shape)}
    roof = measure.Roof.measured(flags.dtype)
    result["roof"] = dataclasses.asdict(roof)
    print(f"{result['devices']}, {roof.flops / 1e9:.0f} GFLOP/s, {roof.bandwidth / 1e9:.0f} GB/s; {shape}", flush=True)
    for what in PASSES:
        result[what] = compare(list(cores(shape, flags.only)), shape, what, roof, flags)
        print(f"\n{what}\n\n{table(result[what])}", flush=True)
    if flags.growth:
        result["growth"] = list(growth(shape, flags))
        print(f"\nforward+backward by length\n\n{growth_table(result['growth'])}")
    if flags.out:
        flags.out.write_text(json.dumps(result, indent=1) + "\n")
        plots.growth(result["growth"], flags.out.with_suffix(".png")) if flags.growth else None


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("batch", 1), ("length", 1024), ("heads", 8), ("width", 64)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--full", action="store_true", help="not causal")
    parser.add_argument("--only", nargs="*", default=SPECS, help="mechanism spec strings")
    parser.add_argument("--growth", nargs="*", type=int, default=(256, 1024, 4096, 16384), help="lengths to try")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--budget", type=float, default=10.0, help="seconds for one contestant, all rounds")
    parser.add_argument("--memory", type=float, default=4.0, help="GB; what needs more is not run, its memory reported")
    parser.add_argument("--device", default="", help="cpu, gpu or tpu; else what jax chooses")
    parser.add_argument("--out", type=Path, default=None, help="where the JSON goes, and beside it the plot")
    return parser.parse_args()


def cores(shape: Shape, specs: tuple[str, ...]) -> Iterator[Core]:
    """The baseline, each different core in each implementation but the definition, and the paper's form."""
    sizes = shape.sizes
    of = lambda spec: mechanisms.resolve(spec, 1)[0]  # noqa: E731
    for library in ("xla", "cudnn") if jax.default_backend() == "gpu" else ("xla",):
        name = BASELINE if library == "xla" else f"dot_product, jax.nn {library}"
        yield Core(name, _jax_nn(shape.causal, library), (), of("dot_product").score.cost(sizes, *_pairs(sizes)))
    seen = set()
    for spec in specs:
        mechanism = of(spec)
        core = (mechanism.score, mechanism.align, mechanism.value == "tied")
        if core in seen:
            continue
        seen.add(core)
        for implementation in mechanism.score.implementations:
            if implementation != "reference":
                yield _core(spec, mechanism, implementation, shape)
    for spec in specs:
        if spec in PAPER:
            score = of(spec).score
            cost = score.cost(sizes, *_pairs(sizes))
            weights = _weights(score.parameters(sizes), jax.random.key(1), shape.dtype)
            yield Core(f"{spec}, paper", _concatenated(shape.mask), weights, cost)


def _pairs(sizes: Sizes) -> tuple[int, int]:
    return sizes.length, sizes.length


def _jax_nn(causal: bool, implementation: str) -> Any:
    return lambda weights, query, key, value, source: jax.nn.dot_product_attention(
        query, key, value, is_causal=causal, implementation=implementation
    )


def _weights(declared: dict, key: jax.Array, dtype: str) -> dict[str, jax.Array]:
    keys = jax.random.split(key, max(1, len(declared)))
    return {name: p.init(k, p.shape, dtype) for k, (name, p) in zip(keys, declared.items(), strict=False)}


def _core(spec: str, mechanism: Mechanism, implementation: str, shape: Shape) -> Core:
    score, sizes, mask = mechanism.score, shape.sizes, shape.mask
    weights = {"score": _weights(score.parameters(sizes), jax.random.key(1), shape.dtype)}
    if mechanism.align is not None:
        table = jax.random.normal(jax.random.key(2), (sizes.length, sizes.length), shape.dtype)
        weights |= {"align": (table / sizes.length**0.5, jnp.zeros(sizes.length, shape.dtype))}

    def function(weights, query, key, value, source):
        query = score.prepare_query(weights["score"], query, implementation)
        key = score.prepare_key(weights["score"], key, source, implementation)
        value = key if mechanism.value == "tied" else value
        if mechanism.align is not None:
            value = attention.align_values(value, *weights["align"], mask=mask)
        options = {"mask": mask, "bias": None, "dropout_rate": 0.0, "dropout_key": None, "return_weights": False}
        return score.attend(weights["score"], query, key, value, implementation=implementation, **options)

    cost = score.cost(sizes, *_pairs(sizes))
    cost += flops.align(sizes.length, sizes.heads, sizes.head) * (mechanism.align is not None)
    return Core(f"{spec}, {implementation}", function, weights, cost)


def _concatenated(mask: attention.Mask) -> Any:
    """Neural Attention as 000 publishes it: every pair concatenated, dense layers over (B, N, T, S, 2d')."""

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
    """A contestant compiled, forward or with all gradients."""
    drawn = jax.random.normal(jax.random.key(0), (4, shape.batch, shape.length, shape.heads, shape.width))
    query, key, value, weigh = drawn.astype(shape.dtype)
    source = query.reshape(shape.batch, shape.length, -1)
    arguments = (core.weights, query, key, value, source)
    if what == "forward":
        return measure.Program.of(core.function, *arguments)

    def loss(*arguments):
        return jnp.sum(core.function(*arguments).astype(jnp.float32) * weigh.astype(jnp.float32))

    return measure.Program.of(jax.value_and_grad(loss, argnums=(0, 1, 2, 3)), *arguments)


def compare(
    contestants: list[Core], shape: Shape, what: str, roof: measure.Roof, flags: argparse.Namespace
) -> list[dict[str, Any]]:
    """One row for each contestant that this device can run; what needs more memory than allowed has no time."""
    programs = {}
    for core in contestants:
        try:
            programs[core.name] = core, program(core, shape, what)
        except UnsupportedError as error:
            print(f"left out {core.name}: {error}")
    runnable = {name: p for name, (_, p) in programs.items() if p.peak <= flags.memory * GB}
    # The device keeps its highest peak only: from the smallest to the largest, each sets it anew.
    peaks = {}
    for name in sorted(runnable, key=lambda name: runnable[name].peak):
        jax.block_until_ready(runnable[name].call())
        peaks[name] = measure.device_peak()
    timings = measure.paired({n: p.call for n, p in runnable.items()}, BASELINE, flags.rounds, flags.budget)
    return [_row(*programs[name], timings.get(name), peaks.get(name, 0), shape, what, roof) for name in programs]


def _row(
    core: Core, program: measure.Program, timing: measure.Timing | None, peak: int, shape: Shape, what: str, roof: Any
) -> dict[str, Any]:
    # A backward pass has twice the work of the forward one; of a causal mask's pairs half are useful.
    times = shape.batch * (3 if what != "forward" else 1)
    useful = core.cost.flops * times * (0.5 if shape.causal else 1.0)
    bytes_ = core.cost.bytes * times * (0.5 if shape.dtype == "bfloat16" else 1.0)
    row = {"name": core.name, "temp_bytes": program.temp, "planned_bytes": program.peak, "device_peak_bytes": peak}
    row |= {"flops": useful, "bytes": bytes_}
    if timing is None:
        return row
    fraction = roof.seconds(useful, bytes_) / timing.seconds
    return row | {**dataclasses.asdict(timing), "roofline": fraction, "flops_per_second": useful / timing.seconds}


def growth(shape: Shape, flags: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Forward and backward of a few contestants at each length; what would take too long or too much is left out."""
    seconds: dict[str, float] = {}
    for before, length in zip((0, *flags.growth), flags.growth, strict=False):
        at = dataclasses.replace(shape, length=length)
        row: dict[str, Any] = {"length": length, "cores": {}}
        calls = {}
        for core in cores(at, ("dot_product", "neural", "neural(dim=16)")):
            if core.name not in GROWTH:
                continue
            compiled = program(core, at, "forward+backward")
            row["cores"][core.name] = {"temp_bytes": compiled.temp, "planned_bytes": compiled.peak}
            expected = seconds.get(core.name, 0.0) * (length / max(1, before)) ** 2
            if compiled.peak <= flags.memory * GB and expected <= 6 * flags.budget:
                calls[core.name] = compiled.call
        timings = measure.paired(calls, next(iter(calls)), max(1, flags.rounds // 3), flags.budget)
        for name, timing in timings.items():
            seconds[name] = timing.seconds
            row["cores"][name]["seconds"] = timing.seconds
        yield row


def table(rows: list[dict[str, Any]]) -> str:
    """A pass as Markdown: milliseconds, ratios to the baseline and to our own tiles, memory, share of the roofline."""
    by_name = {row["name"]: row for row in rows}
    base, own = by_name[BASELINE], by_name.get("dot_product, chunked", {})
    titles = ("mechanism, implementation", "ms", "× jax.nn", "× own chunked", "temp MB", "× jax.nn", "% of roofline")

    def cells(row: dict[str, Any]) -> list[str]:
        memory = [f"{row['temp_bytes'] / 1e6:.1f}", f"{row['temp_bytes'] / base['temp_bytes']:.3f}"]
        if "seconds" not in row:
            return [row["name"], "too much memory", "", "", *memory, ""]
        against = f"{row['seconds'] / own['seconds']:.2f}" if "seconds" in own else ""
        time = [f"{row['seconds'] * 1e3:.2f}", f"{row['ratio'][0]:.2f}", against]
        return [row["name"], *time, *memory, f"{100 * row['roofline']:.0f}"]

    return measure.markdown(titles, map(cells, rows))


def growth_table(rows: list[dict[str, Any]]) -> str:
    """Milliseconds and temporary megabytes at each length."""
    names = list(rows[0]["cores"])

    def cell(found: dict[str, Any]) -> str:
        time = f"{found['seconds'] * 1e3:.0f} ms" if "seconds" in found else "not run"
        return f"{time}, {found['temp_bytes'] / 1e6:.0f} MB"

    lines = ([row["length"], *(cell(row["cores"][name]) for name in names)] for row in rows)
    return measure.markdown(["tokens", *names], lines)


if __name__ == "__main__":
    measure.command(main)
