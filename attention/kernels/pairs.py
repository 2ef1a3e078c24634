"""The scores of `Score.pair`, a function of one pair: mapped over all pairs, and as tiles of the tiled engine."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from attention.errors import UsageError
from attention.forms import At
from attention.kernels.call import ScoreCall, check_rows
from attention.kernels.plan import TileAt, TileScore
from attention.kernels.reference import precise, spread_heads
from attention.mask import Mask
from attention.parameters import OVER, Params, Sizes


def one_number(score: Any, params: Params, query: Any, key: Any, at: At) -> jax.Array:
    """Returns the score of one pair; raises UsageError if `pair` returns more than a number."""
    found = score.pair(params, query, key, at)
    if jnp.shape(found):
        raise UsageError(
            f"{type(score).__name__}.pair must return one number for a pair, not an array of shape {jnp.shape(found)}; "
            "an array with a part for each head is declared with over=('heads',)."
        )
    return found


def split_params(call: ScoreCall) -> tuple[Params, Params, Params]:
    """Returns the arrays that all pairs share, those of each head, and the tables over positions.

    Tables get the axes `(N, T, S, …)`, of size 1 where they do not depend on the head, the query or the key.
    """
    over = _over(call)
    shared = {name: x for name, x in call.params.items() if not over[name]}
    heads = {name: x for name, x in call.params.items() if over[name] == ("heads",)}
    tables = {name: x for name, x in call.params.items() if name not in shared and name not in heads}
    return shared, heads, {name: _cut(call, x, over[name]) for name, x in tables.items()}


def _over(call: ScoreCall) -> dict[str, tuple[str, ...]]:
    """Returns what the leading axes of each array count; those of the normaliser have none here."""
    declared = call.score.parameters(Sizes(1, 1, 1, 1))
    return {name: declared[name].over if name in declared else () for name in call.params}


def _cut(call: ScoreCall, x: jax.Array, over: tuple[str, ...]) -> jax.Array:
    """Returns the rows of a table from the mask's query offset on, one a query, and one column a key."""
    queries, keys = call.scores_shape[-2:]
    why = "weights are a table over token positions"
    x = jnp.expand_dims(x, [axis for axis, what in enumerate(OVER) if what not in over])
    if "queries" in over:
        check_rows(call.score.title, why, x.shape[1], call.mask, queries, 0)
        x = jax.lax.dynamic_slice_in_dim(x, call.mask.query_offset, queries, 1)
    if "keys" in over:
        check_rows(call.score.title, why, x.shape[2], Mask(), 0, keys)
    return x[:, :, :keys]


def scores(call: ScoreCall) -> jax.Array:
    """Returns the scores `(*B, N, T, S)` of all pairs, at least in float32; without queries and keys B is 1."""
    *batch, heads, queries, keys = call.scores_shape
    shared, own, tables = jax.tree.map(precise, split_params(call))
    by_head = lambda tree: jax.tree.map(lambda x: jnp.moveaxis(precise(x), len(batch) + 1, len(batch)), tree)  # noqa: E731
    query, key = by_head(call.query), by_head(spread_heads(call.key, heads))
    positions = call.mask.query_offset + jnp.arange(queries), jnp.arange(keys)

    def of_sequence(query, key):
        of_head = functools.partial(_of_head, call.score, (heads, call.layer, call.depth), shared, *positions)
        axes = 0, 0, 0, {name: 0 if len(x) > 1 else None for name, x in tables.items()}, 0
        flat = {name: x if len(x) > 1 else x[0] for name, x in tables.items()}
        return jax.vmap(of_head, axes)(query, key, own, flat, jnp.arange(heads))

    if not jax.tree.leaves((query, key)):
        out = of_sequence(query, key)
        return precise(out.reshape((1,) * len(batch) + out.shape))
    for _ in batch:
        of_sequence = jax.vmap(of_sequence)
    return precise(of_sequence(query, key))


def _of_head(
    score: Any,
    place: tuple[int, int | jax.Array, int],
    shared: Params,
    rows: Any,
    columns: Any,
    query: Any,
    key: Any,
    own: Any,
    tables: Any,
    head: Any,
) -> jax.Array:
    """Returns the scores `(T, S)` of queries `(T, …)` and keys `(S, …)` of one head, with tables `(T, S, …)`.

    `place` has the number of heads, that of the layer, and that of layers.
    """
    by_query, by_key = ({name: None if x.shape[axis] == 1 else 0 for name, x in tables.items()} for axis in (0, 1))
    tables = {name: x.squeeze(tuple(a for a in (0, 1) if x.shape[a] == 1)) for name, x in tables.items()}

    def scored(query, key, tables, i, j):
        return one_number(score, shared | own | tables, query, key, At(i, j, head, *place))

    over_keys = jax.vmap(scored, (None, 0, by_key, None, 0))
    return jax.vmap(over_keys, (0, None, by_query, 0, None))(query, key, tables, rows, columns)


@dataclasses.dataclass(frozen=True)
class PairTiles(TileScore):
    """The scores of a tile by `pair`, and their gradient by `jax.vjp`.

    Attributes:
      score: The score.
      heads: N.
      depth: The number of layers.
    """

    score: Any
    heads: int
    depth: int

    def __call__(self, rows: Any, columns: Any, weights: tuple[Params, Params], at: TileAt) -> jax.Array:
        """Returns scores `(b, K, G·R, C)` of queries `(b, K, G·R, …)` and keys `(b, K, C, …)`."""
        shared, own = weights
        size, groups = at.shape
        together = self.heads // groups
        queries = jax.tree.map(lambda x: x.reshape(*x.shape[:2], together, -1, *x.shape[3:]), rows)
        by_group = lambda x: x.reshape(groups, together, *x.shape[1:])  # noqa: E731
        axes = {name: 0 if len(x) > 1 else None for name, x in at.tables.items()}
        tables = {name: by_group(x) if len(x) > 1 else x[0] for name, x in at.tables.items()}
        place = self.heads, at.layer, self.depth
        of_head = functools.partial(_of_head, self.score, place, shared, at.queries, at.keys)
        of_groups = jax.vmap(jax.vmap(of_head, (0, None, 0, axes, 0)), (0, 0, 0, axes, 0))
        of_batch = jax.vmap(of_groups, (0, 0, None, None, None), axis_size=size)
        heads = by_group(jnp.arange(self.heads))
        scores = precise(of_batch(queries, columns, jax.tree.map(by_group, own), tables, heads))
        return scores.reshape(size, groups, -1, scores.shape[-1])

    def vjp(self, rows: Any, columns: Any, weights: Any, at: TileAt) -> tuple[jax.Array, Callable]:
        """Returns the scores of keys as rows and queries as columns, and their pullback."""

        def turned(keys, queries, weights, tables):
            return self(queries, keys, weights, at._replace(tables=tables)).swapaxes(2, 3)

        return jax.vjp(turned, rows, columns, weights, at.tables)


@functools.cache
def units(score: Any, shapes: tuple[Any, ...]) -> int:
    """Returns how many numbers the widest array has that `pair` computes, for prepared shapes of one pair."""
    query, key, params = jax.tree.unflatten(*shapes)
    zero = jax.ShapeDtypeStruct((), jnp.int32)
    pair = lambda params, q, k, i, j, n: one_number(score, params, q, k, At(i, j, n, 1, i, 1))  # noqa: E731
    program = jax.make_jaxpr(pair)(params, query, key, zero, zero, zero)
    return max([1, *(v.aval.size for e in program.jaxpr.eqns for v in e.outvars)])


def widest(call: ScoreCall) -> int:
    """Returns `units` of a call."""
    over = _over(call)
    token = lambda x: jax.ShapeDtypeStruct(x.shape[len(call.scores_shape) - 1 :], x.dtype)  # noqa: E731
    params = {name: jax.ShapeDtypeStruct(x.shape[len(over[name]) :], x.dtype) for name, x in call.params.items()}
    leaves, tree = jax.tree.flatten((*jax.tree.map(token, (call.query, call.key)), params))
    return units(call.score, (tree, tuple(leaves)))
