"""The kernels of any function of a pair: their arrays in memory, the tiles of one tile of rows, and both passes."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from attention.kernels import flash
from attention.kernels.arrays import score_dtype
from attention.kernels.fused import tpu
from attention.kernels.fused.planes import Given, Planes
from attention.kernels.fused.programs import BOTH, COLUMNS, ROWS, Parts
from attention.kernels.sight import KernelPlan, conditions, kept, tile_of, tiles_of_keys, tiles_of_queries
from attention.normaliser import Normaliser
from attention.parameters import Sizes


@dataclasses.dataclass(frozen=True, kw_only=True)
class FusedPlan(KernelPlan):
    """The static part of a kernel of any function of a pair.

    Attributes:
      backward: Queries and keys of a tile in a pass that has all gradients.
      parts: The program of a pair, taken apart.
      normaliser: How scores become weights.
      segmented: Whether there are segments.
      sums: The dtype of scores and sums.
    """

    backward: tuple[int, int]
    parts: Parts
    normaliser: Normaliser
    segmented: bool
    sums: Any


class FusedRules(NamedTuple):
    """The mask, and the seed of dropout.

    Attributes:
      numbers: `(B, N, 1, 5)`: the position of the first query, the number of real keys, both words of the seed, and
        the number of the sequence and head.
      counts: How many keys each query may attend to, `(B, N, T)`, or None.
      query_segments: `(B, 1, T)` or None.
      key_segments: `(B, 1, S)` or None.
    """

    numbers: jax.Array
    counts: jax.Array | None
    query_segments: jax.Array | None
    key_segments: jax.Array | None


class Pass:
    """One kernel: its arrays in memory, and its tiles.

    Rows are queries, or with `by_key` keys; the names `rows` and `columns` of a program are turned round then.
    """

    def __init__(
        self,
        plan: FusedPlan,
        parts: Parts,
        given: Sequence[Any],
        rules: FusedRules,
        block: tuple[int, int],
        by_key: bool,
    ):
        self.plan, self.parts, self.by_key = plan, parts, by_key
        lengths = (plan.keys, plan.queries) if by_key else (plan.queries, plan.keys)
        self.block = block[::-1] if by_key else block
        self.padded = tuple(-(-length // size) * size for length, size in zip(lengths, self.block, strict=True))
        self.lengths, self.batch = lengths, len(rules.numbers)
        self.heads = rules.numbers.shape[1]
        self.arrays: dict[Any, jax.Array] = {}
        self.sides: dict[Any, str | None] = {}
        self.add("numbers", rules.numbers, None)
        for number, (kinds, x) in enumerate(zip(parts.kinds, given, strict=True)):
            if x is not None:
                self.add(number, x.reshape(*x.shape[:3], -1), next(iter(kinds & BOTH), None))
        if plan.segmented:
            self.add("query_segments", rules.query_segments, ROWS)
            self.add("key_segments", rules.key_segments, COLUMNS)

    def width(self, size: int) -> int:
        """Gives the width of a vector in memory: Triton has powers of two, and products need at least 16."""
        return size if size == 1 or self.plan.platform != "gpu" else max(16, 2 ** math.ceil(math.log2(size)))

    def add(self, name: Any, x: jax.Array, side: str | None) -> None:
        """Adds an array `(B, N, L)` or `(B, N, L, width)`, whose side is named as in the program."""
        x = x[..., None] if x.ndim == 3 and name != "numbers" else x
        side = {ROWS: COLUMNS, COLUMNS: ROWS}.get(side) if self.by_key and side else side
        ends = [(0, 0)] * 4
        if side:
            ends[2] = (0, self.padded[side == COLUMNS] - x.shape[2])
            ends[3] = (0, self.width(x.shape[3]) - x.shape[3])
        if isinstance(name, int):  # of the program: its derivatives at zero may be infinite
            x, ends[2] = jnp.pad(x, [(0, 0), (0, 0), ends[2], (0, 0)], mode="edge"), (0, 0)
        x = jnp.pad(x, ends)
        if name == "row":  # then the weights of padding are 0
            real = jnp.arange(x.shape[2])[:, None] < self.plan.queries
            x = jnp.where(real, x, float(jnp.finfo(x.dtype).max) / 2)
        if side == COLUMNS:  # tile by tile, `(width, columns)`
            x = x.reshape(*x.shape[:2], -1, self.block[1], x.shape[3]).swapaxes(3, 4)
        self.arrays[name] = x
        self.sides[name] = side

    def launch(
        self, name: str, kernel: Callable, outputs: Sequence[tuple[int, Any]], totals: Sequence[int] = ()
    ) -> list[jax.Array]:
        """Runs a kernel for every sequence, head and tile of rows.

        Args:
          name: The kernel's name.
          kernel: From the tiles to the outputs of the rows; it adds to `Tiles.totals`.
          outputs: The width and dtype of each output `(B, N, rows, width)`.
          totals: The width of each sum over all rows `(B, N, columns, width)`; they follow the outputs.
        """
        from jax.experimental import pallas as pl  # takes longer to import than JAX

        rows, names, lead = self.block[0], list(self.arrays), (self.batch, self.heads)
        inputs = [self._spec(pl, name, functools.partial(_place, self.heads)) for name in names]
        out = [pl.BlockSpec((None, None, rows, width), lambda b, n, i: (b, n, i, 0)) for width, _ in outputs]
        shapes = [jax.ShapeDtypeStruct((*lead, self.padded[0], width), dtype) for width, dtype in outputs]
        for width in totals:
            out.append(pl.BlockSpec((None, None, *self._total(width)), lambda b, n, i: (b, n, 0, 0, 0)))
            shapes.append(jax.ShapeDtypeStruct((*lead, *self._total(width)), self.plan.sums))

        def body(*refs: Any) -> None:
            made = refs[len(names) :]
            tiles = Tiles(self, dict(zip(names, refs, strict=False)), made[len(outputs) :], pl.program_id(2), pl)
            for ref in tiles.totals:
                pl.when(tiles.i == 0)(functools.partial(_clear, ref))
            for ref, x in zip(made, kernel(tiles), strict=False):
                ref[...] = x.astype(ref.dtype)

        blocks = [spec.block_shape[2:] for spec in (*inputs, *out)]
        call = pl.pallas_call(
            body,
            grid=(*lead, self.padded[0] // rows),
            in_specs=inputs,
            out_specs=out,
            out_shape=shapes,
            interpret=self.plan.platform == "interpret",
            compiler_params=_options(self.plan.platform, blocks, self.block, bool(totals)),
            name=name,
        )
        found = call(*self.arrays.values())
        of_rows, of_columns = found[: len(outputs)], found[len(outputs) :]
        of_columns = [x.swapaxes(3, 4).reshape(*lead, -1, x.shape[3])[:, :, : self.lengths[1]] for x in of_columns]
        return [x[:, :, : self.lengths[0]] for x in of_rows] + of_columns

    def held(self, totals: Iterable[int]) -> int:
        """Counts the bytes that the columns, and sums of these widths for them, take of a TPU's fast memory."""
        columns = [x.shape[2:] for name, x in self.arrays.items() if self.sides[name] == COLUMNS]
        return sum(map(tpu.bytes_of, (*columns, *map(self._total, totals))))

    def _total(self, width: int) -> tuple[int, int, int]:
        """Gives the shape of a sum: tile by tile, as arrays of columns are."""
        return self.padded[1] // self.block[1], width, self.block[1]

    def _spec(self, pl: Any, name: Any, place: Callable) -> Any:
        x, side = self.arrays[name], self.sides[name]
        block = (self.block[0], x.shape[3]) if side == ROWS else x.shape[2:]
        where = functools.partial(place, x.shape[:2], side == ROWS, len(block) - 1)
        if side is None and self.plan.platform == "tpu":
            from jax.experimental.pallas import tpu as pltpu

            return pl.BlockSpec((None, None, *block), where, memory_space=pltpu.SMEM)
        return pl.BlockSpec((None, None, *block), where)


def _clear(ref: Any) -> None:
    ref[...] = jnp.zeros_like(ref)


def _options(platform: str, blocks: Sequence[tuple[int, ...]], tile: tuple[int, int], ordered: bool) -> Any:
    """Gives the compiler's options; those for a GPU also choose Triton, for JAX has two ways to lower a kernel."""
    if platform == "gpu":
        from jax.experimental.pallas import triton

        return triton.CompilerParams(num_warps=8, num_stages=2)  # with 4 warps, registers spill
    return tpu.options(blocks, tile, ordered) if platform == "tpu" else None


def _place(heads: int, lead: tuple[int, int], moves: bool, rest: int, b: Any, n: Any, i: Any) -> tuple[Any, ...]:
    """Gives the index of an array's block, where the array may have one sequence for all and fewer heads."""
    head = 0 if lead[1] == 1 else n if lead[1] == heads else jax.lax.div(n, jnp.int32(heads // lead[1]))
    return (b if lead[0] > 1 else 0), head, (i if moves else 0), *(0,) * rest


class Tiles:
    """The tiles of one tile of rows, in a kernel."""

    def __init__(self, run: Pass, ref: dict[Any, Any], totals: Sequence[Any], i: Any, pl: Any):
        self.run, self.plan, self.ref, self.totals, self.i, self.pl = run, run.plan, ref, totals, i, pl
        self.rows = {name: ref[name][...] for name, side in run.sides.items() if side == ROWS}

    def number(self, which: int) -> Any:
        """Gives one of the numbers of the sequence and head; see `FusedRules`."""
        return self.ref["numbers"][0, which]

    def columns(self, name: Any, j: Any) -> jax.Array:
        """Gives a tile of an array of columns, `(width, columns)`."""
        return self.ref[name][j]

    def value(self, name: str, j: Any) -> jax.Array:
        """Gives an array at the rows of the tile or at its columns, whichever it has."""
        return self.rows[name] if self.run.sides[name] == ROWS else self.columns(name, j)

    def product(self, x: jax.Array, y: jax.Array, axes: tuple[int, int], rounds: bool = False) -> jax.Array:
        """Multiplies matrices, in their dtype if it is the same or if `x` may be rounded, and else without rounding."""
        kind = y.dtype if rounds or x.dtype == y.dtype else self.plan.sums
        precision = None
        if kind == jnp.float32:
            on_gpu = self.plan.platform == "gpu"
            precision = jax.lax.DotAlgorithmPreset.TF32_TF32_F32_X3 if on_gpu else jax.lax.Precision.HIGHEST
        contract = ((axes[0],), (axes[1],)), ((), ())
        factors = x.astype(kind), y.astype(kind)
        return jax.lax.dot_general(*factors, contract, precision, preferred_element_type=self.plan.sums)

    def lower(self, j: Any, hole: Callable | None = None) -> tuple[Planes, list[Any]]:
        """Lowers the program to tile j; `hole` gives the gradient of the scores when it is asked for."""
        planes = Planes(self.run.block, self.product, self.run.width)
        parts, turned = self.run.parts, {ROWS: COLUMNS, COLUMNS: ROWS}
        inputs = []
        for number, (kinds, shape) in enumerate(zip(parts.kinds, parts.shapes, strict=True)):
            sides = kinds & BOTH
            sides = frozenset(turned[side] for side in sides) if self.run.by_key else sides
            if sides == BOTH:
                inputs.append(Given(planes, shape, sides, lambda _: hole(), None))
            else:
                read, whole = self._reader(number, j, next(iter(sides), None))
                inputs.append(Given(planes, shape, sides, read, whole))
        return planes, planes.lower(parts.tile, inputs)

    def _reader(self, number: int, j: Any, side: str | None) -> tuple[Callable, Callable | None]:
        dtype = self.run.parts.shapes[number].dtype
        if side is None:
            return lambda flat: self.ref[number][0, flat], None
        if side == COLUMNS:
            return lambda flat: self._of_columns(number, j, flat).astype(dtype), lambda: self.columns(number, j)
        return lambda flat: self._of_rows(number, flat).astype(dtype), lambda: self.rows[number]

    def _of_rows(self, number: int, flat: Any) -> jax.Array:
        whole = self.rows[number]
        if whole.shape[1] == 1:
            return whole
        if self.plan.platform == "gpu":
            return self.ref[number][:, flat][:, None]
        return _picked(whole, flat, 1)

    def _of_columns(self, number: int, j: Any, flat: Any) -> jax.Array:
        if self.plan.platform == "tpu" and self.ref[number].dtype.itemsize == 2:  # two share a register's row
            return _picked(self.columns(number, j), flat, 0)
        return self.ref[number][j, self.pl.ds(flat, 1), :]

    def positions(self, j: Any) -> tuple[jax.Array, jax.Array]:
        """Gives the numbers of queries and keys, of shapes `(rows, 1)` and `(1, columns)` or the reverse."""
        rows, columns = self.run.block
        down = self.i * rows + jax.lax.broadcasted_iota(jnp.int32, (rows, 1), 0)
        along = j * columns + jax.lax.broadcasted_iota(jnp.int32, (1, columns), 1)
        return (along, down) if self.run.by_key else (down, along)

    def allowed(self, j: Any) -> jax.Array:
        """Gives the mask of tile j."""
        needed = conditions(self.plan, self.number(0), self.number(1), *self.positions(j))
        if self.plan.segmented:
            needed.append(self.value("query_segments", j) == self.value("key_segments", j))
        spread = (jnp.broadcast_to(x, self.run.block) for x in needed)
        return functools.reduce(jnp.logical_and, spread)

    def kept(self, j: Any) -> jax.Array | None:
        """Gives the weights that dropout keeps, as `attention.dropout.keep` does."""
        if not self.plan.rate:
            return None
        first, second, sequence = (jax.lax.bitcast_convert_type(self.number(which), jnp.uint32) for which in (2, 3, 4))
        return kept(self.plan, (first, second), sequence, *self.positions(j))

    def masked(self, scores: jax.Array, allowed: jax.Array | None) -> jax.Array:
        """Sets masked scores to the normaliser's number."""
        lowest = self.plan.normaliser.masked(scores.dtype)
        return scores if allowed is None else jnp.where(allowed, scores, lowest)

    def loop(self, step: Callable[[Any, Any, bool], Any], carry: Any) -> Any:
        """Runs `step(j, carry, masked)` over the tiles that some row sees, with masks where they are needed."""
        first, whole, end_of_whole, end = self._sight()
        plan = self.plan
        bounds = [(whole, end_of_whole, False)]
        if plan.segmented:
            bounds = [(first, end, True)]
        elif plan.causal or plan.window or plan.limited:
            bounds.append((end_of_whole, end, True))
            if plan.window or (plan.causal and self.run.by_key):
                bounds.insert(0, (first, whole, True))
        for start, stop, masked in bounds:
            carry = jax.lax.fori_loop(start, stop, functools.partial(step, masked=masked), carry)
        return carry

    def _sight(self) -> tuple[Any, Any, Any, Any]:
        """Gives the bounds of the tiles that some row sees, and within them of those that all rows see whole."""
        plan, (rows, columns), offset = self.plan, self.run.block, self.number(0)
        first, length = self.i * rows, jnp.minimum(self.number(1), plan.keys)
        if self.run.by_key:
            start, last = tiles_of_queries(plan, first, rows, offset, columns)
            last = jnp.where(first < length, last, jnp.int32(-1))
            real = jnp.where(first + rows <= length, jnp.int32(self.run.padded[1]), jnp.int32(0))
            position = first - offset
            lowest = position + rows - 1 if plan.causal else position + rows - plan.window if plan.window else 0
            highest = position + plan.window if plan.window else real
        else:
            start, last = tiles_of_keys(plan, first, rows, offset, length, columns)
            real, position = length, first + offset
            lowest = position + rows - plan.window if plan.window else 0
            highest = position + 1 if plan.causal else position + plan.window if plan.window else real
        end = jnp.maximum(start, last + 1)
        whole = jnp.clip(tile_of(lowest + columns - 1, columns), start, end)
        end_of_whole = tile_of(jnp.minimum(highest, real) if plan.limited else highest, columns)
        return start, whole, jnp.clip(end_of_whole, whole, end), end


def _picked(x: jax.Array, number: Any, axis: int) -> jax.Array:
    """Picks a row or a column of a matrix; a TPU picks one whose number is computed by a sum."""
    if isinstance(number, int):
        return jax.lax.slice_in_dim(x, number, number + 1, axis=axis)
    here = jax.lax.broadcasted_iota(jnp.int32, x.shape, axis) == number
    return jnp.where(here, x.astype(score_dtype(x)), 0).sum(axis, keepdims=True)


def forward_kernel(tiles: Tiles) -> tuple[jax.Array, jax.Array]:
    """Computes the output of the rows, and the number from which their weights are made again."""
    plan, rows = tiles.plan, tiles.run.block[0]

    def step(j: Any, carry: Any, masked: bool) -> Any:
        planes, (score,) = tiles.lower(j)
        scores = tiles.masked(planes.plane(score.item()), tiles.allowed(j) if masked else None)
        add = functools.partial(tiles.product, y=tiles.columns("value", j), axes=(1, 1), rounds=True)
        return flash.step(plan.normaliser, carry, scores, tiles.kept(j), add)

    count = tiles.rows["counts"] if plan.normaliser.counts else jnp.ones((rows, 1), plan.sums)
    params = {name: tiles.ref[name][0, 0] for name in plan.normaliser.parameters(Sizes(1, 1, 1, 1))}
    state = plan.normaliser.start(params, (rows, 1), count, plan.sums)
    width = tiles.run.arrays["value"].shape[3]
    carry = flash.Carry(state, jnp.zeros((rows, width), plan.sums))
    return flash.finish(plan.normaliser, tiles.loop(step, carry), plan.rate)


def backward_kernel(of_rows: list[int], widths: list[int], of_columns: list[int], tiles: Tiles) -> list[jax.Array]:
    """Sums gradients, which are outputs of the program by number; the rows' come with the values' if rows are keys."""
    plan, (rows, _), by_key = tiles.plan, tiles.run.block, tiles.run.by_key

    def step(j: Any, carry: Any, masked: bool) -> Any:
        made: list[jax.Array] = []
        planes, results = tiles.lower(j, lambda: made[0])
        allowed = tiles.allowed(j) if masked else None
        scores = tiles.masked(planes.plane(results[0].item()), allowed)
        gradient, value = tiles.value("gradient", j), tiles.value("value", j)
        through = tiles.product(value, gradient, (1, 0)) if by_key else tiles.product(gradient, value, (1, 0))
        numbers = tiles.value("row", j), through, tiles.value("through_sum", j)
        weights, d_scores = flash.step_grad(plan.normaliser, scores, allowed, tiles.kept(j), *numbers)
        made.append(d_scores)
        for ref, number in zip(tiles.totals, of_columns, strict=True):
            ref[j] += planes.summed(results[number], 0)
        found = [planes.summed(results[number], 1) for number in of_rows]
        if by_key:
            found.append(tiles.product(weights, gradient, (1, 1), rounds=True))
        return [total + x for total, x in zip(carry, found, strict=True)]

    return tiles.loop(step, [jnp.zeros((rows, width), plan.sums) for width in widths])
