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

from attention.forms import Dot, Tokens
from attention.kernels import pairs
from attention.kernels.call import Call, common
from attention.mask import Mask
from attention.options import Options
from attention.parameters import Sizes


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of one forward pass, from which the cost of the backward pass follows.

    The backward pass of a product Y = XW takes two products of the same size, dX = dY Wᵀ and dW = Xᵀ dY. Pointwise
    operations take about as many in the backward pass: a sum for each bias, and for each score as many as the softmax
    and the scale; what is counted in a program says how many more that program takes. Recomputation that saves memory
    is not counted.

    Attributes:
      products: Operations of matrix products and convolutions.
      pointwise: All other operations.
      bytes: Bytes that must be read or written once, in float32.
      constant: The part of `products` that multiplies data. Data need no gradient, so the backward pass of these takes
        one product, not two.
      more: Operations of the backward pass beyond two for each of `products` and one for each of `pointwise`.
    """

    products: int = 0
    pointwise: int = 0
    bytes: int = 0
    constant: int = 0
    more: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        sums = (getattr(self, f.name) + getattr(other, f.name) for f in dataclasses.fields(self))
        return Cost(*sums)

    def __mul__(self, times: int) -> "Cost":
        return Cost(*(getattr(self, f.name) * times for f in dataclasses.fields(self)))

    @property
    def flops(self) -> int:
        """The operations of the forward pass."""
        return self.products + self.pointwise

    @property
    def backward(self) -> int:
        """The operations of the backward pass, with the gradients of the parameters and of the inputs."""
        return 2 * self.products - self.constant + self.pointwise + self.more

    @property
    def training(self) -> int:
        """The operations of both passes."""
        return self.flops + self.backward

    @property
    def of_data(self) -> "Cost":
        """The same cost where the inputs are data, which need no gradient."""
        return dataclasses.replace(self, constant=self.products)


ITEM = 4  # bytes of a float32
SOFTMAX_FLOPS = 4  # for each score: subtract the maximum, exponentiate, sum, divide


def matmul(rows: int, inner: int, columns: int) -> Cost:
    """Counts the cost of `(rows, inner) @ (inner, columns)`."""
    return Cost(2 * rows * inner * columns, 0, ITEM * (rows * inner + inner * columns + rows * columns))


def linear(tokens: int, inputs: int, outputs: int, *, bias: bool = True) -> Cost:
    """Counts the cost of a dense layer on `tokens` rows, with its bias unless `bias` is False."""
    return matmul(tokens, inputs, outputs) + Cost(0, tokens * outputs, ITEM * outputs) * bias


def mlp(tokens: int, inputs: int, hidden: int, outputs: int) -> Cost:
    """Counts the cost of two dense layers on `tokens` rows; the activation counts one operation for each unit."""
    return linear(tokens, inputs, hidden) + Cost(pointwise=tokens * hidden) + linear(tokens, hidden, outputs)


def weighted(queries: int, keys: int, heads: int, width: int) -> Cost:
    """Counts the cost of weighted sums of values of this width, given the weights."""
    return Cost(2 * queries * keys * heads * width, 0, ITEM * (queries + keys) * heads * width)


def align(length: int, heads: int, width: int) -> Cost:
    """Counts the cost of W^A V + b for one sequence: 2 ℓ² d + ℓ d (Hosseini, eq. 22; eq. 24 counts neither)."""
    product = matmul(length, length, heads * width)
    return product + Cost(0, length * heads * width, ITEM * length)


def convolution(height: int, width: int, kernel: int, inputs: int, outputs: int, *, stride: int = 1) -> Cost:
    """Counts the cost of a convolution of one feature map, padded with zeros (`SAME`), without a bias.

    Products with the padding are not counted; XLA does not count them either. `kernel` is the kernel's side.
    """
    places = _taps(height, kernel, stride) * _taps(width, kernel, stride)
    ends = height * width * inputs + -(-height // stride) * -(-width // stride) * outputs
    return Cost(2 * places * inputs * outputs, bytes=ITEM * (ends + kernel**2 * inputs * outputs))


def _taps(length: int, kernel: int, stride: int) -> int:
    """Counts the products along one axis that have both a weight and a position of the map."""
    results = -(-length // stride)
    before = max(0, (results - 1) * stride + kernel - length) // 2
    starts = (result * stride - before for result in range(results))
    return sum(min(start + kernel, length) - max(start, 0) for start in starts)


def of_pairs(score: Any, sizes: Sizes, queries: int, keys: int) -> Cost:
    """Counts the cost of a score from its definition, in the program that JAX makes of it.

    That is the preparation of T queries and S keys, their scores as dot products where the score has that form and else
    by `pair`, the normaliser, and the weighted values.
    """

    def scores(params, *tokens):
        query, key = _prepared(score, params, *tokens)
        form = score.form(params, query, key)
        if isinstance(form, Dot):
            products = jnp.einsum("tnh,snh->nts", form.query, form.key)
            scaled = products if form.scale == 1 else products * form.scale
            return scaled if form.key_bias is None else scaled + form.key_bias
        fields = common(queries, sizes.heads, jnp.zeros((keys, sizes.heads, sizes.head)), Options())
        return pairs.scores(Call(score=score, query=query, key=key, params=params, **fields))

    tokens = _inputs(score, sizes, queries, keys)
    size = lambda p: math.prod(cut.get(axis, n) for axis, n in itertools.zip_longest(p.over, p.shape))  # noqa: E731
    cut, declared = {"queries": queries, "keys": keys}, score.parameters(sizes).values()
    prepared = jax.tree.leaves(jax.eval_shape(functools.partial(_prepared, score), *tokens))
    numbers = sum(size(p) for p in declared if cut.keys() & p.over) + sum(math.prod(x.shape) for x in prepared)
    rest = Cost(0, score.weighing.flops * queries * keys * sizes.heads, ITEM * numbers)
    return counted(scores, *tokens) + rest + weighted(queries, keys, sizes.heads, sizes.head)


def of_program(mixer: Any, sizes: Sizes, queries: int, keys: int, implementation: str) -> Cost:
    """Counts the cost of a `Mixer` that is no score, such as a recurrence, for T queries and S keys.

    It is counted in the program of an implementation, which must do no more than the definition says.
    """

    def attend(value, params, *tokens):
        query, key = _prepared(mixer, params, *tokens)
        mask = Mask(causal=mixer.traits.causal)
        return mixer.attend(params, query, key, value, Options(mask, implementation=implementation))

    value = _array(keys, sizes.heads, sizes.head)
    ends = Cost(bytes=ITEM * 2 * (queries + keys) * sizes.heads * sizes.head)
    return counted(attend, value, *_inputs(mixer, sizes, queries, keys)) + ends


def _inputs(mixer: Any, sizes: Sizes, queries: int, keys: int) -> list[Any]:
    """Gives the shapes of the arrays, and of the tokens with their sources, of queries and of keys."""
    params = {name: _array(*p.shape) for name, p in mixer.arrays(sizes).items()}
    read = (queries, mixer.traits.reads_query), (keys, mixer.traits.reads_key)
    wide = mixer.widths(sizes.heads, sizes.heads, sizes.head).values()
    given = [_array(tokens, *shape) if reads else None for (tokens, reads), shape in zip(read, wide, strict=True)]
    return [params, *((x, _array(tokens, sizes.model)) for x, (tokens, _) in zip(given, read, strict=True))]


def _prepared(mixer: Any, params: Any, of_query: Any, of_key: Any) -> tuple[Any, Any]:
    query = mixer.prepare_query(params, of_query[0], Tokens(0, of_query[1]))
    return query, mixer.prepare_key(params, of_key[0], Tokens(0, of_key[1]))


def counted(function: Callable, *shapes: Any) -> Cost:
    """Counts the operations, without bytes, in the programs of a function of these arrays and its gradient."""

    def both(*arrays: Any) -> tuple[Any, Any]:
        out, back = jax.vjp(function, *arrays)
        return out, back(out)

    forward, training = (_of_program(jax.make_jaxpr(run)(*shapes).jaxpr) for run in (function, both))
    return dataclasses.replace(forward, more=training.flops - forward.training)


# Operations that move or compare positions, or that a compiler drops: no arithmetic on data.
FREE = {
    *["broadcast_in_dim", "reshape", "transpose", "squeeze", "convert_element_type", "slice", "dynamic_slice", "gather"]
}
FREE |= {*["concatenate", "iota", "copy", "select_n", "stop_gradient", "split", "pad", "reduce_max", "stack"]}


def _of_program(program: Any) -> Cost:
    total = Cost()
    for equation in program.eqns:
        size = sum(math.prod(v.aval.shape) for v in equation.outvars)
        name = equation.primitive.name
        inner = [x for x in equation.params.values() if hasattr(x, "eqns") or hasattr(x, "jaxpr")]
        if name == "dot_general":
            ((axes, _), _), left = equation.params["dimension_numbers"], equation.invars[0].aval.shape
            total += Cost(2 * size * math.prod(left[axis] for axis in axes))
        elif name == "conv_general_dilated":
            (_, height, width, _), (kernel, _, inputs, outputs) = (v.aval.shape for v in equation.invars)
            total += dataclasses.replace(convolution(height, width, kernel, inputs, outputs), bytes=0)
        elif inner:
            times = equation.params["length"] if name == "scan" else 1
            total += functools.reduce(Cost.__add__, (_of_program(getattr(x, "jaxpr", x)) * times for x in inner))
        elif name.startswith("reduce_") and name not in FREE:
            total += Cost(pointwise=sum(math.prod(v.aval.shape) for v in equation.invars) - size)
        elif name not in FREE and jnp.issubdtype(equation.outvars[0].aval.dtype, jnp.floating):
            total += Cost(pointwise=size)
    return total


def _array(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)
