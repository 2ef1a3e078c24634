"""The input of a computation in tiles: the score, the sizes of tiles, arrays, and rules for the weights."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from attention.dropout import RowWords
from attention.forms import Dot
from attention.kernels.arrays import precise, score_dtype
from attention.kernels.call import Call
from attention.mesh import platform
from attention.normaliser import Normaliser, reduce_last

LANES = 32  # numbers that a CPU reduces at once
SHORT = 80  # the most queries or keys that are not cut although they fit in a tile


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
    """Base of the scores of pairs of rows and columns. They are equal by value, so that plans are too.

    Attributes:
      cut: Whether a CPU cuts sequences that fit in a tile too.
    """

    cut: ClassVar[bool] = False

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
    """

    queries: int
    keys: int
    sequences: int = 1


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


def rule(call: Call, score: TileScore, units: int) -> Tiling:
    """Takes the tiles that the call gives, or tiles whose largest array, of pairs times units, fits in fast memory.

    Sequences that fit are not cut, several of them share a step. Fast memory on a CPU is 2 MiB, the L2 cache of two
    cores; a product of matrices takes long to start, so scores that are one have twice as much. Milliseconds of
    forward + backward with T = 1024, causal, 8 heads of 64, float32, on 2 cores of an AMD EPYC, jax 0.10.2; the rule
    takes the bold sizes:

    | queries × keys | 64 × 64 | 128 × 128 | 128 × 256 | 256 × 256 | 256 × 512 | 512 × 512 |
    | -------------- | ------- | --------- | --------- | --------- | --------- | --------- |
    | dot product    | 31.0    | 29.7      | 30.0      | 28.3      | **21.5**  | 30.1      |
    | hidden (2, 1)  | 18.5    | 18.3      | 18.5      | **18.7**  | 20.7      | 52.7      |

    More units have smaller tiles: 64 × 64 for hidden (16, 8), 16 × 64 for hidden (64, 32). On other platforms fast
    memory is 256 MiB, so that a step has enough work to hide its launch. Not measured.

    Args:
      call: The call, whose shapes, mask and dtype decide.
      score: The score of a tile.
      units: Numbers for each pair that are stored at once.
    """
    *_, heads, queries, keys = call.scores_shape
    if call.block:
        return Tiling(min(queries, call.block[0]), min(keys, call.block[1]))
    cpu = platform() == "cpu"
    fast = 2**21 if cpu else 2**28
    pairs = max(1, fast // (heads * units * jnp.dtype(score_dtype(call.value)).itemsize))  # of each head
    cut = score.cut and cpu and min(queries, keys) > SHORT
    if queries * keys <= 2 * pairs and not cut:
        return Tiling(queries, keys, max(1, pairs // (queries * keys)))
    if cpu and isinstance(call.form, Dot):
        pairs *= 2
    columns = _blocks(keys, _side(pairs), cut)
    return Tiling(_blocks(queries, max(8, pairs // columns), cut), columns)


def _side(pairs: int) -> int:
    return max(64, 2 ** math.ceil(math.log2(pairs) / 2))


def _blocks(length: int, most: int, cut: bool) -> int:
    if cut:
        most = min(most, even(length, -(-length // 2), LANES))
    multiple = 8 if most < LANES else LANES
    return length if length <= most else even(length, most // multiple * multiple, multiple)


def even(length: int, most: int, multiple: int) -> int:
    """Computes the size of the fewest equal blocks of at most `most`, rounded up to a multiple."""
    blocks = -(-length // most)
    return -(-length // (blocks * multiple)) * multiple


def reduce_in_lanes(function: Callable, x: jax.Array) -> jax.Array:
    """Does what `attention.normaliser.reduce_last` does, on a CPU in a quarter of the time.

    XLA takes the numbers of the last axis one after the other there. So it is given lanes first, which vector
    instructions add; the barrier keeps XLA from joining both steps.
    """
    if platform() != "cpu" or x.shape[-1] % LANES or not x.size:
        return reduce_last(function, x)
    lanes = function(x.reshape(*x.shape[:-1], -1, LANES), -2)
    return reduce_last(function, jax.lax.optimization_barrier(lanes))


def zeros(tree: Any) -> Any:
    """Makes zeros like the arrays, at least in float32."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, score_dtype(x)), tree)


def product(equation: str, x: jax.Array, y: jax.Array, precision: jax.lax.PrecisionLike = None) -> jax.Array:
    """Computes the `einsum` of two arrays, summed at least in float32."""
    return jnp.einsum(equation, x, y, precision=precision, preferred_element_type=score_dtype(x))
