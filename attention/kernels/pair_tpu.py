"""The pairwise family on TPUs: Pallas kernels for Mosaic, with the grid (batch, heads, tiles, tiles)."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from attention.dropout import keep_columns, words_of
from attention.kernels.pair_tile import Fixed, Operands, PairPlan, form_of, tiles_before
from attention.kernels.plan import even
from attention.kernels.reference import score_dtype

SCALARS = ("offset", "lengths", "seed", "sequence")


def block_sizes(queries: int, keys: int) -> tuple[int, int]:
    """Returns queries and keys of a tile: whole registers of 8 × 128, with a few tiles of scores in fast memory."""
    return even(queries, 256, 32), even(keys, 512, 128)


def forward(plan: PairPlan, operands: Operands, fixed: Fixed) -> tuple[jax.Array, jax.Array]:
    """Returns the output `(B, N, T', V)` and log-sum-exp `(B, N, T')`."""
    batch, heads, queries, _ = operands.query.shape
    width, kind = operands.value.shape[-1], operands.query.dtype
    rows, across = plan.block
    out, log_sums = _launch(
        _forward_kernel,
        plan,
        _by_queries,
        (batch, heads, queries // rows, operands.key.shape[-1] // across),
        _inputs(plan, operands, fixed),
        {
            "out": _Part((batch, heads, queries, width), operands.value.dtype, (rows, width), _query),
            "log_sum": _Part((batch, heads, queries, 1), kind, (rows, 1), _query),
        },
        {"scores": (rows, across), "highest": (rows, 1), "total": (rows, 1), "sum": (rows, width)},
        fixed,
    )
    return out, log_sums[..., 0]


def backward(
    plan: PairPlan, operands: Operands, fixed: Fixed, out: jax.Array, log_sums: jax.Array, gradient: jax.Array
) -> Operands:
    """Returns the gradients of all operands."""
    batch, heads, queries, units = operands.query.shape
    *_, keys, width = operands.value.shape
    rows, across = plan.block
    kind = operands.query.dtype
    through_sum = jnp.sum(gradient.astype(kind) * out.astype(kind), -1, keepdims=True)
    inputs = _inputs(plan, operands, fixed) | {
        "gradient": _Part.of(gradient, (rows, width), _query),
        "log_sum": _Part.of(log_sums[..., None], (rows, 1), _query),
        "through_sum": _Part.of(through_sum, (rows, 1), _query),
    }
    scratch = dict.fromkeys(("scores", "d_weights", "d_scores"), plan.block)
    form = form_of(plan.network)
    sums = {
        f"d_weight_{index}": _Part((batch, heads, *shape), kind, shape, lambda b, n, i, j: (b, n, 0, 0))
        for index, shape in enumerate(form.gradient_shapes(across))
    }
    by_query = {"d_query": _Part((batch, heads, queries, units), kind, (rows, units), _query)} | sums
    if operands.bias is not None:
        by_query["d_bias"] = _Part((batch, heads, queries, keys), kind, (rows, across), lambda *place: place)
    tiles = queries // rows, keys // across
    d_query, *rest = _launch(_query_kernel, plan, _by_queries, (batch, heads, *tiles), inputs, by_query, scratch, fixed)
    by_key = {
        "d_key": _Part((batch, heads, units, keys), kind, (units, across), _key),
        "d_value": _Part((batch, heads, keys, width), kind, (across, width), _value),
    }
    d_key, d_value = _launch(_key_kernel, plan, _by_keys, (batch, heads, *tiles[::-1]), inputs, by_key, scratch, fixed)
    d_weights = form.weight_gradients(rest[: len(sums)])
    return operands._replace(
        query=d_query,
        key=d_key,
        value=d_value.astype(operands.value.dtype),
        weights=tuple(_like(x.sum(0), w) for x, w in zip(d_weights, operands.weights, strict=True)),
        bias=None if operands.bias is None else _like(rest[-1], operands.bias),
    )


def _like(gradient: jax.Array, shared: jax.Array) -> jax.Array:
    """Sums a gradient over the axes that are shared."""
    axes = tuple(axis for axis, size in enumerate(shared.shape) if size == 1)
    return gradient.sum(axes, keepdims=True)


# Blocks of arrays, by sequence b, head n, tile of queries i and tile of keys j.


@dataclasses.dataclass(frozen=True)
class _Part:
    """An array, the shape of the block of its last axes that a tile sees, and the index of that block."""

    shape: tuple[int, ...]
    dtype: Any
    block: tuple[int, ...]
    index: Callable[..., tuple[Any, ...]]
    array: jax.Array | None = None

    @classmethod
    def of(cls, array: jax.Array, block: tuple[int, ...], index: Callable) -> _Part:
        return cls(array.shape, array.dtype, block, index, array)

    def spec(self, place: Callable) -> pl.BlockSpec:
        lead = len(self.shape) - len(self.block)
        return pl.BlockSpec((None,) * lead + self.block, lambda *grid: self.index(*place(*grid)))


def _query(b, n, i, j):
    return b, n, i, 0


def _key(b, n, i, j):
    return b, n, 0, j


def _value(b, n, i, j):
    return b, n, j, 0


def _inputs(plan: PairPlan, operands: Operands, fixed: Fixed) -> dict[str, _Part]:
    rows, across = plan.block
    units, width = plan.network.units[0], operands.value.shape[-1]
    inputs = {
        "query": _Part.of(operands.query, (rows, units), _query),
        "key": _Part.of(operands.key, (units, across), _key),
        "value": _Part.of(operands.value, (across, width), _value),
    }
    for index, weight in enumerate(operands.weights):
        split = len(weight) > 1
        inputs[f"weight_{index}"] = _Part.of(
            weight, weight.shape[1:], lambda b, n, i, j, split=split: (n * split, 0, 0)
        )
    for name, array in {"bias": operands.bias, "dense": fixed.dense}.items():
        if array is not None:
            many = tuple(size > 1 for size in array.shape)
            block = tuple(size if split else 1 for size, split in zip(plan.block, many[2:], strict=True))
            inputs[name] = _Part.of(array, block, lambda *at, many=many: tuple(map(operator.mul, at, many)))
    if fixed.query_segments is not None:
        inputs["query_segments"] = _Part.of(fixed.query_segments, (rows, 1), lambda b, n, i, j: (b, i, 0))
        inputs["key_segments"] = _Part.of(fixed.key_segments, (1, across), lambda b, n, i, j: (b, 0, j))
    return inputs


def _launch(
    kernel: Callable,
    plan: PairPlan,
    order: Callable,
    grid: tuple[int, ...],
    inputs: dict[str, _Part],
    outputs: dict[str, _Part],
    scratch: dict[str, tuple[int, ...]],
    fixed: Fixed,
) -> Sequence[jax.Array]:
    """Runs a kernel over the grid with a `_TpuTile` for each tile; a skipped tile keeps the blocks already loaded."""

    def place(b, n, x, y, *scalars):
        (i, j), _ = order(plan, dict(zip(SCALARS, scalars, strict=True)), b, x, y, grid[3])
        return b, n, i, j

    def output_place(b, n, x, y, *scalars):
        return (b, n, x, y) if order is _by_queries else (b, n, y, x)

    def body(*refs):
        names = (*SCALARS, *inputs, *outputs, *scratch)
        b, n, x, y = (pl.program_id(axis) for axis in range(4))
        ref = dict(zip(names, refs, strict=True))
        (i, j), visible = order(plan, ref, b, x, y, grid[3])
        sequence = b * grid[1] + n
        kernel(_TpuTile(plan, ref, sequence, b, i, j), visible, (x, y), (grid[2] - 1, grid[3] - 1))

    call = pl.pallas_call(
        body,
        out_shape=[jax.ShapeDtypeStruct(part.shape, part.dtype) for part in outputs.values()],
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(SCALARS),
            grid=grid,
            in_specs=[part.spec(place) for part in inputs.values()],
            out_specs=[part.spec(output_place) for part in outputs.values()],
            scratch_shapes=[pltpu.VMEM(shape, inputs["query"].dtype) for shape in scratch.values()],
        ),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary", "arbitrary")),
        interpret=plan.platform == "interpret",
        name=kernel.__name__.strip("_"),
    )
    scalars = fixed.offset, fixed.lengths, fixed.seed, fixed.sequence.reshape(-1)
    return call(*scalars, *(part.array for part in inputs.values()))


def _by_queries(plan: PairPlan, scalars: dict[str, Any], b, i, y, tiles: int):
    """Returns the tile (i, j) with the visible tile of keys nearest to y, and whether some query of i sees y itself."""
    rows, across = plan.block
    lowest = scalars["offset"][0] + i * rows
    first, last = 0, tiles - 1
    if plan.window:
        first = tiles_before(lowest - plan.window + 1, across)
    if plan.causal or plan.window:
        highest = lowest + rows - 1 + (0 if plan.causal else plan.window - 1)
        last = jnp.minimum(last, tiles_before(highest, across))
    if plan.limited:
        last = jnp.minimum(last, tiles_before(scalars["lengths"][b] - 1, across))
    visible = (first <= y) & (y <= last)
    return (i, jnp.clip(y, jnp.minimum(first, tiles - 1), jnp.maximum(last, 0))), visible


def _by_keys(plan: PairPlan, scalars: dict[str, Any], b, j, y, tiles: int):
    """Returns the tile (i, j) with the tile of queries nearest to y that sees some key of j, and whether y does."""
    rows, across = plan.block
    lowest = j * across - scalars["offset"][0]
    first, last = 0, tiles - 1
    if plan.causal or plan.window:
        first = tiles_before(lowest if plan.causal else lowest - plan.window + 1, rows)
    if plan.window:
        last = jnp.minimum(last, tiles_before(lowest + across - 1 + plan.window - 1, rows))
    visible = (first <= y) & (y <= last)
    if plan.limited:
        visible &= j * across < scalars["lengths"][b]
    return (jnp.clip(y, jnp.minimum(first, tiles - 1), jnp.maximum(last, 0)), j), visible


# The computation of a tile.


@dataclasses.dataclass(frozen=True)
class _TpuTile:
    """Tile (i, j) of sequence b and one head; `sequence` counts both."""

    plan: PairPlan
    ref: dict[str, Any]
    sequence: Any
    b: Any
    i: Any
    j: Any

    @property
    def lowest(self) -> float:
        """Returns the score of masked pairs, half the lowest number, to which a score can be added without overflow."""
        return float(jnp.finfo(self.ref["query"].dtype).min) / 2

    @property
    def weights(self) -> list[jax.Array]:
        return [self.ref[f"weight_{index}"][...] for index in range(len(self.plan.network.shapes))]

    def _index(self, axis: int) -> jax.Array:
        start = (self.i, self.j)[axis] * self.plan.block[axis]
        shape = tuple(size if d == axis else 1 for d, size in enumerate(self.plan.block))
        return start + jax.lax.broadcasted_iota(jnp.int32, shape, axis)

    def allowed(self) -> jax.Array | None:
        """Returns which pairs the mask allows, broadcastable to the tile, or None if all are allowed."""
        plan, ref = self.plan, self.ref
        query, key = ref["offset"][0] + self._index(0), self._index(1)
        conditions = []
        if plan.causal:
            conditions.append(key <= query)
        if plan.window:
            conditions.append(jnp.abs(query - key) < plan.window)
        if plan.limited:
            conditions.append(jnp.broadcast_to(key < jnp.minimum(ref["lengths"][self.b], plan.keys), plan.block))
        if "query_segments" in ref:
            conditions.append(ref["query_segments"][...] == ref["key_segments"][...])
        if "dense" in ref:
            conditions.append(jnp.broadcast_to(ref["dense"][...].astype(jnp.int32) != 0, plan.block))
        return functools.reduce(jnp.logical_and, conditions) if conditions else None

    def kept(self) -> jax.Array:
        """Returns which weights dropout keeps, as `attention.dropout.keep` does."""
        plan, ref = self.plan, self.ref
        row = ref["sequence"][self.sequence] * jnp.uint32(plan.queries) + self._index(0).astype(jnp.uint32)
        words = words_of((ref["seed"][0], ref["seed"][1]), row)
        return keep_columns(words, self._index(1).astype(jnp.uint32), plan.rate)

    def offsets(self) -> jax.Array | None:
        """Returns the bias and mask as one array to add to the scores, or None."""
        bias, allowed = self.ref["bias"][...] if "bias" in self.ref else None, self.allowed()
        if allowed is None:
            return bias
        return jnp.where(allowed, 0.0 if bias is None else bias, self.lowest).astype(self.ref["query"].dtype)

    def strips(self, visit: Callable, start: Any = None) -> Any:
        """Runs `visit(rows, queries, carry)` over strips of a few queries, carrying from `start` on."""
        size = form_of(self.plan.network).rows
        query = self.ref["query"]

        def body(strip, carry):
            rows = pl.ds(pl.multiple_of(strip * size, size), size)
            return visit(rows, query[rows, :], carry)

        return jax.lax.fori_loop(0, self.plan.block[0] // size, body, start)


def _dot(x: jax.Array, y: jax.Array, axes: tuple[int, int]) -> jax.Array:
    """Returns the product summed over the axes; exact in float32, which a TPU would otherwise round to bfloat16."""
    exact = jax.lax.Precision.HIGHEST if x.dtype != jnp.bfloat16 else None
    numbers = (((axes[0],), (axes[1],)), ((), ()))
    return jax.lax.dot_general(x, y, numbers, precision=exact, preferred_element_type=score_dtype(x))


def _forward_kernel(tile: _TpuTile, visible, at, ends) -> None:
    ref, plan, form = tile.ref, tile.plan, form_of(tile.plan.network)
    floor = tile.lowest / 2  # so that a row without allowed keys has weights exp(lowest - floor) = 0

    @pl.when(at[1] == 0)
    def _():
        ref["highest"][...] = jnp.full_like(ref["highest"], floor)
        ref["total"][...] = jnp.zeros_like(ref["total"])
        ref["sum"][...] = jnp.zeros_like(ref["sum"])

    @pl.when(visible)
    def _():
        keys = form.spread_keys(ref["key"][...])
        weights = form.spread_weights(tile.weights, plan.block[1])

        def strip(rows, queries, carry):
            ref["scores"][rows, :] = form.scores(form.split_queries(queries), keys, weights)
            return carry

        tile.strips(strip, 0)
        scores, offsets = ref["scores"][...], tile.offsets()
        scores = scores if offsets is None else scores + offsets
        before = ref["highest"][...]
        highest = jnp.maximum(before, scores.max(-1, keepdims=True))
        shrink, shares = jnp.exp(before - highest), jnp.exp(scores - highest)
        ref["highest"][...] = highest
        ref["total"][...] = ref["total"][...] * shrink + shares.sum(-1, keepdims=True)
        if plan.rate:
            shares = jnp.where(tile.kept(), shares, 0.0)
        value = ref["value"][...]
        ref["sum"][...] = ref["sum"][...] * shrink + _dot(shares.astype(value.dtype), value, (1, 0))

    @pl.when(at[1] == ends[1])
    def _():
        total = ref["total"][...]
        total = jnp.where(total == 0, 1.0, total)
        ref["out"][...] = (ref["sum"][...] / (total * (1 - plan.rate))).astype(ref["out"].dtype)
        ref["log_sum"][...] = ref["highest"][...] + jnp.log(total)


def _prepare(tile: _TpuTile) -> bool:
    """Stores d_weights, and in d_scores the bias and mask; returns whether there are any."""
    ref, plan = tile.ref, tile.plan
    gradient = ref["gradient"][...]
    d_weights = _dot(gradient, ref["value"][...], (1, 1))
    if plan.rate:
        d_weights = jnp.where(tile.kept(), d_weights / (1 - plan.rate), 0.0)
    ref["d_weights"][...] = d_weights
    if (offsets := tile.offsets()) is None:
        return False
    ref["d_scores"][...] = jnp.broadcast_to(offsets, plan.block)
    return True


def _weights_and_gradient(tile: _TpuTile, rows, scores: jax.Array, shifted: bool) -> tuple[jax.Array, jax.Array]:
    """Returns the softmax weights of a strip and the gradient of its scores."""
    ref = tile.ref
    scores = scores + ref["d_scores"][rows, :] if shifted else scores
    weights = jnp.exp(scores - ref["log_sum"][rows, :])
    return weights, weights * (ref["d_weights"][rows, :] - ref["through_sum"][rows, :])


def _query_kernel(tile: _TpuTile, visible, at, ends) -> None:
    ref, form = tile.ref, form_of(tile.plan.network)
    sums = [ref[f"d_weight_{index}"] for index in range(len(form.gradient_shapes(1)))]
    d_bias = ref.get("d_bias")

    @pl.when((at[0] == 0) & (at[1] == 0))
    def _():
        for x in sums:
            x[...] = jnp.zeros_like(x)

    @pl.when(at[1] == 0)
    def _():
        ref["d_query"][...] = jnp.zeros_like(ref["d_query"])

    @pl.when(visible)
    def _():
        shifted = _prepare(tile)
        keys = form.spread_keys(ref["key"][...])
        weights = form.spread_weights(tile.weights, tile.plan.block[1])

        def strip(rows, queries, carry):
            split = form.split_queries(queries)
            scores, pull = jax.vjp(lambda split, weights: form.scores(split, keys, weights), split, weights)
            _, d_scores = _weights_and_gradient(tile, rows, scores, shifted)
            if d_bias is not None:
                ref["d_scores"][rows, :] = d_scores
            d_split, d_weights = pull(d_scores)
            ref["d_query"][rows, :] += form.join_queries(d_split)
            return jax.tree.map(jnp.add, carry, d_weights)

        gradients = tile.strips(strip, jax.tree.map(jnp.zeros_like, weights))
        for x, gradient in zip(sums, form.gather_weights(gradients), strict=True):
            x[...] += gradient

    if d_bias is not None:
        d_bias[...] = jnp.where(visible, ref["d_scores"][...], 0.0)


def _key_kernel(tile: _TpuTile, visible, at, ends) -> None:
    ref, plan, form = tile.ref, tile.plan, form_of(tile.plan.network)

    @pl.when(at[1] == 0)
    def _():
        for name in ("d_key", "d_value"):
            ref[name][...] = jnp.zeros_like(ref[name])

    @pl.when(visible)
    def _():
        shifted = _prepare(tile)
        keys = form.spread_keys(ref["key"][...])
        weights = form.spread_weights(tile.weights, plan.block[1])

        def strip(rows, queries, carry):
            split = form.split_queries(queries)
            scores, pull = jax.vjp(lambda keys: form.scores(split, keys, weights), keys)
            ref["scores"][rows, :], d_scores = _weights_and_gradient(tile, rows, scores, shifted)
            return jax.tree.map(jnp.add, carry, pull(d_scores)[0])

        ref["d_key"][...] += form.gather_keys(tile.strips(strip, jax.tree.map(jnp.zeros_like, keys)))
        shares, gradient = ref["scores"][...], ref["gradient"][...]
        if plan.rate:
            shares = jnp.where(tile.kept(), shares / (1 - plan.rate), 0.0)
        ref["d_value"][...] += _dot(shares.astype(gradient.dtype), gradient, (0, 0))
