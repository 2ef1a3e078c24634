"""Speed of the core of attention, from projected queries, keys and values to a head's output, here and elsewhere.

Inputs are random, with 16,384 tokens at a time and a causal mask. An array has 67 MB, more than the 50 MB of an H100's
L2 cache. Only useful operations count, on half of all pairs. A backward pass counts as 2.5 forward passes, as in
published timings of flash attention, which computes scores again. Our recurrences compute their gates from the layer's
inputs; flash-linear-attention is given its gates.
"""

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import attention
from benchmarks.attention import Core, Shape
from benchmarks.device import about, timing
from benchmarks.device.items import Item, Row, Skipped, need

TOKENS = 16_384
DTYPES = ("bfloat16", "float32")
PLANNED = "planned by the compiler"
LENGTHS = (4096, 1024, 16_384, 2048)
HEADS = ((32, 64), (16, 128))
FORWARD, BOTH = attention.PASSES
PASSES = {FORWARD: 1.0, BOTH: 3.5}  # work as a multiple of a forward pass
MOST = 30e9  # most bytes of a contestant
JAX_NN, TOKAMAX = "jax.nn cuDNN", "tokamax Mosaic"
# Contestants, grouped by the number of shapes worth measuring.
FIRST = tuple((spec, by) for spec in ("dot_product", "neural(dim=2)") for by in ("cudnn", "pallas", "chunked"))
FUSED = ("alibi", "soft_cap", "relative")  # functions of a pair without a hand-written kernel
STATES = ("gated_delta", "kimi_delta", "gated_linear", "state_space", "retention", "delta")
SECOND = (
    *(("dot_product", "xla"), ("additive", "pallas"), ("additive", "chunked"), ("gaussian", "cudnn")),
    *(
        *((spec, by) for spec in FUSED for by in ("pallas", "chunked")),
        *((spec, "chunked") for spec in STATES),
        ("linear", "chunked"),
    ),
)
DEAR = (
    *((spec, attention.GENERAL) for spec in ("neural(dim=2)", "additive", "neural(dim=16)")),
    *((spec, by) for spec in ("neural(dim=16)", "neural(dim=None)") for by in ("pallas", "chunked")),
)


def items(tiny: bool) -> list[Item]:
    """Lists the device's roof, the check of the method, and the contestants, shape by shape."""
    known = [Item(f"core, roof, {dtype}", "core", "jax", functools.partial(roof, dtype, tiny)) for dtype in DTYPES]
    known += [Item("core, method, jax", "core", "jax", functools.partial(method, tiny))]
    for shape, what in shapes(tiny):
        for name, build in contestants(shape):
            prepare = functools.partial(prepare_jax, build, shape, what, name)
            known.append(Item(item_name("core", shape, what, name), "core", "jax", prepare))
    return known


def item_name(group: str, shape: Shape, what: str, contestant: str) -> str:
    """Names an item."""
    size = f"{shape.batch} x {shape.length:,} tokens, {shape.heads} heads of {shape.width}"
    return f"{group}, {shape.dtype}, {size}, {what}, {contestant}"


def shapes(tiny: bool) -> Iterator[tuple[Shape, str]]:
    """Yields shapes and passes, the most telling first."""
    if tiny:
        yield from ((Shape(2, 16, 2, 8, "bfloat16", True), what) for what in PASSES)
        return
    half = [
        Shape(TOKENS // length, length, heads, width, "bfloat16", True)
        for (heads, width), length in itertools.product(HEADS, LENGTHS)
    ]
    single = Shape(TOKENS // 1024, 1024, *HEADS[0], "float32", True)
    yield from itertools.product((*half[: len(LENGTHS)], single, *half[len(LENGTHS) :]), PASSES)


def contestants(shape: Shape) -> Iterator[tuple[str, Callable[[Shape], Core]]]:
    """Yields the contestants for a shape: names, and functions that prepare them."""
    wide, half = shape.width == HEADS[1][1], shape.dtype == "bfloat16"
    if half:
        yield JAX_NN, functools.partial(_other, JAX_NN, _jax_nn)
        yield TOKAMAX, functools.partial(_other, TOKAMAX, _tokamax)
    ours = FIRST
    if not wide and shape.length <= LENGTHS[0]:
        ours += SECOND
    if not wide and shape.length <= 1024:
        ours += DEAR
    for spec, implementation in ours:
        known = (*attention.mechanism_of(spec).score.implementations, attention.GENERAL)
        if implementation in known and (half or implementation != "cudnn"):
            yield f"{spec}, {implementation}", functools.partial(attention.ours, spec, implementation)


def _other(name: str, make: Callable[[], Callable], shape: Shape) -> Core:
    return Core(name, make(), (), attention.useful(attention.mechanism_of("dot_product"), shape))


def _jax_nn() -> Callable:
    if jax.default_backend() != "gpu":
        raise Skipped(f"cuDNN needs an NVIDIA GPU, so {JAX_NN} is left out.")
    return attention.jax_nn(True, "cudnn")


def _tokamax() -> Callable:
    need("tokamax", TOKAMAX)
    from benchmarks.peers import attention_tokamax

    return attention_tokamax.causal


def prepare_jax(build: Callable[[Shape], Core], shape: Shape, what: str, name: str) -> Callable[[], Row]:
    """Compiles a contestant, and makes a function that measures it."""
    core = build(shape)
    size = jax.ShapeDtypeStruct((shape.batch, shape.length, shape.heads, shape.width), shape.dtype)
    compiled = jax.jit(passes(core, what)).lower(core.weights, *[size] * 4).compile()
    memory = planned(compiled)

    def measured() -> Row:
        if memory["bytes"] > MOST:
            return {"skipped": f"It needs {memory['bytes'] / 1e9:.0f} GB."}
        given = drawn(shape)
        row = timing.measured(lambda: compiled(core.weights, *given), "jax")
        return row | of_contest(shape, what, name, core.cost.flops) | memory | made_by(name)

    return measured


def planned(compiled: Any) -> Row:
    """Adds up the bytes of arguments, of outputs that take no argument's place, and of temporary buffers."""
    memory = compiled.memory_analysis()
    outputs = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return {"bytes": memory.argument_size_in_bytes + outputs + memory.temp_size_in_bytes, "bytes_of": PLANNED}


def passes(core: Core, what: str) -> Callable[..., Any]:
    """Makes the forward pass, or both passes, with gradients of weights, query, key and value."""

    def forward(weights, query, key, value):
        return core.function(weights, query, key, value, query.reshape(*query.shape[:2], -1))

    def both(weights, query, key, value, weigh):
        out, pull = jax.vjp(forward, weights, query, key, value)
        return out, pull(weigh)

    return both if what == BOTH else lambda weights, query, key, value, _: forward(weights, query, key, value)


def drawn(shape: Shape) -> list[jax.Array]:
    """Draws query, key, value and the gradient of the output."""
    size = (shape.batch, shape.length, shape.heads, shape.width)
    return [jax.random.normal(key, size, shape.dtype) for key in jax.random.split(jax.random.key(0), 4)]


def of_contest(shape: Shape, what: str, name: str, flops: float) -> Row:
    """Describes the contest in a row; `flops` is the work of one sequence forward."""
    sizes = {"length": shape.length, "batch": shape.batch, "heads": shape.heads, "width": shape.width}
    work = flops * shape.batch * PASSES[what]
    products = {"products": "TF32"} if shape.dtype == "float32" else {}
    return {"contestant": name, "pass": what, "dtype": shape.dtype, **products, **sizes, "flops": work}


def made_by(name: str) -> Row:
    """Describes the sources of a contestant of ours."""
    spec, _, implementation = name.partition(", ")
    if not implementation:
        return {}
    made = "pallas" if implementation == attention.GENERAL else implementation
    return about.made_by("recurrence" if spec in (*STATES, "linear") else made)


def roof(dtype: str, tiny: bool) -> Callable[[], Row]:
    """Compiles a large product and a large copy, and makes a function that measures their operations and bytes."""
    side, length = (256, 2**16) if tiny else (8192, 2**28)
    matrix, vector = jax.ShapeDtypeStruct((side, side), dtype), jax.ShapeDtypeStruct((length,), dtype)
    product = jax.jit(lambda x, y: x @ y).lower(matrix, matrix).compile()
    copy = jax.jit(lambda x: -x).lower(vector).compile()

    def measured() -> Row:
        square, long = (jax.random.normal(jax.random.key(0), like.shape, dtype) for like in (matrix, vector))
        seconds = [timing.measured(call, "jax") for call in (lambda: product(square, square), lambda: copy(long))]
        work = 2 * side**3, 2 * length * jnp.dtype(dtype).itemsize
        flops, bandwidth = (amount / row["seconds"] for amount, row in zip(work, seconds, strict=True))
        return {"flops_per_second": flops, "bytes_per_second": bandwidth, "method": seconds[0]["method"]}

    return measured


def method(tiny: bool) -> Callable[[], Row]:
    """Compiles a product, and makes a function that measures it by the profiler and by the slope over chains."""
    side = 256 if tiny else 8192
    matrix = jax.ShapeDtypeStruct((side, side), "bfloat16")
    product = jax.jit(lambda x, y: x @ y / side**0.5).lower(matrix, matrix).compile()

    def measured() -> Row:
        x, y = (jax.random.normal(jax.random.key(n), matrix.shape, matrix.dtype) for n in range(2))
        by_profiler = timing.measured(lambda: product(x, y), "jax")
        return in_both_ways(by_profiler, timing.slope(lambda x: product(x, y), x, "jax"))

    return measured


def in_both_ways(by_profiler: Row, by_slope: float) -> Row:
    """Adds the slope's seconds to a row of the profiler's, with the ratio of both."""
    return by_profiler | {"slope": by_slope, "ratio": by_profiler["seconds"] / by_slope}
