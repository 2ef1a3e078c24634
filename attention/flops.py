"""Analytic floating-point operations and bytes of one forward pass of each mechanism's core.

A multiply-add counts as two operations and an exponential as one. Masked pairs are counted: a causal mask
halves the useful work, not what a plain implementation does.
"""

import dataclasses


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
