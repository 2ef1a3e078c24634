"""Analytic floating-point operations and bytes of each mechanism's core, of one pass forward and of one backward.

A multiply-add counts as two operations and an exponential as one. Masked pairs are counted: a causal mask
halves the useful work, not what a plain implementation does.
"""

import dataclasses
import itertools


@dataclasses.dataclass(frozen=True)
class Cost:
    """Work of one forward pass, from which that of the backward pass follows.

    A product Y = XW has two behind it, dX = dY Wᵀ and dW = Xᵀ dY, each as large. What is done number by number has
    about as much behind it: a sum for each bias, and for each score one operation for each of softmax's and the scale.
    What is computed again to save memory is not counted.

    Attributes:
      products: Operations of products of matrices, and of convolutions.
      pointwise: All other operations.
      bytes: What must be read or written once, in float32.
      constant: Of the products, those with data, whose gradient nobody needs: one product is behind them, not two.
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
        """Operations of the forward pass."""
        return self.products + self.pointwise

    @property
    def backward(self) -> int:
        """Operations of the backward pass, to the gradient of all that is learned and of the inputs."""
        return 2 * self.products - self.constant + self.pointwise

    @property
    def training(self) -> int:
        """Operations of both passes."""
        return self.flops + self.backward

    @property
    def of_data(self) -> "Cost":
        """The same work on data, which need no gradient."""
        return dataclasses.replace(self, constant=self.products)


ITEM = 4  # bytes of a number
SOFTMAX_FLOPS = 4  # a score: subtract the maximum, exponentiate, add up, divide


def matmul(rows: int, inner: int, columns: int) -> Cost:
    """`(rows, inner) @ (inner, columns)`."""
    return Cost(2 * rows * inner * columns, 0, ITEM * (rows * inner + inner * columns + rows * columns))


def linear(tokens: int, inputs: int, outputs: int, *, bias: bool = True) -> Cost:
    """A dense layer on `tokens` rows, its bias included."""
    return matmul(tokens, inputs, outputs) + Cost(0, tokens * outputs, ITEM * outputs) * bias


def mlp(tokens: int, inputs: int, hidden: int, outputs: int) -> Cost:
    """Two dense layers on `tokens` rows; the activation between them counts one operation a unit."""
    return linear(tokens, inputs, hidden) + Cost(pointwise=tokens * hidden) + linear(tokens, hidden, outputs)


def dot_product(queries: int, keys: int, heads: int, width: int) -> Cost:
    """Scores, softmax and weighted values of one sequence: 4 T S N H + 5 T S N with the scale."""
    pairs = queries * keys * heads
    ends = 2 * queries * heads * width + 2 * keys * heads * width
    return Cost(pairs * 4 * width, pairs * (SOFTMAX_FLOPS + 1), ITEM * ends)


def align(length: int, heads: int, width: int) -> Cost:
    """W^A V + b of one sequence (Hosseini, eq. 22): 2 ℓ² d + ℓ d, of which Hosseini's eq. 24 counts neither."""
    product = matmul(length, length, heads * width)
    return product + Cost(0, length * heads * width, ITEM * length)


def pairwise(queries: int, keys: int, heads: int, width: int, widths: list[int], *, unique: bool = False) -> Cost:
    """Per pair: add a and b, activate, the further layers, then softmax and weighted values.

    Args:
      queries: T.
      keys: S.
      heads: N.
      width: Of a head's values.
      widths: Of concat(q', k'), of each hidden layer, and 1.
      unique: Weights of each pair's own, whose first layer is computed for each pair too and which are read once.
    """
    hidden = widths[1:-1]
    layers = list(itertools.pairwise(widths))[0 if unique else 1 :]
    pairs = queries * keys * heads
    ends = (queries + keys) * heads * (widths[1] + width)
    tables = queries * keys * sum(i * o + o for i, o in itertools.pairwise(widths)) if unique else 0
    products = sum(2 * inputs * outputs for inputs, outputs in layers) + 2 * width
    pointwise = sum(widths[1:]) + sum(hidden) + SOFTMAX_FLOPS  # biases, activations
    return Cost(pairs * products, pairs * pointwise, ITEM * (ends + tables))


def running_state(queries: int, keys: int, heads: int, width: int, *, columns: int | None = None) -> Cost:
    """An outer product for each key and a product with the state for each query: 2 H V each, whatever the length.

    Args:
      queries: T.
      keys: S.
      heads: N.
      width: H.
      columns: V, of the values; H where it is not given.
    """
    columns = width if columns is None else columns
    ends, state = (queries + keys) * heads * (width + columns), heads * width * columns
    return Cost(2 * (queries + keys) * state, 0, ITEM * (ends + state))


def convolution(height: int, width: int, kernel: int, inputs: int, outputs: int, *, stride: int = 1) -> Cost:
    """A convolution of one feature map with zeros around it (`SAME`), without a bias.

    Products with those zeros are not counted, as XLA does not.

    Args:
      height: Of the map.
      width: Of the map.
      kernel: Its side.
      inputs: Channels.
      outputs: Channels.
      stride: Positions of the map from one of the result to the next.
    """
    places = _taps(height, kernel, stride) * _taps(width, kernel, stride)
    ends = height * width * inputs + -(-height // stride) * -(-width // stride) * outputs
    return Cost(2 * places * inputs * outputs, bytes=ITEM * (ends + kernel**2 * inputs * outputs))


def _taps(length: int, kernel: int, stride: int) -> int:
    """Along one axis, how many products have both a weight and a position of the map."""
    results = -(-length // stride)
    before = max(0, (results - 1) * stride + kernel - length) // 2
    starts = (result * stride - before for result in range(results))
    return sum(min(start + kernel, length) - max(start, 0) for start in starts)
