"""What a warpgroup of a Hopper GPU has: 64 rows, tiles of pairs in registers, and sums along its rows."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from attention.kernels.mlp.layers import Layers
from attention.kernels.mlp.network import Network, PairPlan
from attention.kernels.sight import conditions, kept, sees_all, tiles_of_keys, tiles_of_queries

ROWS = 64  # of a warpgroup's matrix product
TILE, ALONG_ROWS, ALONG_COLUMNS = plgpu.Layout.WGMMA, plgpu.Layout.WGMMA.reduce(1), plgpu.Layout.WGMMA.reduce(0)
LOWEST = float(jnp.finfo(jnp.float32).min) / 2
HELD = 6  # most sums along rows that are in registers


def columns_of(network: Network, rounded: bool) -> int:
    """Counts the columns of a tile: as many as ptxas (12.9, sm_90a) gives registers without spills, of its 255."""
    if len(network.units) > 1 and network.size >= 8:
        return 16
    return 64 if rounded else 32


def count_sums(network: Network, weighs: bool) -> int:
    """Counts the gradients of units and weights that a row of pairs sums up."""
    return network.units[0] + weighs * network.size


def transforms_of(plan: PairPlan) -> tuple[Any, ...]:
    """Chooses how bfloat16 lies in shared memory: with as wide a swizzle as a product over a tile's columns takes."""
    columns = columns_of(plan.network, plan.rounded)
    return plgpu.TilingTransform((8, columns)), plgpu.SwizzleTransform(2 * columns)


# jax 0.10 asks for an index beside the reference, jax 0.11 deprecates it.
_WHOLE = () if inspect.signature(plgpu.load).parameters["idx"].default is not inspect.Parameter.empty else (None,)


def _load(ref: Any, at: tuple[Any, ...], layout: Any) -> jax.Array:
    return plgpu.load(ref.at[at], *_WHOLE, layout=layout, optimized=False)


def zeros(width: int = 0) -> jax.Array:
    """Makes zeros `(64, width)`, or `(64,)`."""
    shape = (ROWS, width) if width else (ROWS,)
    return plgpu.layout_cast(jnp.zeros(shape, jnp.float32), TILE if width else ALONG_ROWS)


@dataclasses.dataclass(frozen=True)
class TileRows:
    """A tile of 64 rows of sequence b and head n; `group` numbers the warpgroup among those of the head."""

    plan: PairPlan
    ref: dict[str, Any]
    b: Any
    n: Any
    tile: Any
    group: Any

    @property
    def start(self) -> Any:
        """The first row."""
        return self.tile * ROWS

    def vector(self, name: str, *unit: Any) -> jax.Array:
        """Loads an array along the rows `(64,)`, of one unit if there are several."""
        at = (self.b, self.n, *unit, pl.ds(self.start, ROWS))
        return _load(self.ref[name], at, ALONG_ROWS)

    def weight(self, number: Any) -> jax.Array:
        """Loads a weight of the head."""
        return self.ref["weights"][self.n if self.ref["weights"].shape[0] > 1 else 0, number]

    def store(self, name: str, value: jax.Array, *unit: int) -> None:
        """Writes the rows of an output, of one unit if there are several."""
        self.ref[name][(self.b, self.n, *unit, pl.ds(self.start, ROWS))] = value

    def loop(self, by_query: bool, wide: str, visit: Callable, carry: Any) -> Any:
        """Runs `visit(tile, wide tiles in shared memory, carry)` over the tiles of columns that are not masked."""
        columns = columns_of(self.plan.network, self.plan.rounded)
        first, last = (_key_tiles if by_query else _query_tiles)(self, columns)
        refs = [ref for name, ref in self.ref.items() if name.startswith(f"{wide}_") and name[-1].isdigit()]
        transforms = transforms_of(self.plan)
        spec = plgpu.BlockSpec((columns, refs[0].shape[-1]), lambda step: (first + step, 0), transforms=transforms)

        def step(indices, *tiles_and_carry):
            *tiles, carry = tiles_and_carry
            return visit(GpuTile(self, by_query, (first + indices[0]) * columns, columns), tiles, carry)

        pipeline = plgpu.emit_pipeline(
            step, grid=(last - first + 1,), in_specs=[spec] * len(refs), max_concurrent_steps=2, init_carry=carry
        )
        return pipeline(*(ref.at[self.b, self.n] for ref in refs))


def _key_tiles(rows: TileRows, columns: int):
    """Finds the first and last tile of keys that some query of the rows sees; at least one tile."""
    plan, ref = rows.plan, rows.ref
    found = tiles_of_keys(plan, rows.start, ROWS, ref["offset"][0], ref["lengths"][rows.b], columns)
    return _at_least_one(*found, -(-plan.keys // columns))


def _query_tiles(rows: TileRows, columns: int):
    """Finds the first and last tile of queries that see some key of the rows; at least one tile."""
    plan = rows.plan
    found = tiles_of_queries(plan, rows.start, ROWS, rows.ref["offset"][0], columns)
    return _at_least_one(*found, -(-plan.queries // columns))


def _at_least_one(first, last, tiles: int):
    first = jnp.minimum(first, tiles - 1)
    return first, jnp.maximum(first, last)


@dataclasses.dataclass(frozen=True)
class GpuTile:
    """A tile of pairs: the rows, and the columns from `start` on."""

    rows: TileRows
    by_query: bool
    start: Any
    columns: int

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of rows and of columns."""
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

    def add_along_rows(self, name: str, unit: Any, x: jax.Array) -> None:
        """Adds the sums over rows to what the warpgroup has in an output, which each thread reads before it is written.

        The sum of all warps has a barrier between.
        """
        rows = self.rows
        at = (rows.b, rows.n, rows.group, unit, pl.ds(self.start, self.columns))
        before = _load(rows.ref[name], at, ALONG_COLUMNS)
        rows.ref[name][at] = before + x.sum(0)

    def positions(self) -> tuple[jax.Array, jax.Array]:
        """Gives the index of each pair's query and key."""
        row = self.rows.start + plgpu.broadcasted_iota(jnp.int32, self.shape, 0, layout=TILE)
        column = self.start + plgpu.broadcasted_iota(jnp.int32, self.shape, 1, layout=TILE)
        return (row, column) if self.by_query else (column, row)

    def layers(self) -> Layers:
        """Gives the MLP of the pairs."""
        rows, names = self.rows, ("query", "key") if self.by_query else ("key", "query")

        def sums(unit: Any) -> jax.Array:
            across = self.vector(names[1], rows.b, rows.n, unit)
            return self.down(rows.vector(names[0], unit)) + across

        return Layers(rows.plan.network, sums, rows.weight, lambda: zeros(self.columns))

    def masked(self, scores: jax.Array) -> jax.Array:
        """Sets scores that the mask excludes to the lowest score."""
        whole = self._whole()
        if isinstance(whole, bool):
            return scores if whole else self._masked(scores)
        return jax.lax.cond(whole, lambda: scores, lambda: self._masked(scores))

    def _whole(self) -> Any:
        """Tells whether the mask allows all pairs; False where segments decide."""
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


@dataclasses.dataclass(frozen=True)
class RowSums:
    """Sums along the rows of what there is for units and, behind them, for weights if there are outputs for these.

    They are carried from tile to tile: `start` makes them, and `after` gives them with those of a tile.
    """

    network: Network
    weighs: bool

    def outputs(self, units: str, weights: str) -> list[tuple[str, int]]:
        """Lists the output of each sum, and its place there."""
        found = [(units, number) for number in range(self.network.units[0])]
        return found + [(weights, number) for number in range(self.network.size * self.weighs)]


@dataclasses.dataclass(frozen=True)
class InRegisters(RowSums):
    """Few sums, in as many registers as (64, 8) arrays take, so that threads add up only once."""

    tile: list[jax.Array] = dataclasses.field(default_factory=list)

    def start(self) -> list[jax.Array]:
        """Makes zeros."""
        return [zeros(8)] * count_sums(self.network, self.weighs)

    def of(self, carry: list[jax.Array]) -> InRegisters:
        """Begins a tile."""
        return dataclasses.replace(self, tile=[*carry])

    @property
    def after(self) -> list[jax.Array]:
        """The sums with those of the tile."""
        return self.tile

    def add_unit(self, number: int, x: jax.Array) -> None:
        """Adds what there is for a unit, `(64, C)`."""
        self.tile[number] += functools.reduce(jnp.add, (x[:, at : at + 8] for at in range(0, x.shape[1], 8)))

    def add_weight(self, number: int, x: jax.Array) -> None:
        """Adds what there is for a weight."""
        if self.weighs:
            self.add_unit(self.network.units[0] + number, x)

    def store(self, rows: TileRows, carry: list[jax.Array], units: str, weights: str) -> None:
        """Writes the sums to the outputs of these names."""
        for x, (name, place) in zip(carry, self.outputs(units, weights), strict=True):
            rows.store(name, x.sum(1), place)


@dataclasses.dataclass(frozen=True)
class InShared(RowSums):
    """Many sums, in shared memory `(M, 64)`. A row is added to by the threads that hold it, and by no others."""

    ref: Any
    after: tuple[()] = ()

    def start(self) -> tuple[()]:
        """Fills the memory with zeros."""
        for number in range(self.ref.shape[0]):
            self.ref[number, :] = zeros()
        return ()

    def of(self, carry: tuple[()]) -> InShared:
        """Begins a tile."""
        return self

    def add_unit(self, number: Any, x: jax.Array) -> None:
        """Adds what there is for a unit, `(64, C)`, after what was added before."""
        plgpu.commit_smem()
        self._add(number, x)

    def add_weight(self, number: Any, x: jax.Array) -> None:
        """Adds what there is for a weight, at most once between two calls of `add_unit`."""
        if self.weighs:
            self._add(self.network.units[0] + number, x)

    def _add(self, at: Any, x: jax.Array) -> None:
        self.ref[at, :] = _load(self.ref, (at,), ALONG_ROWS) + x.sum(1)

    def store(self, rows: TileRows, carry: tuple[()], units: str, weights: str) -> None:
        """Writes the sums to the outputs of these names."""
        plgpu.commit_smem()
        for number, (name, place) in enumerate(self.outputs(units, weights)):
            rows.store(name, _load(self.ref, (number,), ALONG_ROWS), place)
