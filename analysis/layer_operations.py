"""Hosseini's eq. 24 and the actual operations of one forward and one backward pass of an attention layer.

Eq. 24 is C ℓ d + 15 h ℓ², with C = 15, 12, 12 and 9 for standard, Optimised, Super and Efficient Attention. It leaves
out every product of matrices: 6 ℓ d² for each projection (2 forward, 4 backward), 12 ℓ² d for the scores and the
weighted values, and 6 ℓ² d for Super Attention's alignment. It counts exactly three times ℓ d plus the elementwise
operations of the forward pass: 5 for each score (the scale and softmax), and one for each bias of the outputs of
projections and of the alignment.
"""

import functools
import statistics
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from models.layers.multi_head import MultiHeadAttention
from models.mechanisms import resolve

CONSTANTS = {"dot_product": 15, "optimised": 12, "super": 12, "efficient": 9}
# The paper does not print its range. Eleven powers of two on both axes reproduce all four averages of the paper. The
# ratio depends on h ℓ / d alone, so other ranges give the same; these widths suit all numbers of heads.
RANGE = tuple(2**power for power in range(3, 14))
HEADS = (1, 2, 4, 8)

Count = Callable[[str, int, int, int], float]


def eq24(mechanism: str, length: int, width: int, heads: int) -> float:
    """Counts the operations of one of the four mechanisms by Hosseini's eq. 24.

    Args:
      mechanism: A name of `CONSTANTS`.
      length: Number of tokens, ℓ.
      width: Width of the model, d.
      heads: Number of heads, h.
    """
    return CONSTANTS[mechanism] * length * width + 15 * heads * length**2


@functools.cache
def analytic(mechanism: str, length: int, width: int, heads: int) -> float:
    """Counts any mechanism's operations by `Mechanism.cost`."""
    return resolve(mechanism, 1)[0].cost(length, width, heads).training


@functools.cache
def compiled(mechanism: str, length: int, width: int, heads: int) -> float:
    """Counts the operations of XLA's compiled program for the layer's output and all gradients."""
    layer = MultiHeadAttention(resolve(mechanism, 1)[0], heads, length, implementation="xla")
    x = jax.ShapeDtypeStruct((1, length, width), jnp.float32)
    params = jax.eval_shape(layer.init, jax.random.key(0), x)

    def both_passes(params, x, cotangent):
        out, back = jax.vjp(layer.apply, params, x)
        return out, back(cotangent)

    count = jax.jit(both_passes).lower(params, x, x).compile().cost_analysis()
    return count["flops"] + count.get("transcendentals", 0.0)


def excess(count: Count, length: int, width: int, heads: int) -> float:
    """Computes by how much standard exceeds Efficient Attention, as a fraction of the latter."""
    return count("dot_product", length, width, heads) / count("efficient", length, width, heads) - 1


def grid(count: Count, heads: int, lengths: Sequence[int], widths: Sequence[int]) -> list[list[float]]:
    """Computes the excesses, a row for each width and a column for each length, as in Hosseini Fig. 3."""
    return [[excess(count, length, width, heads) for length in lengths] for width in widths]


def average(count: Count, heads: int, lengths: Sequence[int] = RANGE, widths: Sequence[int] = RANGE) -> float:
    """Computes the mean excess over a grid of lengths and widths."""
    return statistics.fmean(value for row in grid(count, heads, lengths, widths) for value in row)
