"""Analytic floating-point operations and bytes of one forward pass of each mechanism's core.

A multiply-add counts as two operations and an exponential as one. Masked pairs are counted: a causal mask
halves the useful work, not what a plain implementation does.
"""

import dataclasses
import itertools


@dataclasses.dataclass(frozen=True)
class Cost:
    """Work of one forward pass: floating-point operations, and bytes that must be read or written once."""

    flops: int = 0
    bytes: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.flops + other.flops, self.bytes + other.bytes)

    def __mul__(self, times: int) -> "Cost":
        return Cost(self.flops * times, self.bytes * times)


SOFTMAX_FLOPS = 4  # a score: subtract the maximum, exponentiate, add up, divide


def matmul(rows: int, inner: int, columns: int, *, itemsize: int = 4) -> Cost:
    """`(rows, inner) @ (inner, columns)`."""
    return Cost(2 * rows * inner * columns, itemsize * (rows * inner + inner * columns + rows * columns))


def linear(tokens: int, inputs: int, outputs: int, *, bias: bool = True, itemsize: int = 4) -> Cost:
    """A dense layer on `tokens` rows, its bias included."""
    return matmul(tokens, inputs, outputs, itemsize=itemsize) + Cost(tokens * outputs, itemsize * outputs) * bias


def dot_product(queries: int, keys: int, heads: int, width: int, *, itemsize: int = 4) -> Cost:
    """Scores, softmax and weighted values of one sequence: 4 T S N H + 5 T S N with the scale."""
    pairs = queries * keys * heads
    ends = 2 * queries * heads * width + 2 * keys * heads * width
    return Cost(pairs * (4 * width + SOFTMAX_FLOPS + 1), itemsize * ends)


def align(length: int, heads: int, width: int, *, itemsize: int = 4) -> Cost:
    """W^A V + b of one sequence (004, eq. 22): 2 ℓ² d + ℓ d, of which 004's eq. 24 counts neither."""
    return matmul(length, length, heads * width, itemsize=itemsize) + Cost(length * heads * width, itemsize * length)


def pairwise(
    queries: int, keys: int, heads: int, width: int, widths: list[int], *, unique: bool = False, itemsize: int = 4
) -> Cost:
    """Per pair: add a and b, activate, the further layers, then softmax and weighted values.

    Args:
      queries: T.
      keys: S.
      heads: N.
      width: Of a head's values.
      widths: Of concat(q', k'), of each hidden layer, and 1.
      unique: Weights of each pair's own, whose first layer is computed for each pair too and which are read once.
      itemsize: Bytes of a number.
    """
    hidden = widths[1:-1]
    layers = sum(2 * inputs * outputs + outputs for inputs, outputs in itertools.pairwise(widths[1:]))
    first = 2 * widths[0] * widths[1] if unique else 0
    pairs = queries * keys * heads
    ends = (queries + keys) * heads * (widths[1] + width)
    tables = queries * keys * sum(i * o + o for i, o in itertools.pairwise(widths)) if unique else 0
    per_pair = first + hidden[0] + sum(hidden) + layers + SOFTMAX_FLOPS + 2 * width
    return Cost(pairs * per_pair, itemsize * (ends + tables))


def running_state(queries: int, keys: int, heads: int, width: int, *, itemsize: int = 4) -> Cost:
    """An outer product for each key and a product with the state for each query: 2 H² each, whatever the length."""
    ends = 2 * (queries + keys) * heads * width
    return Cost(2 * (queries + keys) * heads * width**2, itemsize * (ends + heads * width**2))
