"""Analytic counts of floating-point operations and bytes for each mechanism, forward and backward.

A multiply-add counts as two operations and an exponential as one. Masked pairs are counted: a causal mask
halves the useful work, not what a plain implementation does.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from attention.forms import At, Tokens


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of one forward pass, from which the cost of the backward pass follows.

    The backward pass of a product Y = XW takes two products of the same size, dX = dY Wᵀ and dW = Xᵀ dY. Pointwise
    operations take about as many in the backward pass: a sum for each bias, and for each score as many as the softmax
    and the scale. Recomputation that saves memory is not counted.

    Attributes:
      products: Operations of matrix products and convolutions.
      pointwise: All other operations.
      bytes: Bytes that must be read or written once, in float32.
      constant: The part of `products` that multiplies data. Data need no gradient, so the backward pass of these takes
        one product, not two.
    """

    products: int = 0
    pointwise: int = 0
    bytes: int = 0
    constant: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        sums = (getattr(self, f.name) + getattr(other, f.name) for f in dataclasses.fields(self))
        return Cost(*sums)

    def __mul__(self, times: int) -> "Cost":
        return Cost(*(getattr(self, f.name) * times for f in dataclasses.fields(self)))

    @property
    def flops(self) -> int:
        """Returns the operations of the forward pass."""
        return self.products + self.pointwise

    @property
    def backward(self) -> int:
        """Returns the operations of the backward pass, with the gradients of the parameters and of the inputs."""
        return 2 * self.products - self.constant + self.pointwise

    @property
    def training(self) -> int:
        """Returns the operations of both passes."""
        return self.flops + self.backward

    @property
    def of_data(self) -> "Cost":
        """Returns the same cost where the inputs are data, which need no gradient."""
        return dataclasses.replace(self, constant=self.products)


ITEM = 4  # bytes of a float32
SOFTMAX_FLOPS = 4  # for each score: subtract the maximum, exponentiate, sum, divide


def matmul(rows: int, inner: int, columns: int) -> Cost:
    """Returns the cost of `(rows, inner) @ (inner, columns)`."""
    return Cost(2 * rows * inner * columns, 0, ITEM * (rows * inner + inner * columns + rows * columns))


def linear(tokens: int, inputs: int, outputs: int, *, bias: bool = True) -> Cost:
    """Returns the cost of a dense layer on `tokens` rows, with its bias unless `bias` is False."""
    return matmul(tokens, inputs, outputs) + Cost(0, tokens * outputs, ITEM * outputs) * bias


def mlp(tokens: int, inputs: int, hidden: int, outputs: int) -> Cost:
    """Returns the cost of two dense layers on `tokens` rows; the activation counts one operation for each unit."""
    return linear(tokens, inputs, hidden) + Cost(pointwise=tokens * hidden) + linear(tokens, hidden, outputs)


def dot_product(queries: int, keys: int, heads: int, width: int, normaliser: int = SOFTMAX_FLOPS) -> Cost:
    """Returns the cost of scores, softmax and weighted values for one sequence: 4 T S N H + 5 T S N with the scale."""
    pairs = queries * keys * heads
    ends = 2 * queries * heads * width + 2 * keys * heads * width
    return Cost(pairs * 4 * width, pairs * (normaliser + 1), ITEM * ends)


def align(length: int, heads: int, width: int) -> Cost:
    """Returns the cost of W^A V + b for one sequence: 2 ℓ² d + ℓ d (Hosseini, eq. 22; eq. 24 counts neither)."""
    product = matmul(length, length, heads * width)
    return product + Cost(0, length * heads * width, ITEM * length)


def pairwise(
    queries: int,
    keys: int,
    heads: int,
    width: int,
    widths: list[int],
    normaliser: int = SOFTMAX_FLOPS,
    *,
    unique: bool = False,
) -> Cost:
    """Returns the cost on pairs: a + b, the activation, the further layers, then softmax and weighted values.

    Args:
      queries: T.
      keys: S.
      heads: N.
      width: V, the width of a head's values.
      widths: The widths of concat(q', k') and of each hidden layer, then 1.
      normaliser: Operations of the normaliser on each score.
      unique: Whether each pair has its own weights. The first layer is then computed for each pair too, and all weights
        are read once.
    """
    hidden = widths[1:-1]
    layers = list(itertools.pairwise(widths))[0 if unique else 1 :]
    pairs = queries * keys * heads
    ends = (queries + keys) * heads * (widths[1] + width)
    tables = queries * keys * sum(i * o + o for i, o in itertools.pairwise(widths)) if unique else 0
    products = sum(2 * inputs * outputs for inputs, outputs in layers) + 2 * width
    pointwise = sum(widths[1:]) + sum(hidden) + normaliser  # biases, activations
    return Cost(pairs * products, pairs * pointwise, ITEM * (ends + tables))


def running_state(queries: int, keys: int, heads: int, width: int, *, columns: int | None = None) -> Cost:
    """Returns the cost of an outer product for each key and a product with the state for each query: 2 H V each.

    Args:
      queries: T.
      keys: S.
      heads: N.
      width: H.
      columns: V, the width of the values; H by default.
    """
    columns = width if columns is None else columns
    ends, state = (queries + keys) * heads * (width + columns), heads * width * columns
    return Cost(2 * (queries + keys) * state, 0, ITEM * (ends + state))


def convolution(height: int, width: int, kernel: int, inputs: int, outputs: int, *, stride: int = 1) -> Cost:
    """Returns the cost of a convolution of one feature map, padded with zeros (`SAME`), without a bias.

    Products with the padding are not counted; XLA does not count them either.

    Args:
      height: Height of the map.
      width: Width of the map.
      kernel: Side of the kernel.
      inputs: Number of input channels.
      outputs: Number of output channels.
      stride: Stride along both axes.
    """
    places = _taps(height, kernel, stride) * _taps(width, kernel, stride)
    ends = height * width * inputs + -(-height // stride) * -(-width // stride) * outputs
    return Cost(2 * places * inputs * outputs, bytes=ITEM * (ends + kernel**2 * inputs * outputs))


def _taps(length: int, kernel: int, stride: int) -> int:
    """Returns how many products along one axis have both a weight and a position of the map."""
    results = -(-length // stride)
    before = max(0, (results - 1) * stride + kernel - length) // 2
    starts = (result * stride - before for result in range(results))
    return sum(min(start + kernel, length) - max(start, 0) for start in starts)


def of_pairs(score: Any, sizes: Any, queries: int, keys: int) -> Cost:
    """Returns the cost of a score from its definition, counted in the program that JAX makes of it.

    That is the preparation of each token and head, `pair` for each pair, the normaliser, and the weighted values.

    Args:
      score: A `Score`.
      sizes: Its `Sizes`.
      queries: T.
      keys: S.
    """
    token, source = _array(1, sizes.heads, sizes.head), _array(1, sizes.model)
    params = {name: _array(*p.shape) for name, p in score.arrays(sizes).items()}
    own = {name: _array(*p.shape[len(p.over) :]) for name, p in score.parameters(sizes).items()}
    prepared, once = [], []
    for prepare, reads in ((score.prepare_query, score.reads_query), (score.prepare_key, score.reads_key)):
        program = lambda params, x, source, prepare=prepare: prepare(params, x, Tokens(0, source))  # noqa: E731
        once.append(counted(program, params, token, source) if reads else Cost())
        x = jax.eval_shape(program, params, token, source) if reads else None
        prepared.append(jax.tree.map(lambda y: _array(*y.shape[2:]), x))
    position = jax.ShapeDtypeStruct((), jnp.int32)
    pair = lambda params, q, k, i, j, n: score.pair(params, q, k, At(i, j, n, sizes.heads))  # noqa: E731
    each = counted(pair, own, *prepared, position, position, position)
    each += Cost(2 * sizes.head, score.weighing.flops)
    ends = Cost(bytes=ITEM * 2 * (queries + keys) * sizes.heads * sizes.head)
    return once[0] * queries + once[1] * keys + each * (queries * keys * sizes.heads) + ends


def of_steps(recurrence: Any, sizes: Any, queries: int, keys: int) -> Cost:
    """Returns the cost of a recurrence from its definition: gates and `write` for each key, `read` for each query.

    Args:
      recurrence: A `Recurrence`.
      sizes: Its `Sizes`.
      queries: T.
      keys: S.
    """
    declared = recurrence.parameters(sizes)
    params = {name: _array(*p.shape) for name, p in declared.items()}
    own = {name: _array(*p.shape[len(p.over) :]) for name, p in declared.items()}
    token, source = _array(sizes.head), _array(1, sizes.model)
    state = jax.tree.map(lambda x: _array(*x.shape), jax.eval_shape(lambda: recurrence.begin(sizes.head, sizes.head)))
    of_heads = jax.eval_shape(recurrence.gates, params, source)
    gates = jax.tree.map(lambda x: _array(*x.shape[2:]), of_heads)
    written = counted(recurrence.write, own, state, token, token, gates) * sizes.heads
    written += counted(recurrence.gates, params, source)
    read = counted(recurrence.read, own, state, token) * sizes.heads
    ends = Cost(bytes=ITEM * 2 * (queries + keys) * sizes.heads * sizes.head)
    return written * keys + read * queries + ends


def counted(function: Callable, *shapes: Any) -> Cost:
    """Returns the operations in the program of a function of arrays of these shapes, without bytes."""
    return _of_program(jax.make_jaxpr(function)(*shapes).jaxpr)


# Operations that move or compare positions, or that a compiler drops: no arithmetic on data.
FREE = {
    *(
        "broadcast_in_dim",
        "reshape",
        "transpose",
        "squeeze",
        "convert_element_type",
        "slice",
        "dynamic_slice",
        "gather",
    ),
    *("concatenate", "iota", "copy", "select_n", "stop_gradient", "split"),
}


def _of_program(program: Any) -> Cost:
    total = Cost()
    for equation in program.eqns:
        size = sum(math.prod(v.aval.shape) for v in equation.outvars)
        name = equation.primitive.name
        inner = [x for x in equation.params.values() if hasattr(x, "eqns") or hasattr(x, "jaxpr")]
        if name == "dot_general":
            ((axes, _), _), left = equation.params["dimension_numbers"], equation.invars[0].aval.shape
            total += Cost(2 * size * math.prod(left[axis] for axis in axes))
        elif inner:
            total += functools.reduce(Cost.__add__, (_of_program(getattr(x, "jaxpr", x)) for x in inner))
        elif name.startswith("reduce_"):
            total += Cost(pointwise=sum(math.prod(v.aval.shape) for v in equation.invars) - size)
        elif name not in FREE and jnp.issubdtype(equation.outvars[0].aval.dtype, jnp.floating):
            total += Cost(pointwise=size)
    return total


def _array(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)
