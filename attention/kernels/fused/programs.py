"""The program of one pair, taken apart: what depends on the query alone, on the key alone, and on both.

`Score.pair` is traced once, for one query, one key and one head. Whatever needs only one of the two is computed once a
token, by XLA and before any tile; what a tile computes is the rest. The same is done to the program of its gradient.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun

ROWS, COLUMNS, HEAD = "rows", "columns", "head"
BOTH = frozenset({ROWS, COLUMNS})
INNER = {  # primitives that hold another program, by the parameter it is in
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
}
PLAIN = set(INNER) - {"custom_jvp_call", "custom_vjp_call"}  # those without a derivative of their own
Kind = frozenset[str]


class Parts(NamedTuple):
    """A program in parts, each a function of all inputs, of which it reads those that it may.

    Attributes:
      kinds: What each array that the tile reads depends on: a subset of rows, columns and head.
      shapes: Its shape and dtype for one pair.
      sources: The number of the input that it is, or -1 for one that is computed.
      before: From the kinds that count as known (`{ROWS, HEAD}`) to the function of all inputs that gives the arrays.
      tile: The program of a pair, of those arrays.
    """

    kinds: tuple[Kind, ...]
    shapes: tuple[jax.ShapeDtypeStruct, ...]
    sources: tuple[int, ...]
    before: Callable[[Kind, Sequence[Any]], dict[int, Any]]
    tile: ClosedJaxpr

    def of(self, kind: str | None) -> list[int]:
        """Gives the numbers of the tile's arrays that depend on the rows, on the columns, or (None) on neither."""
        return [i for i, kinds in enumerate(self.kinds) if (kinds & BOTH or {None}) == {kind}]

    def size(self, number: int) -> int:
        """Counts the numbers of an array."""
        return math.prod(self.shapes[number].shape)

    @property
    def learned(self) -> list[int]:
        """The numbers of the arrays that have gradients."""
        return [i for i, shape in enumerate(self.shapes) if is_float(shape)]


def trace(function: Callable, *shapes: Any) -> ClosedJaxpr:
    """Traces a function of flat arguments, with the programs that it calls written out; on no mesh, for all."""
    return inline(_traced(function, shapes), PLAIN)


def _traced(function: Callable, shapes: Sequence[Any]) -> ClosedJaxpr:
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
        return jax.make_jaxpr(function)(*shapes)


def inline(program: ClosedJaxpr, names: set[str]) -> ClosedJaxpr:
    """Writes out the programs within a program whose primitives have the names."""
    shapes = [
        jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype, weak_type=v.aval.weak_type) for v in program.jaxpr.invars
    ]
    return _traced(lambda *x: run(program.jaxpr, program.consts, x, names), shapes)


def run(
    program: Jaxpr, consts: Sequence[Any], arguments: Sequence[Any], names: set[str], compute: Callable | None = None
) -> list[Any]:
    """Runs a program, with those within it whose primitives have the names, by `compute` in place of `bind`."""
    known = dict(zip((*program.constvars, *program.invars), (*consts, *arguments), strict=True))
    made: dict[Var, JaxprEqn] = {}
    for equation in program.eqns:
        inputs = [read(known, x) for x in equation.invars]
        if equation.primitive.name in names:
            inner = equation.params[INNER[equation.primitive.name]]
            inner, consts = (inner, []) if isinstance(inner, Jaxpr) else (inner.jaxpr, inner.consts)
            outputs = run(inner, consts, inputs, names, compute)
        elif joined := _joined_factor(equation, made):
            outputs = [
                _by_parts(equation, inputs, joined, [read(known, x) for x in made[equation.invars[joined[0]]].invars])
            ]
        else:
            outputs = (compute or bind)(equation, inputs)
        known |= zip(equation.outvars, outputs, strict=True)
        made |= dict.fromkeys(equation.outvars, equation)
    return [read(known, x) for x in program.outvars]


def _joined_factor(equation: JaxprEqn, made: dict[Var, JaxprEqn]) -> tuple[int, int] | None:
    """Tells which factor of a product is vectors joined along the contracted axis, and that axis of the other."""
    if equation.primitive.name != "dot_general":
        return None
    (first, second), batch = equation.params["dimension_numbers"]
    for number, (x, axes, other) in enumerate(zip(equation.invars, (first, second), (second, first), strict=True)):
        by = None if isinstance(x, Literal) else made.get(x)
        if by and by.primitive.name == "concatenate" and not batch[0] and axes == (by.params["dimension"],):
            return number, other[0]
    return None


def _by_parts(equation: JaxprEqn, inputs: Sequence[Any], joined: tuple[int, int], vectors: Sequence[Any]) -> Any:
    """Multiplies joined vectors one by one, W·[q; k] = W₁q + W₂k, so that each product is computed once a token."""
    number, axis = joined
    own = equation.params["dimension_numbers"][0][number][0]
    start, total = 0, 0
    for x in vectors:
        part = jax.lax.slice_in_dim(inputs[1 - number], start, start + x.shape[own], axis=axis)
        total = total + jax.lax.dot_general(*((x, part) if number == 0 else (part, x)), **equation.params)
        start += x.shape[own]
    return total


def read(known: dict[Var, Any], x: Var | Literal) -> Any:
    """Gives the value of a variable, or of a number in the program."""
    return x.val if isinstance(x, Literal) else known[x]


def bind(equation: JaxprEqn, inputs: Sequence[Any]) -> list[Any]:
    """Computes one equation."""
    outputs = equation.primitive.bind(*inputs, **equation.primitive.get_bind_params(equation.params))
    return outputs if equation.primitive.multiple_results else [outputs]


def split(program: ClosedJaxpr, kinds: Sequence[Kind]) -> Parts:
    """Takes a program apart by what each of its inputs depends on."""
    jaxpr = program.jaxpr
    kind: dict[Var, Kind] = dict.fromkeys(jaxpr.constvars, frozenset()) | dict(zip(jaxpr.invars, kinds, strict=True))
    for equation in jaxpr.eqns:
        depends = (kind[x] for x in equation.invars if isinstance(x, Var))
        kind |= dict.fromkeys(equation.outvars, frozenset().union(*depends))
    within = [e for e in jaxpr.eqns if kind[e.outvars[0]] >= BOTH]
    needed = dict.fromkeys(x for x in (*(x for e in within for x in e.invars), *jaxpr.outvars) if isinstance(x, Var))
    inside = {x for e in within for x in e.outvars}
    given = [x for x in needed if x not in inside]
    numbers = {x: number for number, x in enumerate(jaxpr.invars)}

    def before(known: Kind, inputs: Sequence[Any]) -> dict[int, Any]:
        values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*program.consts, *inputs), strict=True))
        for equation in jaxpr.eqns:
            if kind[equation.outvars[0]] <= known:
                values |= zip(equation.outvars, bind(equation, [read(values, x) for x in equation.invars]), strict=True)
        return {number: values[x] for number, x in enumerate(given) if kind[x] <= known}

    def tile(*inputs: Any) -> list[Any]:
        values = dict(zip(given, inputs, strict=True))
        for equation in within:
            values |= zip(equation.outvars, bind(equation, [read(values, x) for x in equation.invars]), strict=True)
        return [read(values, x) for x in jaxpr.outvars]

    shapes = tuple(jax.ShapeDtypeStruct(x.aval.shape, x.aval.dtype) for x in given)
    return Parts(
        tuple(kind[x] for x in given),
        shapes,
        tuple(numbers.get(x, -1) for x in given),
        before,
        _traced(tile, shapes),
    )


def is_float(shape: Any) -> bool:
    """Tells whether an array has a gradient."""
    return np.issubdtype(shape.dtype, np.floating) or shape.dtype.name == "bfloat16"


def gradient_of(parts: Parts) -> ClosedJaxpr:
    """Traces the score of a pair and the gradients of its arrays, as a function of the score's gradient and those."""

    def run(d_score: jax.Array, *arrays: jax.Array) -> tuple[Any, ...]:
        def scored(*some: jax.Array) -> jax.Array:
            given = dict(enumerate(arrays)) | dict(zip(parts.learned, some, strict=True))
            return jaxpr_as_fun(parts.tile)(*given.values())[0]

        score, pull = jax.vjp(scored, *(arrays[i] for i in parts.learned))
        return score, *pull(d_score.astype(score.dtype))

    return trace(run, jax.ShapeDtypeStruct((), np.float32), *parts.shapes)


def compares_sums(program: ClosedJaxpr) -> bool:
    """Tells whether a program compares sums, item by item, with one of them, as the gradient of their maximum does.

    Both are computed, and may be rounded otherwise, so that none is equal.
    """
    summed: set[Any] = set()
    for equation in inline(program, set(INNER)).jaxpr.eqns:
        vectors = [x for x in equation.invars if isinstance(x, Var) and x.aval.shape]
        name = equation.primitive.name
        if name == "eq" and any(x in summed for x in vectors):
            return True
        if name in ("dot_general", "reduce_sum") or any(x in summed for x in vectors):
            summed |= set(equation.outvars)
    return False


@functools.cache
def unsupported(program: ClosedJaxpr, supports: Callable[[JaxprEqn], bool]) -> str:
    """Names the first primitive of a program that is not supported; '' if all are."""
    plain = inline(program, set(INNER))
    return next((e.primitive.name for e in plain.jaxpr.eqns if not supports(e)), "")
