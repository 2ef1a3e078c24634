"""The scores of `Score.pair`, a function of one pair, mapped over all pairs."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from attention.errors import UsageError
from attention.forms import At
from attention.kernels.arrays import precise, spread_heads
from attention.kernels.call import Call, check_rows
from attention.mask import Mask
from attention.parameters import OVER, Params, Sizes


def one_number(score: Any, params: Params, query: Any, key: Any, at: At) -> jax.Array:
    """Scores one pair; raises UsageError if `pair` gives more than a number."""
    found = score.pair(params, query, key, at)
    if jnp.shape(found):
        raise UsageError(
            f"{type(score).__name__}.pair must return one number for a pair, not an array of shape {jnp.shape(found)}; "
            "an array with a part for each head is declared with over=('heads',)."
        )
    return found


def split_params(call: Call) -> tuple[Params, Params, Params]:
    """Splits the parameters into what all pairs share, what each head has, and the tables over positions.

    Tables get the axes `(N, T, S, …)`, of size 1 where they do not depend on the head, the query or the key.
    """
    over = _over(call)
    shared = {name: x for name, x in call.params.items() if not over[name]}
    heads = {name: x for name, x in call.params.items() if over[name] == ("heads",)}
    tables = {name: x for name, x in call.params.items() if name not in shared and name not in heads}
    return shared, heads, {name: _cut(call, x, over[name]) for name, x in tables.items()}


def _over(call: Call) -> dict[str, tuple[str, ...]]:
    """Names what the leading axes of each array count; those of the normaliser have none here."""
    declared = call.score.parameters(Sizes(1, 1, 1, 1))
    return {name: declared[name].over if name in declared else () for name in call.params}


def _cut(call: Call, x: jax.Array, over: tuple[str, ...]) -> jax.Array:
    """Cuts the rows of a table from the mask's query offset on, one for each query, and one column for each key."""
    queries, keys = call.scores_shape[-2:]
    why = "weights are a table over token positions"
    x = jnp.expand_dims(x, [axis for axis, what in enumerate(OVER) if what not in over])
    if "queries" in over:
        check_rows(call.score.title, why, x.shape[1], call.mask, queries, 0)
        x = jax.lax.dynamic_slice_in_dim(x, call.mask.query_offset, queries, 1)
    if "keys" in over:
        check_rows(call.score.title, why, x.shape[2], Mask(), 0, keys)
    return x[:, :, :keys]


def scores(call: Call) -> jax.Array:
    """Computes the scores `(*B, N, T, S)` of all pairs, at least in float32; without queries and keys B is 1."""
    *batch, heads, queries, keys = call.scores_shape
    shared, own, tables = jax.tree.map(precise, split_params(call))
    by_head = lambda tree: jax.tree.map(lambda x: jnp.moveaxis(precise(x), len(batch) + 1, len(batch)), tree)  # noqa: E731
    query, key = by_head(call.query), by_head(spread_heads(call.key, heads))
    positions = call.mask.query_offset + jnp.arange(queries), jnp.arange(keys)

    def of_sequence(query, key):
        scores_of_head = functools.partial(of_head, call.score, (heads, call.layer, call.depth), shared, *positions)
        axes = 0, 0, 0, {name: 0 if len(x) > 1 else None for name, x in tables.items()}, 0
        flat = {name: x if len(x) > 1 else x[0] for name, x in tables.items()}
        return jax.vmap(scores_of_head, axes)(query, key, own, flat, jnp.arange(heads))

    if not jax.tree.leaves((query, key)):
        out = of_sequence(query, key)
        return precise(out.reshape((1,) * len(batch) + out.shape))
    for _ in batch:
        of_sequence = jax.vmap(of_sequence)
    return precise(of_sequence(query, key))


def of_head(
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
    """Scores the queries `(T, …)` of one head against its keys `(S, …)`, with tables `(T, S, …)`, as `(T, S)`.

    `place` has the number of heads, the layer's number, and the number of layers.
    """
    by_query, by_key = ({name: None if x.shape[axis] == 1 else 0 for name, x in tables.items()} for axis in (0, 1))
    tables = {name: x.squeeze(tuple(a for a in (0, 1) if x.shape[a] == 1)) for name, x in tables.items()}

    def scored(query, key, tables, i, j):
        return one_number(score, shared | own | tables, query, key, At(i, j, head, *place))

    over_keys = jax.vmap(scored, (None, 0, by_key, None, 0))
    return jax.vmap(over_keys, (0, None, by_query, 0, None))(query, key, tables, rows, columns)


@functools.cache
def units(score: Any, shapes: tuple[Any, ...]) -> int:
    """Counts the numbers in the widest array that `pair` computes, for prepared shapes of one pair."""
    query, key, params = jax.tree.unflatten(*shapes)
    zero = jax.ShapeDtypeStruct((), jnp.int32)
    pair = lambda params, q, k, i, j, n: one_number(score, params, q, k, At(i, j, n, 1, i, 1))  # noqa: E731
    program = jax.make_jaxpr(pair)(params, query, key, zero, zero, zero)
    return max([1, *(v.aval.size for e in program.jaxpr.eqns for v in e.outvars)])


def widest(call: Call) -> int:
    """Counts the `units` of a call."""
    over = _over(call)
    token = lambda x: jax.ShapeDtypeStruct(x.shape[len(call.scores_shape) - 1 :], x.dtype)  # noqa: E731
    params = {name: jax.ShapeDtypeStruct(x.shape[len(over[name]) :], x.dtype) for name, x in call.params.items()}
    leaves, tree = jax.tree.flatten((*jax.tree.map(token, (call.query, call.key)), params))
    return units(call.score, (tree, tuple(leaves)))
