"""The input of a computation in tiles: the score, the sizes of tiles, arrays, and rules for the weights."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from attention.dropout import RowWords
from attention.kernels.arrays import precise, score_dtype
from attention.kernels.call import Call
from attention.mesh import platform
from attention.normaliser import Normaliser

SHORT = 64  # queries and keys of a tile, if a causal sequence would fit into one


class TileAt(NamedTuple):
    """The place of a tile, for scores that depend on it.

    Attributes:
      queries: Positions of the queries `(R,)`, without the heads that share a key head.
      keys: Positions of the keys `(C,)`.
      shape: b, K.
      tables: The tile of each table over pairs, `(N, R, C, ...)`, N may be 1.
      layer: The number of the layer.
    """

    queries: jax.Array
    keys: jax.Array
    shape: tuple[int, int]
    tables: Any
    layer: jax.Array


class TileScore:
    """Base of the scores of pairs of rows and columns. They are equal by value, so that plans are too."""

    def split(self, x: Any) -> Any:
        """Lays queries or keys `(..., L, H)` out for the score: a tree of arrays `(..., L)` or `(..., L, any)`."""
        return jax.tree.map(precise, x)

    def join(self, parts: Any) -> Any:
        """Joins the arrays of `split` to `(..., L, H)`; it is the inverse."""
        return parts

    def __call__(self, rows: Any, columns: Any, weights: Any, at: TileAt) -> jax.Array:
        """Scores queries `(b, K, R, ...)` against keys `(b, K, C, ...)` as `(b, K, R, C)`, in float32 or float64."""
        raise NotImplementedError

    def vjp(self, rows: Any, columns: Any, weights: Any, at: TileAt) -> tuple[jax.Array, Callable]:
        """Scores keys as rows against queries as columns, and gives the function from the scores' gradient to those of
        rows, columns, weights and tables; a score that tells rows from columns has its own.
        """
        score = lambda rows, columns, weights, tables: self(rows, columns, weights, at._replace(tables=tables))  # noqa: E731
        return jax.vjp(score, rows, columns, weights, at.tables)


@dataclasses.dataclass(frozen=True)
class Tiling:
    """The sizes of a tile.

    Attributes:
      queries: Number of queries of each head.
      keys: Number of keys of each head.
      sequences: Number of sequences whose tiles are computed together.
      backward: Queries and keys in the backward pass, if they differ from those of the forward pass.
    """

    queries: int
    keys: int
    sequences: int = 1
    backward: tuple[int, int] | None = None


@dataclasses.dataclass(frozen=True)
class TilePlan:
    """The static part of a computation in tiles, known when it is compiled.

    Attributes:
      normaliser: How scores become weights.
      queries: T.
      heads: N.
      causal: See `Mask`.
      window: See `Mask`.
      rate: Rate of dropout.
    """

    score: TileScore
    normaliser: Normaliser
    tiling: Tiling
    queries: int
    heads: int
    causal: bool
    window: int
    rate: float


class Weights(NamedTuple):
    """The arrays with a gradient that all sequences share.

    Attributes:
      score: The weights of the score.
      tables: Its tables over pairs, `(N, T, S, ...)`, in which N may be 1.
      normaliser: The arrays of the normaliser, `(N,)`.
    """

    score: Any
    tables: Any
    normaliser: Any


class Tensors(NamedTuple):
    """The arrays that have a gradient.

    Attributes:
      query: A tree of arrays `(B, T, N, H)`.
      key: A tree of arrays `(B, S, K, H)`.
      value: `(B, S, K, V)`.
      bias: `(B, N, T, S)`, in which axes may be 1, or None.
      weights: What all sequences share.
    """

    query: Any
    key: Any
    value: jax.Array
    bias: jax.Array | None
    weights: Weights | None


class Rules(NamedTuple):
    """Which query may attend to which key, see `Mask`, and which weights are dropped.

    Attributes:
      offset: Position of the first query, less that of the first key.
      lengths: `(B,)` or None.
      query_segments: `(B, T)` or None.
      key_segments: `(B, S)` or None.
      dense: `(B, N, T, S)`, in which axes may be 1, or None.
      words: The words of dropout for each row, `(B, N, T)`, or None.
      first: Position of the first key.
      layer: The number of the layer.
    """

    offset: jax.Array
    lengths: jax.Array | None
    query_segments: jax.Array | None
    key_segments: jax.Array | None
    dense: jax.Array | None
    words: RowWords | None
    first: jax.Array
    layer: jax.Array


def rule(call: Call, units: int) -> Tiling:
    """Takes the tiles that the call gives, or tiles whose largest array, of pairs times units, fits in fast memory.

    Sequences that fit are not cut. Fast memory on a CPU is 2 MiB, the L2 cache of two cores. The table has the time of
    forward + backward over that of `jax.nn`'s dot-product attention (XLA), with T = 1024, causal, 8 heads of 64,
    float32, 2 busy cores of an AMD EPYC, jax 0.10.2. The rule takes the bold sizes (`benchmarks/README.md` has
    measurements on a quiet machine):

    | queries × keys     | 16 × 64 | 32 × 64 | 64 × 64 | 128 × 128 | 128 × 256 | 256 × 256 |
    | ------------------ | ------- | ------- | ------- | --------- | --------- | --------- |
    | hidden (2, 1)      |         |         |         | 0.16      | **0.15**  | 0.17      |
    | hidden (16, 8)     | 1.30    | 1.03    | **1.0** |           |           |           |
    | hidden (64, 32)    | **3.2** | 3.2     |         |           |           |           |
    | additive, 64 units | **1.5** | 1.6     |         |           |           |           |

    On other platforms fast memory is 256 MiB, so that a step has enough work to hide its launch. Not measured.

    Args:
      call: The call, whose shapes, mask and dtype decide.
      units: Numbers for each pair in the widest layer.
    """
    *_, heads, queries, keys = call.scores_shape
    if call.block:
        return Tiling(min(queries, call.block[0]), min(keys, call.block[1]))
    cpu = platform() == "cpu"
    fast = 2**21 if cpu else 2**28
    pairs = max(1, fast // (heads * units * jnp.dtype(score_dtype(call.value)).itemsize))  # of each head
    together = max(1, pairs // (queries * keys))
    if cpu and units == 1 and together == 1:
        return _of_products(queries, keys, 2 * pairs, call.mask.causal)
    if queries * keys <= 2 * pairs:
        return Tiling(queries, keys, together)
    columns = _blocks(keys, _side(pairs))
    return Tiling(_blocks(queries, max(8, pairs // columns)), columns)


def _of_products(queries: int, keys: int, pairs: int, causal: bool) -> Tiling:
    """Chooses tiles for scores whose time is that of matrix products, on a CPU.

    XLA gives a batch of products to YNNPACK, which shares the rows of each among the cores, and no row where a product
    is small: 8 of 256 × 64 × 256 keep one core of two busy (85 GFLOP/s), 8 of 512 × 64 × 256 both (146). So there are
    more rows than columns in both passes, and the rows are queries in the forward pass and keys in the backward pass.
    A causal mask cuts sequences of one tile too, since small products on one core beat twice as many on two.

    Args:
      queries: T.
      keys: S.
      pairs: The most pairs of a tile.
      causal: Whether later keys are masked.
    """
    if queries * keys <= pairs:
        return Tiling(_blocks(queries, SHORT), _blocks(keys, SHORT)) if causal else Tiling(queries, keys)
    rows, columns = _blocks(queries, _side(pairs)), _blocks(keys, _side(pairs))
    forward = rows, _blocks(keys, max(8, pairs // rows))
    return Tiling(*forward, backward=(_blocks(queries, max(8, pairs // columns)), columns))


def _side(pairs: int) -> int:
    return max(64, 2 ** math.ceil(math.log2(pairs) / 2))


def _blocks(length: int, most: int) -> int:
    return length if length <= most else even(length, most, 8)


def even(length: int, most: int, multiple: int) -> int:
    """Computes the size of the fewest equal blocks of at most `most`, rounded up to a multiple."""
    blocks = -(-length // most)
    return -(-length // (blocks * multiple)) * multiple


def zeros(tree: Any) -> Any:
    """Makes zeros like the arrays, at least in float32."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, score_dtype(x)), tree)


def product(equation: str, x: jax.Array, y: jax.Array, precision: jax.lax.PrecisionLike = None) -> jax.Array:
    """Computes the `einsum` of two arrays, summed at least in float32."""
    return jnp.einsum(equation, x, y, precision=precision, preferred_element_type=score_dtype(x))
