"""A tile of pairs on a TPU: its masks, bias and dropout, and the order in which its parts are computed."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from attention.kernels.mlp.network import PairPlan
from attention.kernels.mlp.strips import STRIP, ByUnits, Stacked, form_of
from attention.kernels.sight import conditions, kept, sees_all

LANES = 128
MULTIPLIED = 128, 64  # the most rows of a product with values, forward and backward


def names_of(form: ByUnits | Stacked) -> list[str]:
    """Names the arrays of `spread_weights`."""
    return [f"weight_{index}" for index in range(len(form.learned))]


def rows_together(plan: PairPlan, turned: bool) -> int:
    """Counts the rows that are computed without a loop, so that the compiler fills waits of one strip with others."""
    rows, across = plan.block[::-1] if turned else plan.block
    strips = max(2, form_of(plan).together // -(-across // LANES))
    return _divisor(rows, STRIP * strips)


def _divisor(rows: int, most: int) -> int:
    """Finds the most rows that divide `rows`, in whole registers of bfloat16, which have 16."""
    return next(size for size in range(most // 16 * 16, 0, -16) if rows % size == 0)


@dataclasses.dataclass(frozen=True)
class TpuTile:
    """Tile (x, y) of rows and columns of sequence b and one head; `sequence` counts both.

    Rows are queries and columns are keys, or with `turned` the reverse. It is computed in parts of one strip of rows
    and 128 columns, which are named by the index of their first row and their first column.
    """

    plan: PairPlan
    ref: dict[str, Any]
    sequence: Any
    b: Any
    x: Any
    y: Any
    turned: bool
    tiles: int

    @property
    def block(self) -> tuple[int, int]:
        """The number of rows and of columns."""
        return self.plan.block[::-1] if self.turned else self.plan.block

    @property
    def lowest(self) -> float:
        """The score of masked pairs: half the lowest number, to which a score can be added without overflow."""
        return float(jnp.finfo(self.ref["rows"].dtype).min) / 2

    @property
    def parts(self) -> list[slice]:
        """The columns, in parts."""
        across = self.block[1]
        return [slice(start, min(start + LANES, across)) for start in range(0, across, LANES)]

    def weights(self) -> list[jax.Array]:
        """Loads the arrays of `spread_weights` of the tile's head."""
        return [self.ref[name][...] for name in names_of(form_of(self.plan))]

    def positions(self, row: Any, part: slice) -> tuple[jax.Array, jax.Array]:
        """Gives the indices of a part's queries and keys, which broadcast to its shape."""
        rows, across = (start * size for start, size in zip((self.x, self.y), self.block, strict=True))
        down = rows + row + jax.lax.broadcasted_iota(jnp.int32, (STRIP, 1), 0)
        along = across + part.start + jax.lax.broadcasted_iota(jnp.int32, (1, part.stop - part.start), 1)
        return (along, down) if self.turned else (down, along)

    def whole(self) -> Any:
        """Tells whether the mask allows all pairs of the tile; False if that is not known."""
        plan, ref = self.plan, self.ref
        if "row_segments" in ref or "dense" in ref:
            return False
        query, key = (self.y, self.x) if self.turned else (self.x, self.y)
        first = ref["offset"][0] + query * plan.block[0]
        return sees_all(plan, first, key * plan.block[1], plan.block, ref["lengths"][self.b])

    def allowed(self, row: Any, part: slice) -> jax.Array | None:
        """Tells which pairs of a part the mask allows."""
        plan, ref, (query, key) = self.plan, self.ref, self.positions(row, part)
        shape = jnp.broadcast_shapes(query.shape, key.shape)
        needed = conditions(plan, ref["offset"][0], ref["lengths"][self.b], query, key)
        if "row_segments" in ref:
            needed.append(ref["row_segments"][pl.ds(row, STRIP), :] == ref["column_segments"][:, part])
        if "dense" in ref:
            needed.append(self.pairs("allowed", row, part) != 0)
        return functools.reduce(jnp.logical_and, (jnp.broadcast_to(x, shape) for x in needed)) if needed else None

    def pairs(self, name: str, row: Any, part: slice) -> jax.Array:
        """Loads a part of an array over pairs, in which axes may be 1."""
        height, width = self.ref[name].shape
        return self.ref[name][pl.ds(row, STRIP) if height > 1 else slice(None), part if width > 1 else slice(None)]

    def kept(self, row: Any, part: slice) -> jax.Array:
        """Tells which weights of a part dropout keeps."""
        seed, sequence = self.ref["seed"], self.ref["sequence"][self.sequence]
        return kept(self.plan, (seed[0], seed[1]), sequence, *self.positions(row, part))

    def finish(self, scores: jax.Array, row: Any, part: slice, whole: bool) -> jax.Array:
        """Adds the bias to the scores of a part, and sets masked ones to the lowest score unless all are allowed."""
        if "bias" in self.ref:
            scores = scores + self.pairs("bias", row, part)
        allowed = None if whole else self.allowed(row, part)
        return scores if allowed is None else jnp.where(allowed, scores, self.lowest)

    def spread(self, row: Any) -> Any:
        """Finds the place of a strip that is spread over columns."""
        height = form_of(self.plan).spread_rows_shape(1)[0]
        return pl.ds(pl.multiple_of(row * (height // STRIP), STRIP), height)

    def spread_rows(self) -> None:
        """Spreads rows over columns, once for all tiles of these rows."""
        form, width = form_of(self.plan), self.parts[0].stop

        def spread(starts):
            for row in starts:
                strip = self.ref["rows"][pl.ds(row, STRIP), :]
                self.ref["spread"][self.spread(row), :] = form.spread_rows(strip, width)

        self._strips(spread)

    def gather_rows(self) -> None:
        """Sums the gradient of rows over columns, when all tiles of these rows are done."""

        def gather(starts):
            for row in starts:
                gradient = form_of(self.plan).gather_rows(self.ref["d_spread"][self.spread(row), :])
                self.ref["d_rows"][pl.ds(row, STRIP), :] = gradient

        self._strips(gather)

    def groups(self, starts: list[Any]) -> list[list[Any]]:
        """Groups the first rows of strips by the products that they share."""
        size = _divisor(STRIP * len(starts), MULTIPLIED[self.turned]) // STRIP
        return [starts[index : index + size] for index in range(0, len(starts), size)]

    def pack(self, starts: list[Any], shares: list[list[jax.Array]]) -> jax.Array:
        """Packs the weights of adjacent strips, given in parts, into a factor of a product, by way of memory."""
        ref = self.ref["shares"]
        for index in range(0, len(starts), 2):  # a register has 16 rows of bfloat16
            two = shares[index : index + 2]
            rows = pl.ds(starts[index], STRIP * len(two))
            for part, x in zip(self.parts, zip(*two, strict=True), strict=True):
                ref[rows, part] = jnp.concatenate(x, 0).astype(ref.dtype)
        return ref[pl.ds(starts[0], STRIP * len(starts)), :]

    def visit(self, compute: Callable) -> None:
        """Runs `compute(first rows of strips, whole)` for several strips at a time, without masks if possible."""
        if "dense" in self.ref:  # a register has 32 rows of int8, of which a strip cannot be cut
            self.ref["allowed"][...] = self.ref["dense"][...].astype(jnp.int32)

        def run(whole: bool) -> None:
            self._strips(lambda starts: compute(starts, whole))

        whole = self.whole()
        if isinstance(whole, bool):
            run(whole)
        else:
            jax.lax.cond(whole, lambda: run(True), lambda: run(False))

    def _strips(self, compute: Callable) -> None:
        """Runs `compute(first rows of strips)` for all strips, as many at a time as are computed without a loop."""
        size = rows_together(self.plan, self.turned)
        if size == self.block[0]:
            return compute(list(range(0, size, STRIP)))

        def body(index, carry):
            start = pl.multiple_of(index * size, size)
            compute([pl.multiple_of(start + row, STRIP) for row in range(0, size, STRIP)])
            return carry

        jax.lax.fori_loop(0, self.block[0] // size, body, 0)
