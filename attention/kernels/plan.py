"""What a computation in tiles is given: what scores pairs, sizes of tiles, arrays, and rules for the weights."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from attention.dropout import RowWords
from attention.kernels.call import SoftmaxCall
from attention.kernels.reference import score_dtype


@runtime_checkable
class TileScore(Protocol):
    """What scores pairs of rows and columns; equal by value, so that plans are.

    It is symmetrical: whether queries are the rows or the columns makes no difference to it.
    """

    def split(self, x: jax.Array) -> Any:
        """Queries or keys `(..., L, H)` as it wants them in memory: a tree of arrays `(..., L)` or `(..., L, any)`."""

    def join(self, parts: Any) -> jax.Array:
        """What was split, `(..., L, H)`."""

    def __call__(self, rows: Any, columns: Any, weights: Any) -> jax.Array:
        """Scores `(b, K, R, C)`, at least in float32, of split rows `(b, K, R, ...)` and columns `(b, K, C, ...)`."""

    def vjp(self, rows: Any, columns: Any, weights: Any) -> tuple[jax.Array, Callable]:
        """The same, and what turns their gradient into those of rows, columns and weights."""


@dataclasses.dataclass(frozen=True)
class Tiling:
    """Sizes of a tile.

    Attributes:
      queries: Of each head.
      keys: Of each head.
      sequences: Whose tiles are computed together.
    """

    queries: int
    keys: int
    sequences: int = 1


@dataclasses.dataclass(frozen=True)
class TilePlan:
    """What is known when a program is compiled.

    Attributes:
      score: What scores a tile.
      tiling: Sizes of a tile.
      causal: As `Mask`.
      window: As `Mask`.
      rate: Of dropout.
    """

    score: TileScore
    tiling: Tiling
    causal: bool
    window: int
    rate: float


class Tensors(NamedTuple):
    """What has a gradient.

    Attributes:
      query: `(B, T, N, H)`.
      key: `(B, S, K, H)`.
      value: `(B, S, K, V)`.
      bias: `(B, N, T, S)`, each axis may be 1, or None.
      weights: Of the score.
    """

    query: jax.Array
    key: jax.Array
    value: jax.Array
    bias: jax.Array | None
    weights: Any


class Rules(NamedTuple):
    """Who may attend to whom, as `Mask`, and which weights are dropped.

    Attributes:
      offset: Position of the first query.
      lengths: `(B,)` or None.
      query_segments: `(B, T)` or None.
      key_segments: `(B, S)` or None.
      dense: `(B, N, T, S)`, each axis may be 1, or None.
      words: Dropout's for each row, `(B, N, T)`, or None.
    """

    offset: jax.Array
    lengths: jax.Array | None
    query_segments: jax.Array | None
    key_segments: jax.Array | None
    dense: jax.Array | None
    words: RowWords | None


def rule(call: SoftmaxCall, units: int) -> Tiling:
    """The call's own tiles, or those whose largest array, of pairs times units, fits in fast memory.

    Sequences that fit whole are not cut. Fast memory is 2 MiB on a CPU, what two cores have as L2 cache. What was
    tried: time of forward + backward over that of `jax.nn`'s dot-product attention (XLA), T = 1024, causal, 8 heads of
    64, float32, 2 cores of an AMD EPYC that other work shared, jax 0.10.2; bold is what the rule takes
    (`benchmarks/README.md` measures it again, on a quiet machine):

    | queries × keys     | 16 × 64 | 32 × 64 | 64 × 64 | 128 × 128 | 128 × 256 | 256 × 256 | 512 × 512 |
    | ------------------ | ------- | ------- | ------- | --------- | --------- | --------- | --------- |
    | dot product        |         |         |         |           | 0.20      | **0.14**  | 0.22      |
    | hidden (2, 1)      |         |         |         | 0.16      | **0.15**  | 0.17      |           |
    | hidden (16, 8)     | 1.30    | 1.03    | **1.0** |           |           |           |           |
    | hidden (64, 32)    | **3.2** | 3.2     |         |           |           |           |           |
    | additive, 64 units | **1.5** | 1.6     |         |           |           |           |           |

    Elsewhere it is 256 MiB, not measured: a step should do enough work to hide its launch.

    Args:
      call: Its shapes and dtype.
      units: Numbers that a pair has at its widest.
    """
    *_, heads, queries, keys = call.scores_shape
    if call.block:
        return Tiling(min(queries, call.block[0]), min(keys, call.block[1]))
    fast = 2**21 if jax.default_backend() == "cpu" else 2**28
    pairs = max(1, fast // (heads * units * jnp.dtype(score_dtype(call.value)).itemsize))  # of each head
    if queries * keys <= 2 * pairs:
        return Tiling(queries, keys, max(1, pairs // (queries * keys)))
    columns = _blocks(keys, max(64, 2 ** math.ceil(math.log2(pairs) / 2)))
    return Tiling(_blocks(queries, max(8, pairs // columns)), columns)


def _blocks(length: int, most: int) -> int:
    return length if length <= most else even(length, most, 8)


def even(length: int, most: int, multiple: int) -> int:
    """Size of the fewest equal blocks of at most `most`, rounded up to a multiple."""
    blocks = -(-length // most)
    return -(-length // (blocks * multiple)) * multiple


def zeros(tree: Any) -> Any:
    """Zeros like the arrays, at least in float32."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, score_dtype(x)), tree)


def product(equation: str, x: jax.Array, y: jax.Array, precision: jax.lax.PrecisionLike = None) -> jax.Array:
    """`einsum` of two arrays, summed at least in float32."""
    return jnp.einsum(equation, x, y, precision=precision, preferred_element_type=score_dtype(x))
