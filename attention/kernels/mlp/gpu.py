"""The pairwise family on Hopper GPUs: Pallas kernels for Mosaic GPU, with products in `wgmma`, which later GPUs lack.

It calls `plgpu.kernel`, because `pl.pallas_call` on a GPU lowers through Triton by default (jax 0.10 and 0.11), and its
option for Mosaic is deprecated.

A warpgroup has 64 rows, of queries (forward, and backward for queries and weights) or of keys (backward for keys and
values), and passes over the columns in tiles. Everything about a pair is elementwise on (64, columns) registers, for
one hidden unit after another (`gpu/layers.py`), with sums along columns only; gradients of units and weights are added
up in shared memory. Only products with values and with the output's gradient run on tensor cores. Those take bfloat16:
float32 is split into three bfloat16 terms, which hold all its bits, and the six products of terms that matter are
summed in float32.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from attention.kernels.mlp.layers import Layers
from attention.kernels.mlp.network import Fixed, Network, Operands, PairPlan
from attention.kernels.sight import conditions, kept, sees_all, tiles_of_keys, tiles_of_queries

ROWS = 64  # of a warpgroup's matrix product
TILE, ALONG_ROWS, ALONG_COLUMNS = plgpu.Layout.WGMMA, plgpu.Layout.WGMMA.reduce(1), plgpu.Layout.WGMMA.reduce(0)
BLOCK = (ROWS, ROWS)  # lengths are padded to multiples; tiles of columns are at most as wide
WIDEST = 128  # the widest values whose sums fit in registers
LOWEST = float(jnp.finfo(jnp.float32).min) / 2
LOG_E = math.log2(math.e)


def block_sizes(queries: int, keys: int, network: Network) -> tuple[int, int]:
    """Gives a tile's number of queries and of keys, the same for all lengths."""
    return BLOCK


def columns_of(network: Network) -> int:
    """Counts the columns of a tile: as many as ptxas (12.9, sm_90a) gives registers without spills, of its 255."""
    return 64 if len(network.units) == 1 or network.size < 8 else 16


def holds(network: Network) -> bool:
    """Tells whether the gradients of units and weights fit in 64 KB of shared memory."""
    return _sums(network, weights=True) <= 256


def _sums(network: Network, weights: bool) -> int:
    """Counts the gradients of units and weights that a row of pairs sums up."""
    return network.units[0] + weights * network.size


def forward(plan: PairPlan, operands: Operands, fixed: Fixed) -> tuple[jax.Array, jax.Array]:
    """Computes the output `(B, N, T', V)` and log-sum-exp `(B, N, T')`."""
    shape = operands.query.shape[:3]
    value = _widened(operands.value)
    out, log_sums = _launch(
        functools.partial(_forward_kernel, value.shape[-1]),
        plan,
        shape,
        _inputs(plan, operands, fixed) | _parts("value", value),
        {"out": ((*shape, value.shape[-1]), jnp.float32), "log_sum": (shape, jnp.float32)},
        {},
    )
    return out[..., : operands.value.shape[-1]].astype(operands.value.dtype), log_sums


def backward(
    plan: PairPlan, operands: Operands, fixed: Fixed, out: jax.Array, log_sums: jax.Array, gradient: jax.Array
) -> Operands:
    """Computes the gradients of all operands."""
    through_sum = jnp.sum(gradient.astype(jnp.float32) * out.astype(jnp.float32), -1)
    value, gradient = _widened(operands.value), _widened(gradient)
    inputs = _inputs(plan, operands, fixed) | {"log_sum": log_sums, "through_sum": through_sum}
    inputs |= _parts("value", value) | _parts("gradient", gradient)
    (*lead, queries, units), keys, width = operands.query.shape, *value.shape[2:]
    d_query, d_weights = _launch(
        _query_kernel,
        plan,
        (*lead, queries),
        inputs,
        {
            "d_query": ((*lead, units, queries), jnp.float32),
            "d_weights": ((*lead, plan.network.size, queries), jnp.float32),
        },
        _parts("gradient", gradient),
    )
    d_key, d_value = _launch(
        functools.partial(_key_kernel, width),
        plan,
        (*lead, keys),
        inputs,
        {"d_key": ((*lead, units, keys), jnp.float32), "d_value": ((*lead, keys, width), jnp.float32)},
        _parts("value", value),
    )
    *weights, vector = _unflat(plan.network, d_weights.sum((0, -1)), operands.weights)
    return operands._replace(
        query=d_query.mT / LOG_E,
        key=d_key / LOG_E,
        value=d_value[..., : operands.value.shape[-1]].astype(operands.value.dtype),
        weights=(*(x / LOG_E for x in weights), vector),
    )


def _unflat(network: Network, flat: jax.Array, weights: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
    """Reshapes the gradients `(N, P)` of all weights to the weights' shapes, summed where heads share them."""
    start, gradients = 0, []
    for (rows, columns), weight in zip(network.shapes, weights, strict=True):
        stop = start + rows * columns
        by_head = flat[:, start:stop].reshape(-1, rows, columns)
        gradients.append(by_head if len(weight) > 1 else by_head.sum(0, keepdims=True))
        start = stop
    return tuple(gradients)


def _widened(x: jax.Array) -> jax.Array:
    """Pads `x` with zeros to a multiple of 64 columns, as shared memory needs."""
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % 64)])


def _parts(name: str, x: jax.Array) -> dict[str, jax.Array]:
    return {f"{name}_{index}": part for index, part in enumerate(cut(x, 1 if x.dtype == jnp.bfloat16 else 3))}


def cut(x: jax.Array, parts: int) -> list[jax.Array]:
    """Cuts `x` into bfloat16 arrays whose sum it is, up to rounding if there are fewer than three."""
    whole, cuts = x, []
    for _ in range(parts):
        cuts.append(whole.astype(jnp.bfloat16))
        whole = whole - cuts[-1].astype(whole.dtype)
    return cuts


def _inputs(plan: PairPlan, operands: Operands, fixed: Fixed) -> dict[str, jax.Array]:
    *weights, vector = operands.weights
    flat = [weight.reshape(len(weight), -1) for weight in (*weights, vector * LOG_E)]
    inputs = {
        "offset": fixed.offset,
        "lengths": fixed.lengths,
        "seed": fixed.seed,
        "sequence": fixed.sequence,
        "query": operands.query.mT,
        "key": operands.key,
        "weights": jnp.concatenate(flat, axis=1),
    }
    if fixed.query_segments is not None:
        inputs |= {"query_segments": fixed.query_segments[..., 0], "key_segments": fixed.key_segments[:, 0]}
    return inputs


def _launch(
    kernel: Callable,
    plan: PairPlan,
    grid: tuple[int, int, int],
    inputs: dict[str, jax.Array],
    outputs: dict[str, tuple[tuple[int, ...], Any]],
    held: dict[str, jax.Array],
) -> Sequence[jax.Array]:
    """Runs a kernel for each sequence, head and 64 rows; `held` inputs have a tile of rows in shared memory."""
    batch, heads, rows = grid

    def body(*refs):
        names = (*inputs, *outputs)
        ref = dict(zip(names, refs[: len(names)], strict=True))
        *tiles, sums, barriers = refs[len(names) :]
        place = tuple(jax.lax.axis_index(axis) for axis in ("batch", "heads", "rows"))
        for index, (name, tile) in enumerate(zip(held, tiles, strict=True)):
            source = ref[name].at[place[0], place[1], pl.ds(place[2] * ROWS, ROWS)]
            plgpu.copy_gmem_to_smem(source, tile, barriers.at[index])
        for index in range(len(held)):
            plgpu.barrier_wait(barriers.at[index])
        kernel(_Rows(plan, ref, *place), tiles, _Sums(sums, plan.network))

    body.__name__ = f"pair_{next(iter(outputs))}"  # what compilers and profiles call it
    transforms = _transforms(plan.network)
    sums = plgpu.SMEM((_sums(plan.network, "d_weights" in outputs), ROWS), jnp.float32)
    tile = [plgpu.SMEM((ROWS, x.shape[-1]), x.dtype, transforms=transforms) for x in held.values()]
    call = plgpu.kernel(
        body,
        out_type=[jax.ShapeDtypeStruct(*out) for out in outputs.values()],
        scratch_types=[*tile, sums, plgpu.Barrier(num_barriers=max(1, len(held)))],
        grid=(batch, heads, rows // ROWS),
        grid_names=("batch", "heads", "rows"),
        compiler_params=plgpu.CompilerParams(
            lowering_semantics=plgpu.LoweringSemantics.Lane, approx_math=plan.network.activation == "relu"
        ),
    )
    return call(*inputs.values())


def _transforms(network: Network) -> tuple[Any, ...]:
    """Chooses how bfloat16 lies in shared memory: with as wide a swizzle as a product over a tile's columns takes."""
    columns = columns_of(network)
    return plgpu.TilingTransform((8, columns)), plgpu.SwizzleTransform(2 * columns)


# jax 0.10 asks for an index beside the reference, jax 0.11 deprecates it.
_WHOLE = () if inspect.signature(plgpu.load).parameters["idx"].default is not inspect.Parameter.empty else (None,)


def _load(ref: Any, at: tuple[Any, ...], layout: Any) -> jax.Array:
    return plgpu.load(ref.at[at], *_WHOLE, layout=layout, optimized=False)


@dataclasses.dataclass(frozen=True)
class _Rows:
    """The rows of a warpgroup: 64 rows of sequence b and head n."""

    plan: PairPlan
    ref: dict[str, Any]
    b: Any
    n: Any
    tile: Any

    @property
    def start(self):
        return self.tile * ROWS

    def vector(self, name: str, *unit: Any) -> jax.Array:
        """Loads an array along the rows `(64,)`, of one unit if there are several."""
        at = (self.b, self.n, *unit, pl.ds(self.start, ROWS))
        return _load(self.ref[name], at, ALONG_ROWS)

    def weight(self, number: Any) -> jax.Array:
        return self.ref["weights"][self.n if self.ref["weights"].shape[0] > 1 else 0, number]

    def store(self, name: str, value: jax.Array, *unit: int) -> None:
        self.ref[name][(self.b, self.n, *unit, pl.ds(self.start, ROWS))] = value

    def loop(self, by_query: bool, wide: str, visit: Callable, carry: Any) -> Any:
        """Runs `visit(tile, wide tiles in shared memory, carry)` over the tiles of columns that are not masked."""
        columns = columns_of(self.plan.network)
        first, last = (_key_tiles if by_query else _query_tiles)(self, columns)
        refs = [ref for name, ref in self.ref.items() if name.startswith(f"{wide}_") and name[-1].isdigit()]
        transforms = _transforms(self.plan.network)
        spec = plgpu.BlockSpec((columns, refs[0].shape[-1]), lambda step: (first + step, 0), transforms=transforms)

        def step(indices, *tiles_and_carry):
            *tiles, carry = tiles_and_carry
            return visit(_GpuTile(self, by_query, (first + indices[0]) * columns, columns), tiles, carry)

        pipeline = plgpu.emit_pipeline(
            step, grid=(last - first + 1,), in_specs=[spec] * len(refs), max_concurrent_steps=2, init_carry=carry
        )
        return pipeline(*(ref.at[self.b, self.n] for ref in refs))


def _key_tiles(rows: _Rows, columns: int):
    """Finds the first and last tile of keys that some query of the rows sees; at least one tile."""
    plan, ref = rows.plan, rows.ref
    found = tiles_of_keys(plan, rows.start, ROWS, ref["offset"][0], ref["lengths"][rows.b], columns)
    return _at_least_one(*found, -(-plan.keys // columns))


def _query_tiles(rows: _Rows, columns: int):
    """Finds the first and last tile of queries that see some key of the rows; at least one tile."""
    plan = rows.plan
    found = tiles_of_queries(plan, rows.start, ROWS, rows.ref["offset"][0], columns)
    return _at_least_one(*found, -(-plan.queries // columns))


def _at_least_one(first, last, tiles: int):
    first = jnp.minimum(first, tiles - 1)
    return first, jnp.maximum(first, last)


@dataclasses.dataclass(frozen=True)
class _GpuTile:
    """A tile of pairs: the rows, and the columns from `start` on."""

    rows: _Rows
    by_query: bool
    start: Any
    columns: int

    @property
    def shape(self) -> tuple[int, int]:
        return ROWS, self.columns

    def down(self, vector: jax.Array) -> jax.Array:
        """Broadcasts a vector along the rows over columns."""
        return jax.lax.broadcast_in_dim(vector, self.shape, (0,))

    def across(self, vector: jax.Array) -> jax.Array:
        """Broadcasts a vector along the columns over rows."""
        return jax.lax.broadcast_in_dim(vector, self.shape, (1,))

    def vector(self, name: str, *lead: Any) -> jax.Array:
        """Loads a vector along the columns and broadcasts it over rows."""
        at = (*(lead or (self.rows.b, self.rows.n)), pl.ds(self.start, self.columns))
        return self.across(_load(self.rows.ref[name], at, ALONG_COLUMNS))

    def positions(self) -> tuple[jax.Array, jax.Array]:
        """Gives the index of each pair's query and key."""
        row = self.rows.start + plgpu.broadcasted_iota(jnp.int32, self.shape, 0, layout=TILE)
        column = self.start + plgpu.broadcasted_iota(jnp.int32, self.shape, 1, layout=TILE)
        return (row, column) if self.by_query else (column, row)

    def layers(self) -> Layers:
        rows, names = self.rows, ("query", "key") if self.by_query else ("key", "query")

        def sums(unit: Any) -> jax.Array:
            across = self.vector(names[1], rows.b, rows.n, unit)
            return self.down(rows.vector(names[0], unit)) + across

        return Layers(rows.plan.network, sums, rows.weight, lambda: _zeros(self.columns))

    def masked(self, scores: jax.Array) -> jax.Array:
        """Sets scores that the mask excludes to the lowest score."""
        whole = self._whole()
        if isinstance(whole, bool):
            return scores if whole else self._masked(scores)
        return jax.lax.cond(whole, lambda: scores, lambda: self._masked(scores))

    def _whole(self) -> Any:
        """Tells whether the mask allows all pairs; False if that is not known."""
        plan, ref = self.rows.plan, self.rows.ref
        if "query_segments" in ref:
            return False
        ends = (self.rows.start, ROWS), (self.start, self.columns)
        (query, queries), (key, keys) = ends if self.by_query else ends[::-1]
        return sees_all(plan, ref["offset"][0] + query, key, (queries, keys), ref["lengths"][self.rows.b])

    def _masked(self, scores: jax.Array) -> jax.Array:
        plan, ref, (query, key) = self.rows.plan, self.rows.ref, self.positions()
        needed = conditions(plan, ref["offset"][0], ref["lengths"][self.rows.b], query, key)
        if "query_segments" in ref:
            needed.append(self._segments("query_segments") == self._segments("key_segments"))
        return functools.reduce(lambda x, allowed: jnp.where(allowed, x, LOWEST), needed, scores)

    def _segments(self, name: str) -> jax.Array:
        if (name == "query_segments") != self.by_query:
            return self.vector(name, self.rows.b)
        at = (self.rows.b, pl.ds(self.rows.start, ROWS))
        return self.down(_load(self.rows.ref[name], at, ALONG_ROWS))

    def dropped(self, x: jax.Array) -> jax.Array:
        """Applies dropout, and scales the rest."""
        plan, ref = self.rows.plan, self.rows.ref
        if not plan.rate:
            return x
        sequence = ref["sequence"][self.rows.b, self.rows.n]
        bits = kept(plan, (ref["seed"][0], ref["seed"][1]), sequence, *self.positions())
        return jnp.where(bits, x / (1 - plan.rate), 0.0)


def _products(terms: int) -> list[tuple[int, int]]:
    """Lists the pairs of terms to multiply; the sum of all others is below float32's last bit."""
    return [(i, j) for i in range(terms) for j in range(terms - i)]


def _add_product(total: jax.Array, weights: jax.Array, wide: list[Any]) -> jax.Array:
    """Adds weights `(64, C)` times wide tiles `(C, V)` to the total."""
    terms = cut(weights, len(wide))

    def compute(acc):
        for i, j in _products(len(wide)):
            plgpu.wgmma(acc, terms[i], wide[j])

    return pl.run_state(compute)(plgpu.ACC.init(total))


def _outer_product(rows: list[Any], wide: list[Any], columns: int) -> jax.Array:
    """Multiplies row tiles `(64, V)` by transposed wide tiles `(C, V)`."""

    def compute(acc):
        for i, j in _products(len(wide)):
            plgpu.wgmma(acc, rows[i], wide[j].T)
        return acc[...]

    return pl.run_scoped(compute, plgpu.ACC((ROWS, columns), jnp.float32))


def _zeros(width: int = 0) -> jax.Array:
    shape = (ROWS, width) if width else (ROWS,)
    return plgpu.layout_cast(jnp.zeros(shape, jnp.float32), TILE if width else ALONG_ROWS)


def _forward_kernel(width: int, rows: _Rows, *_) -> None:
    def visit(tile, wide, carry):
        total, highest, share = carry
        scores = tile.masked(tile.layers().scores()[0])
        higher = jnp.maximum(highest, scores.max(1))
        shrink, shares = jnp.exp2(highest - higher), jnp.exp2(scores - tile.down(higher))
        share = share * shrink + shares.sum(1)
        total = total * jax.lax.broadcast_in_dim(shrink, total.shape, (0,))
        return _add_product(total, tile.dropped(shares), wide), higher, share

    # Half of the lowest score, so that a row without allowed keys has weights exp(lowest - half) = 0.
    total, highest, share = rows.loop(True, "value", visit, (_zeros(width), _zeros() + LOWEST / 2, _zeros()))
    share = jnp.where(share == 0, 1.0, share)
    rows.store("out", total / jax.lax.broadcast_in_dim(share, total.shape, (0,)))
    rows.store("log_sum", highest + jnp.log2(share))


def _query_kernel(rows: _Rows, gradient: list[Any], sums: _Sums) -> None:
    def visit(tile, wide, carry):
        layers = tile.layers()
        scores, held = layers.scores()
        shares = jnp.exp2(tile.masked(scores) - tile.down(rows.vector("log_sum")))
        d_shares = tile.dropped(_outer_product(gradient, wide, tile.columns))
        d_scores = shares * (d_shares - tile.down(rows.vector("through_sum")))
        layers.gradients(d_scores, held, sums.add_unit, sums.add_weight)
        return carry

    sums.clear()
    rows.loop(True, "value", visit, ())
    sums.store(rows, "d_query", "d_weights")


def _key_kernel(width: int, rows: _Rows, value: list[Any], sums: _Sums) -> None:
    def visit(tile, wide, total):
        layers = tile.layers()
        scores, held = layers.scores()
        shares = jnp.exp2(tile.masked(scores) - tile.vector("log_sum"))
        total = _add_product(total, tile.dropped(shares), wide)
        d_shares = tile.dropped(_outer_product(value, wide, tile.columns))
        layers.gradients(shares * (d_shares - tile.vector("through_sum")), held, sums.add_unit, None)
        return total

    sums.clear()
    rows.store("d_value", rows.loop(False, "gradient", visit, _zeros(width)))
    sums.store(rows, "d_key")


@dataclasses.dataclass(frozen=True)
class _Sums:
    """Sums along the rows in shared memory, `(M, 64)` for the units and behind them those for the weights.

    A row is added to by the threads that hold it, and by no others.
    """

    ref: Any
    network: Network

    def clear(self) -> None:
        for number in range(self.ref.shape[0]):
            self.ref[number, :] = _zeros()

    def add_unit(self, unit: Any, x: jax.Array) -> None:
        """Adds to the gradient of a unit of the rows, after what was added before."""
        plgpu.commit_smem()
        self._add(unit, x)

    def add_weight(self, number: Any, x: jax.Array) -> None:
        """Adds to the gradient of a weight, at most once between two calls of `add_unit`."""
        self._add(self.network.units[0] + number, x)

    def _add(self, at: Any, x: jax.Array) -> None:
        self.ref[at, :] = _load(self.ref, (at,), ALONG_ROWS) + x

    def store(self, rows: _Rows, units: str, weights: str = "") -> None:
        """Writes the sums to the outputs of these names."""
        plgpu.commit_smem()
        for number in range(self.ref.shape[0]):
            unit = number - self.network.units[0]
            at = (units, number) if unit < 0 else (weights, unit)
            rows.store(at[0], _load(self.ref, (number,), ALONG_ROWS), at[1])
