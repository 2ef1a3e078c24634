"""The pairwise family on TPUs: Pallas kernels for Mosaic, with the grid (batch, heads, tiles, tiles)."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from attention.kernels.fused.tpu import bytes_of
from attention.kernels.loops.plan import even
from attention.kernels.mlp.network import Fixed, Network, Operands, PairPlan
from attention.kernels.mlp.passes import backward_kernel, forward_kernel
from attention.kernels.mlp.strips import STRIP, ByUnits, Stacked, form_of
from attention.kernels.mlp.tile import LANES, TpuTile, names_of
from attention.kernels.sight import tiles_of_keys, tiles_of_queries

SCALARS = ("offset", "lengths", "seed", "sequence")
MOST = 2**13  # rows times units of a tile


def block_sizes(queries: int, keys: int, network: Network) -> tuple[int, int]:
    """Chooses a tile's queries and keys: whole registers of 8 × 128, the most whose rows fit in fast memory.

    Rows that are spread over 128 columns take at most 4 MiB. `benchmarks/README.md` has what other sizes cost.
    """
    nothing = {"block": (0, 0), "causal": False, "window": 0, "limited": False, "rate": 0.0, "platform": ""}
    form = form_of(PairPlan(network=network, queries=queries, keys=keys, **nothing))
    rows = next((rows for rows in (512, 256) if rows * form.units <= MOST), 128)
    most = 128 if isinstance(form, Stacked) else 512
    return even(queries, most, LANES if queries > LANES else 32), even(keys, rows, LANES)


def forward(plan: PairPlan, operands: Operands, fixed: Fixed) -> tuple[jax.Array, jax.Array]:
    """Computes the output `(B, N, T', V)` and log-sum-exp `(B, N, T')`."""
    batch, heads, queries, _ = operands.query.shape
    keys, width = operands.value.shape[2:]
    kind = operands.query.dtype
    rows, across = plan.block
    form = form_of(plan)
    lanes = min(across, LANES)
    out, log_sums = _launch(
        forward_kernel,
        plan,
        _by_queries,
        (batch, heads, queries // rows, keys // across),
        _inputs(plan, operands, fixed, turn=False)[0],
        {
            "out": _Part((batch, heads, queries, width), operands.value.dtype, (rows, width), _row),
            "log_sum": _Part((batch, heads, queries, 1), kind, (rows, 1), _row),
        },
        {
            "spread": (_spread_shape(form, rows, lanes), kind),
            "columns": (form.spread_columns_shape(across), kind),
            "shares": ((rows, across), operands.value.dtype),
            "highest": ((rows, lanes), kind),
            "total": ((rows, lanes), kind),
            "sum": ((rows, width), kind),
        },
        fixed,
    )
    return out, log_sums[..., 0]


def backward(
    plan: PairPlan, operands: Operands, fixed: Fixed, out: jax.Array, log_sums: jax.Array, gradient: jax.Array
) -> Operands:
    """Computes the gradients of all operands by one kernel, whose rows are keys."""
    batch, heads, queries, _ = operands.query.shape
    keys, width = operands.value.shape[2:]
    across, rows = plan.block
    kind, form = operands.query.dtype, form_of(plan)
    through_sum = jnp.sum(gradient.astype(kind) * out.astype(kind), -1)
    inputs, pull_weights = _inputs(plan, operands, fixed, turn=True)
    inputs |= {
        "gradient": _Part.of(gradient, (across, width), _column_block),
        "log_sum": _Part.of(log_sums[:, :, None], (1, across), _column),
        "through_sum": _Part.of(through_sum[:, :, None], (1, across), _column),
    }
    whole = lambda b, n, i, j: (b, n, 0, 0)  # noqa: E731
    outputs = {
        "d_rows": _Part((batch, heads, keys, form.units), kind, (rows, form.units), _row),
        "d_value": _Part((batch, heads, keys, width), kind, (rows, width), _row),
        "d_columns": _Part((batch, heads, form.column_units, queries), kind, (form.column_units, queries), whole),
    }
    learned = [name for name, learned in zip(names_of(form), form.learned, strict=True) if learned]
    for name in learned:
        shape = inputs[name].shape[1:]
        outputs[f"d_{name}"] = _Part((batch, heads, *shape), kind, shape, whole)
    if operands.bias is not None:
        outputs["d_bias"] = _Part((batch, heads, keys, queries), kind, (rows, across), lambda *place: place)
    spread = _spread_shape(form, rows, min(across, LANES)), kind
    scratch = {
        "spread": spread,
        "d_spread": spread,
        "columns": (form.spread_columns_shape(across), kind),
        "d_spread_columns": (form.spread_columns_shape(across), kind),
        "shares": ((rows, across), operands.value.dtype),
    }
    grid = batch, heads, keys // rows, queries // across
    found = dict(
        zip(outputs, _launch(backward_kernel, plan, _by_keys, grid, inputs, outputs, scratch, fixed), strict=True)
    )
    units = plan.network.units[0]
    sums = tuple(found[f"d_{name}"].sum(0) if name in learned else None for name in names_of(form))
    by_kernel = found["d_rows"], found["d_columns"], pull_weights(sums)
    centred = _centred(plan, operands, turn=True)
    d_rows, d_columns, d_weights = form.gradients(*centred, operands.weights, by_kernel)
    return operands._replace(
        query=d_columns[:, :, :units].mT,
        key=d_rows[..., :units].mT,
        value=found["d_value"].astype(operands.value.dtype),
        weights=d_weights,
        bias=None if operands.bias is None else _like(found["d_bias"].mT, operands.bias),
    )


def _spread_shape(form: ByUnits | Stacked, rows: int, width: int) -> tuple[int, int]:
    """Gives the shape of all strips of `rows` spread over columns."""
    height, width = form.spread_rows_shape(width)
    return rows // STRIP * height, width


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


def _row(b, n, i, j):
    return b, n, i, 0


def _column(b, n, i, j):
    return b, n, 0, j


def _column_block(b, n, i, j):
    return b, n, j, 0


def _inputs(plan: PairPlan, operands: Operands, fixed: Fixed, *, turn: bool) -> tuple[dict[str, _Part], Callable]:
    """Prepares the arrays with their blocks, and the function from the gradients of spread weights to the weights'.

    Rows are queries and columns are keys, or with `turn` the reverse.
    """
    form, block = form_of(plan), plan.block[::-1] if turn else plan.block
    rows, across = block
    spread, pull_weights = _spread_weights(form, operands.weights, min(across, LANES))
    padding = form.units - plan.network.units[0]
    of_rows, of_columns = _centred(plan, operands, turn)
    of_columns = form.columns_of(_pad(of_columns, -2, padding), operands.weights)
    inputs = {
        "rows": _Part.of(_pad(of_rows, -1, padding), (rows, form.units), _row),
        "across": _Part.of(of_columns, (form.column_units, across), _column),
        "value": _Part.of(operands.value, (block[not turn], operands.value.shape[-1]), _row if turn else _column_block),
    }
    for name, array in zip(names_of(form), spread, strict=True):
        split = len(array) > 1
        inputs[name] = _Part.of(array, array.shape[1:], lambda b, n, i, j, split=split: (n * split, 0, 0))
    for name, array in {"bias": operands.bias, "dense": fixed.dense}.items():
        if array is not None:
            array = array.mT if turn else array
            many = tuple(size > 1 for size in array.shape)
            shape = tuple(size if split else 1 for size, split in zip(block, many[2:], strict=True))
            inputs[name] = _Part.of(array, shape, lambda *at, many=many: tuple(map(operator.mul, at, many)))
    if fixed.query_segments is not None:
        of_rows, of_columns = fixed.query_segments, fixed.key_segments
        of_rows, of_columns = (of_columns.mT, of_rows.mT) if turn else (of_rows, of_columns)
        inputs["row_segments"] = _Part.of(of_rows, (rows, 1), lambda b, n, i, j: (b, i, 0))
        inputs["column_segments"] = _Part.of(of_columns, (1, across), lambda b, n, i, j: (b, 0, j))
    return inputs, pull_weights


def _centred(plan: PairPlan, operands: Operands, turn: bool) -> tuple[jax.Array, jax.Array]:
    """Gives the units of rows and of columns, which are queries and keys, or with `turn` the reverse."""
    if turn:
        return form_of(plan).centred(operands.key.mT, operands.query.mT, plan.queries)
    return form_of(plan).centred(operands.query, operands.key, plan.keys)


def _pad(x: jax.Array, axis: int, size: int) -> jax.Array:
    ends = [(0, 0)] * x.ndim
    ends[axis] = (0, size)
    return jnp.pad(x, ends)


def _spread_weights(form: ByUnits | Stacked, weights: tuple[jax.Array, ...], width: int) -> tuple[Any, Callable]:
    """Spreads each head's weights, and gives the function from the gradients, None for zero, to the weights'."""
    spread, pull = jax.vjp(lambda weights: jax.vmap(lambda w: form.spread_weights(w, width))(weights), weights)

    def pull_weights(gradients):
        shared = (
            g if g is None or len(x) > 1 else g.sum(0, keepdims=True) for g, x in zip(gradients, spread, strict=True)
        )
        return pull(tuple(jnp.zeros_like(x) if g is None else g for g, x in zip(shared, spread, strict=True)))[0]

    return spread, pull_weights


def _launch(
    kernel: Callable,
    plan: PairPlan,
    order: Callable,
    grid: tuple[int, ...],
    inputs: dict[str, _Part],
    outputs: dict[str, _Part],
    scratch: dict[str, tuple[tuple[int, ...], Any]],
    fixed: Fixed,
) -> Sequence[jax.Array]:
    """Runs a kernel over the grid with a `TpuTile` for each tile; a skipped tile keeps the blocks already loaded."""

    def place(b, n, x, y, *scalars):
        nearest, _ = order(plan, dict(zip(SCALARS, scalars, strict=True)), b, x, y, grid[3])
        return b, n, x, nearest

    def output_place(b, n, x, y, *scalars):
        return b, n, x, y

    def body(*refs):
        names = (*SCALARS, *inputs, *outputs, *scratch)
        b, n, x, y = (pl.program_id(axis) for axis in range(4))
        ref = dict(zip(names, refs, strict=True))
        nearest, visible = order(plan, ref, b, x, y, grid[3])
        tile = TpuTile(plan, ref, b * grid[1] + n, b, x, nearest, order is _by_keys, grid[3])
        kernel(tile, visible, (x, y))

    if "dense" in inputs:
        scratch = scratch | {"allowed": (inputs["dense"].block, jnp.int32)}
    held = [part.block for part in (*inputs.values(), *outputs.values())] * 2 + [shape for shape, _ in scratch.values()]
    call = pl.pallas_call(
        body,
        out_shape=[jax.ShapeDtypeStruct(part.shape, part.dtype) for part in outputs.values()],
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(SCALARS),
            grid=grid,
            in_specs=[part.spec(place) for part in inputs.values()],
            out_specs=[part.spec(output_place) for part in outputs.values()],
            scratch_shapes=[pltpu.VMEM(*shape) for shape in scratch.values()],
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary", "arbitrary"),
            vmem_limit_bytes=sum(map(bytes_of, held)) + 2**23,
        ),
        interpret=plan.platform == "interpret",
        name=kernel.__name__.strip("_"),
    )
    scalars = fixed.offset, fixed.lengths, fixed.seed, fixed.sequence.reshape(-1)
    return call(*scalars, *(part.array for part in inputs.values()))


def _by_queries(plan: PairPlan, scalars: dict[str, Any], b, i, y, tiles: int):
    """Finds the tile of keys nearest to y that some query of tile i sees, and tells whether it is y itself."""
    rows, across = plan.block
    first, last = tiles_of_keys(plan, i * rows, rows, scalars["offset"][0], scalars["lengths"][b], across)
    return _nearest(first, last, y, tiles)


def _by_keys(plan: PairPlan, scalars: dict[str, Any], b, j, y, tiles: int):
    """Finds the tile of queries nearest to y that sees some key of tile j, and tells whether it is y itself."""
    rows, across = plan.block
    nearest, visible = _nearest(*tiles_of_queries(plan, j * across, across, scalars["offset"][0], rows), y, tiles)
    return nearest, visible & (j * across < scalars["lengths"][b]) if plan.limited else visible


def _nearest(first, last, y, tiles: int):
    return jnp.clip(y, jnp.minimum(first, tiles - 1), jnp.maximum(last, 0)), (first <= y) & (y <= last)
