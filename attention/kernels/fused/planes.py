"""The program of a pair on a tile of pairs: every number of the program becomes a plane of (rows, columns).

An array of the program is not stored: its items are computed when they are asked for, each as a plane, or as a column
`(rows, 1)` or a row `(1, columns)` where it depends on one side alone. A sum over an array's axis is a loop over items.
What is a matrix product is computed as one: contractions of rows with columns, and sums over columns or rows of planes
times these. So nothing has three axes, and one lowering serves XLA, GPUs and TPUs.
"""

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal

from attention.kernels.fused.programs import COLUMNS, INNER, ROWS, bind, inline, is_float

UNROLLED = 8  # so many items are written out; more are a loop
Index = tuple[Any, ...]

NAMES = (
    "abs add add_any and ceil clamp convert_element_type copy cos div eq exp exp2 expm1 floor ge gt integer_pow "
    "is_finite le log log1p logistic lt max min mul ne neg not one_minus_square or pow rem round rsqrt select_n "
    "sign sin sqrt square stop_gradient sub tan tanh xor"
)
ELEMENTWISE = frozenset(NAMES.split())
REDUCTIONS = {
    "reduce_sum": (jnp.add, 0.0),
    "reduce_max": (jnp.maximum, -math.inf),
    "reduce_min": (jnp.minimum, math.inf),
    "reduce_prod": (jnp.multiply, 1.0),
}
MOVES = {"broadcast_in_dim", "reshape", "squeeze", "transpose", "rev", "slice", "pad", "concatenate", "iota"}
MOVES |= {"split", "tile"}
SUPPORTED = ELEMENTWISE | set(REDUCTIONS) | MOVES | {"dot_general", "dynamic_slice", "dynamic_update_slice"}


class Value:
    """An array of the program.

    Attributes:
      shape: Its shape for one pair.
      sides: Which of rows and columns it depends on.
      equation: The equation that computes it; None for what a tile is given.
      inputs: What it is computed from.
      number: The number that it has among the equation's results.
    """

    def __init__(
        self, tile: "Planes", aval: Any, sides: frozenset[str], equation: Any = None, inputs: Any = (), number: int = 0
    ):
        self.tile, self.shape, self.dtype = tile, aval.shape, aval.dtype
        self.sides, self.equation, self.inputs, self.number = sides, equation, inputs, number

    @property
    def name(self) -> str:
        """The name of the primitive that computes it."""
        return self.equation.primitive.name if self.equation else ""

    def item(self, index: Index = ()) -> jax.Array:
        """Computes an item as a plane, once in each loop."""
        return self.tile.remembered(self, index, self._item)

    def _item(self, index: Index) -> jax.Array:
        return _rule(self.name)(self, index)


class Given(Value):
    """An array that a tile reads, or a number of the program: for each row, for each column, or for all pairs.

    Attributes:
      read: From the index of an item to the item.
      whole: Gives all items: `(rows, width)` of rows, `(width, columns)` of columns.
    """

    def __init__(self, tile: "Planes", aval: Any, sides: frozenset[str], read: Callable, whole: Callable | None):
        super().__init__(tile, aval, sides)
        self.read, self.whole = read, whole

    def _item(self, index: Index) -> jax.Array:
        return self.read(_flat(index, self.shape))


class Planes:
    """The lowering of a program to one tile.

    Attributes:
      shape: Rows and columns.
      product: Multiplies matrices, given two arrays, the axes to contract, and whether to round the first to the dtype
        of the second.
      width: From the size of a vector to that which it has in memory.
    """

    def __init__(self, shape: tuple[int, int], product: Callable[..., jax.Array], width: Callable[[int], int]):
        self.shape, self.product, self.width = shape, product, width
        self.memories: list[dict] = [{}]

    def remembered(self, value: Value, index: Index, compute: Callable[[Index], jax.Array]) -> jax.Array:
        """Computes an item unless it was computed in this loop or in one around it."""
        key = value, tuple(i if isinstance(i, int) else id(i) for i in index)
        for memory in self.memories:
            if key in memory:
                return memory[key]
        found = compute(index)
        self.memories[-1][key] = found
        return found

    def plane(self, x: jax.Array) -> jax.Array:
        """Spreads an item over all pairs."""
        return jnp.broadcast_to(x, self.shape)

    def lower(self, program: ClosedJaxpr, inputs: Sequence[Value]) -> list[Value]:
        """Gives the outputs of a program, none of which is computed yet."""
        plain = inline(program, set(INNER)).jaxpr
        known: dict[Any, Value] = dict(zip(plain.invars, inputs, strict=True))

        def get(x: Any) -> Value:
            if isinstance(x, Literal):
                return Given(self, x.aval, frozenset(), lambda _: jnp.asarray(x.val, x.aval.dtype), None)
            return known[x]

        for equation in plain.eqns:
            given = [get(x) for x in equation.invars]
            sides = frozenset().union(*(x.sides for x in given))
            for number, x in enumerate(equation.outvars):
                known[x] = Value(self, x.aval, sides, equation, given, number)
        return [get(x) for x in plain.outvars]

    def fold(self, size: int, item: Callable[[Any], Any], combine: Callable, start: Any) -> Any:
        """Combines the items of an axis one after another, in a loop if they are many."""
        if size <= UNROLLED:
            return functools.reduce(combine, map(item, range(size)))

        def step(number: jax.Array, totals: Any) -> Any:
            self.memories.append({})
            totals = combine(totals, item(number))
            self.memories.pop()
            return totals

        return jax.lax.fori_loop(0, size, step, start)

    def shape_of(self, value: Value) -> tuple[int, ...]:
        """Gives the shape of an item."""
        if not value.sides:
            return ()
        return tuple(size if side in value.sides else 1 for size, side in zip(self.shape, (ROWS, COLUMNS), strict=True))

    def summed(self, value: Value, axis: int) -> jax.Array:
        """Sums every item over the columns (axis 1), as `(rows, width)`, or over the rows (0), as `(width, columns)`.

        The width of a number is 1.
        """
        if not value.shape:
            return self.plane(value.item()).sum(axis, keepdims=True)
        if value.name in ("add", "add_any") and all(x.shape == value.shape for x in value.inputs):
            first, second = (self.summed(x, axis) for x in value.inputs)
            return first + second
        if value.name == "neg":
            return -self.summed(value.inputs[0], axis)
        if value.name == "broadcast_in_dim" and not value.inputs[0].shape:
            total = self.summed(value.inputs[0], axis)
            return jnp.broadcast_to(total, self._sums_shape(value, axis))
        if (factors := _factors(value)) is not None:
            return self._outer(*factors, axis)
        return self._by_items(value, axis)

    def _outer(self, planes: list[Value], vectors: list["Given"], axis: int) -> jax.Array:
        """Sums planes times a vector over an axis, as a product if the vector lies along it."""
        plane = self.plane(functools.reduce(operator.mul, (x.item() for x in planes)))
        vector = vectors[0].whole()
        if (ROWS, COLUMNS)[axis] not in vectors[0].sides:
            return plane.sum(axis, keepdims=True) * vector.astype(plane.dtype)
        vector = vector if is_float(vector) else vector.astype(plane.dtype)  # a product takes the vector's dtype
        if axis:
            return self.product(plane, vector, (1, 1), rounds=True)
        return self.product(vector, plane.astype(vector.dtype), (0, 0))

    def _by_items(self, value: Value, axis: int) -> jax.Array:
        self.prime(value)
        shape = self._sums_shape(value, axis)
        units = jax.lax.broadcasted_iota(jnp.int32, (1, shape[1]) if axis else (shape[0], 1), axis)

        def item(number: Any) -> jax.Array:
            total = self.plane(value.item(_unflat(number, value.shape))).sum(axis, keepdims=True)
            return jnp.where(units == number, total, 0)

        return self.fold(math.prod(value.shape), item, operator.add, jnp.zeros(shape, value.dtype))

    def _sums_shape(self, value: Value, axis: int) -> tuple[int, int]:
        width = self.width(math.prod(value.shape))
        return (self.shape[0], width) if axis else (width, self.shape[1])

    def prime(self, value: Value) -> None:
        """Computes all numbers that a value needs, so that a loop over its items does not compute them again."""
        seen: set[Value] = set()
        waiting = [value]
        while waiting:
            x = waiting.pop()
            if x in seen:
                continue
            seen.add(x)
            if not x.shape and len(x.sides) == 2 and x is not value:
                x.item()
            else:
                waiting += x.inputs


def _along(index: Index, shape: tuple[int, ...]) -> Index:
    """Gives the index in an array whose axes may be 1, or which is a number."""
    return tuple(0 if size == 1 else i for i, size in zip(index, shape, strict=True)) if shape else ()


def _rule(name: str) -> Callable[[Value, Index], jax.Array]:
    """Gives the function that computes an item of a primitive's result."""
    if name in ELEMENTWISE:
        return _elementwise
    if name in REDUCTIONS:
        return _reduced
    rules = {"dot_general": _contracted, "dynamic_slice": _looked_up, "dynamic_update_slice": _put}
    return rules.get(name, _moved)


def _elementwise(value: Value, index: Index) -> jax.Array:
    items = [x.item(_along(index, x.shape)) for x in value.inputs]
    shape = jnp.broadcast_shapes(*(jnp.shape(x) for x in items))
    return bind(value.equation, [jnp.broadcast_to(x, shape) for x in items])[0]


def _reduced(value: Value, index: Index) -> jax.Array:
    (x,), axes = value.inputs, value.equation.params["axes"]
    if value.name == "reduce_sum" and (factors := _dot_of(x)):
        return _as_product(value.tile, *factors)
    combine, start = REDUCTIONS[value.name]
    return _folded(value, [x.shape[axis] for axis in axes], lambda at: x.item(_insert(index, axes, at)), combine, start)


def _folded(value: Value, sizes: list[int], item: Callable, combine: Callable, start: float) -> jax.Array:
    tile = value.tile
    for x in value.inputs:
        tile.prime(x)
    first = jnp.full(tile.shape_of(value), start, value.dtype)

    def at(number: Any) -> jax.Array:
        return jnp.broadcast_to(item(_unflat(number, sizes)), first.shape)

    return tile.fold(math.prod(sizes), at, combine, first)


def _contracted(value: Value, index: Index) -> jax.Array:
    first, second = value.inputs
    (sum_1, sum_2), (batch_1, batch_2) = value.equation.params["dimension_numbers"]
    given = isinstance(first, Given) and isinstance(second, Given)
    if given and not value.shape and len(first.shape) == 1 and {first.sides, second.sides} == {_ROWS, _COLUMNS}:
        rows, columns = (first, second) if first.sides == _ROWS else (second, first)
        return _as_product(value.tile, [rows], [columns])
    free_1 = len(first.shape) - len(sum_1) - len(batch_1)
    shared, own_1, own_2 = index[: len(batch_1)], index[len(batch_1) :][:free_1], index[len(batch_1) + free_1 :]

    def item(at: Index) -> jax.Array:
        x = first.item(_insert(own_1, (*batch_1, *sum_1), (*shared, *at)))
        y = second.item(_insert(own_2, (*batch_2, *sum_2), (*shared, *at)))
        return (x * y).astype(value.dtype)

    return _folded(value, [first.shape[axis] for axis in sum_1], item, jnp.add, 0.0) if sum_1 else item(())


_ROWS, _COLUMNS = frozenset({ROWS}), frozenset({COLUMNS})


def _as_product(tile: Planes, rows: list[Given], columns: list[Given]) -> jax.Array:
    def multiplied(some: list[Given]) -> jax.Array:
        if len(some) == 1:
            return some[0].whole()
        return functools.reduce(operator.mul, (x.whole().astype(x.dtype) for x in some))

    return tile.product(multiplied(rows), multiplied(columns), (1, 0))


def _dot_of(x: Value) -> tuple[list[Given], list[Given]] | None:
    """Gives the vectors of rows and of columns whose product a vector is, item by item; None if it is none."""
    leaves = _chain(x)
    if len(x.shape) != 1 or any(not isinstance(leaf, Given) or leaf.shape != x.shape for leaf in leaves):
        return None
    rows, columns = ([leaf for leaf in leaves if leaf.sides == side] for side in (_ROWS, _COLUMNS))
    return (rows, columns) if rows and columns and len(rows) + len(columns) == len(leaves) else None


def _chain(x: Value) -> list[Value]:
    """Gives the factors of a product."""
    return [leaf for y in x.inputs for leaf in _chain(y)] if x.name == "mul" else [x]


def _factors(x: Value) -> tuple[list[Value], list[Given]] | None:
    """Gives numbers and at most one vector whose product a vector is; None if it is no such product."""
    if isinstance(x, Given) and x.whole:
        return [], [x]
    if not x.shape:
        return [x], []
    if x.name == "broadcast_in_dim":
        return _factors(x.inputs[0]) if not x.inputs[0].shape else None
    outer = x.name == "dot_general" and not x.equation.params["dimension_numbers"][0][0]
    if x.name not in ("mul", "convert_element_type") and not outer:
        return None
    found = [_factors(y) for y in x.inputs]
    if any(factors is None for factors in found):
        return None
    planes, vectors = ([x for factors in found for x in factors[which]] for which in (0, 1))
    return (planes, vectors) if planes and [vector.shape for vector in vectors] == [x.shape] else None


def _looked_up(value: Value, index: Index) -> jax.Array:
    """Gives the number of a short table at a computed place: one comparison for each of its numbers."""
    table, place = value.inputs
    at = _within(place, table)
    return _folded(value, [table.shape[0]], lambda row: jnp.where(at == row[0], table.item(row), 0), operator.add, 0.0)


def _put(value: Value, index: Index) -> jax.Array:
    """Puts a number at a computed place of a table, as the gradient of a lookup does."""
    table, number, place = value.inputs
    return jnp.where(_within(place, table) == index[0], number.item((0,)), table.item(index))


def _within(place: Value, table: Value) -> jax.Array:
    return jnp.clip(place.item(), 0, table.shape[0] - 1)


def lowers(equation: JaxprEqn, missing: frozenset[str] = frozenset()) -> bool:
    """Tells whether an equation can be lowered; lookups can where each reads or writes one number of a vector."""
    name = equation.primitive.name
    if name in ("dynamic_slice", "dynamic_update_slice"):
        part = equation.outvars[0] if name == "dynamic_slice" else equation.invars[1]
        return part.aval.shape == (1,)
    return name in SUPPORTED and name not in missing


def _moved(value: Value, index: Index) -> jax.Array:
    """Gives the item of an array that only rearranges others."""
    params, (x, *rest) = value.equation.params, value.inputs or [None]
    match value.name:
        case "broadcast_in_dim":
            picked = zip(params["broadcast_dimensions"], x.shape, strict=True)
            return x.item(tuple(0 if size == 1 else index[axis] for axis, size in picked))
        case "reshape":
            return x.item(_unflat(_flat(index, value.shape), x.shape))
        case "squeeze":
            return x.item(_insert(index, params["dimensions"], (0,) * len(params["dimensions"])))
        case "transpose":
            return x.item(tuple(index[params["permutation"].index(axis)] for axis in range(len(index))))
        case "rev":
            turned = params["dimensions"]
            return x.item(tuple(x.shape[a] - 1 - i if a in turned else i for a, i in enumerate(index)))
        case "slice":
            strides = params["strides"] or (1,) * len(index)
            starts = zip(params["start_indices"], strides, index, strict=True)
            return x.item(tuple(start + stride * i for start, stride, i in starts))
        case "iota":
            return jnp.asarray(index[params["dimension"]], value.dtype)
        case "tile":
            lead = (1,) * (len(index) - len(x.shape))
            sizes = (*lead, *x.shape)
            at = (i - _divided(i, size) * size for i, size in zip(index, sizes, strict=True))
            return x.item(tuple(at)[len(lead) :])
        case "split":
            start = sum(params["sizes"][: value.number])
            return x.item(tuple(i + start if a == params["axis"] else i for a, i in enumerate(index)))
        case "concatenate":
            return _joined(value, index, params["dimension"])
        case "pad":
            return _padded(x, rest[0], index, [tuple(map(int, ends)) for ends in params["padding_config"]])
    raise NotImplementedError(value.name)


def _joined(value: Value, index: Index, axis: int) -> jax.Array:
    start, found = 0, None
    for x in value.inputs:
        at = index[axis] - start
        if isinstance(at, int):
            if 0 <= at < x.shape[axis]:
                return x.item((*index[:axis], at, *index[axis + 1 :]))
        else:
            item = x.item((*index[:axis], jnp.clip(at, 0, x.shape[axis] - 1), *index[axis + 1 :]))
            found = item if found is None else jnp.where(at >= 0, *jnp.broadcast_arrays(item, found))
        start += x.shape[axis]
    return found


def _padded(x: Value, fill: Value, index: Index, config: Sequence[tuple[int, int, int]]) -> jax.Array:
    places = [_unpadded(i, size, low, inner) for i, size, (low, _, inner) in zip(index, x.shape, config, strict=True)]
    inside = functools.reduce(operator.and_, (here for _, here in places), True)
    if isinstance(inside, bool):
        return x.item(tuple(at for at, _ in places)) if inside else fill.item()
    return jnp.where(inside, *jnp.broadcast_arrays(x.item(tuple(at for at, _ in places)), fill.item()))


def _unpadded(i: Any, size: int, low: int, inner: int) -> tuple[Any, Any]:
    """Gives the place of an item along an axis before padding, and whether it was there."""
    at = i - low
    if isinstance(i, int):
        return at // (inner + 1), 0 <= at < size * (inner + 1) and at % (inner + 1) == 0
    step = jnp.asarray(inner + 1, at.dtype)
    place = jax.lax.div(jnp.maximum(at, 0), step)
    return jnp.clip(place, 0, size - 1), (at >= 0) & (place < size) & (place * step == at)


def _insert(index: Index, axes: Sequence[int], at: Index) -> Index:
    """Puts the indices of some axes among those of the others."""
    fixed, rest = dict(zip(axes, at, strict=True)), iter(index)
    return tuple(fixed[axis] if axis in fixed else next(rest) for axis in range(len(index) + len(axes)))


def _flat(index: Index, shape: Sequence[int]) -> Any:
    return functools.reduce(lambda flat, pair: flat * pair[1] + pair[0], zip(index, shape, strict=True), 0)


def _unflat(number: Any, shape: Sequence[int]) -> Index:
    """Gives the index of an item by its number."""
    index: list[Any] = []
    for axis in reversed(range(len(shape))):
        size = math.prod(shape[:axis])
        last = number if size == 1 else _divided(number, shape[axis])
        index.append(0 if shape[axis] == 1 else number - last * shape[axis] if size > 1 else number)
        number = last
    return tuple(reversed(index))


def _divided(number: Any, size: int) -> Any:
    return number // size if isinstance(number, int) else jax.lax.div(number, jnp.asarray(size, number.dtype))
