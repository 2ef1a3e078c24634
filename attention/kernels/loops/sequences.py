"""The computation of tiles for a group of sequences.

Within a tile, the G = N/K heads that share a key head are rows of one matrix: scores are `(b, K, G·queries, keys)` for
b sequences. The backward pass computes their transpose, so that gradients of keys and values need no transposition.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from attention.dropout import keep_columns
from attention.kernels import flash
from attention.kernels.arrays import precise, score_dtype
from attention.kernels.flash import Carry
from attention.kernels.loops.plan import Rules, Tensors, TileAt, TilePlan, Weights, product, reduce_in_lanes, zeros
from attention.mask import keys_in_sight, near


class TiledSequences:
    """A group of sequences: their arrays by head, padded to whole tiles, and the computation of a tile.

    Attributes:
      shape: b, K, G.
      lengths: T and S.
      tile: Queries and keys of a tile.
      count: Numbers of blocks of queries and of keys.
    """

    def __init__(self, plan: TilePlan, tensors: Tensors, rules: Rules):
        size, keys, groups, _ = tensors.value.shape
        self.plan, self.rules = plan, rules
        self.shape = size, groups, plan.heads // groups
        self.lengths = queries, keys = plan.queries, keys
        self.tile = min(plan.tiling.queries, queries), min(plan.tiling.keys, keys)
        self.count = tuple(-(-length // tile) for length, tile in zip(self.lengths, self.tile, strict=True))
        self.query = plan.score.split(jax.tree.map(self.by_row, tensors.query))
        by_head = lambda x: self._pad(x.swapaxes(1, 2), 1, 2)  # noqa: E731
        key, self.value = jax.tree.map(by_head, (tensors.key, tensors.value))
        self.key = plan.score.split(key)
        self.bias, self.dense = (self._pad_pairs(x) for x in (tensors.bias, rules.dense))
        self.weights = self._pad_weights(tensors.weights)
        self.words = jax.tree.map(lambda x: self._pad(x.reshape(*self.shape, queries), 0, 3), rules.words)
        self.dtype = score_dtype(tensors.value)

    def _pad(self, x: jax.Array, side: int, axis: int, fill: float = 0) -> jax.Array:
        """Pads `x` to whole tiles along an axis of queries (side 0) or keys (side 1)."""
        missing = self.tile[side] * self.count[side] - self.lengths[side]
        if not missing:
            return x
        widths = [(0, missing if i == axis else 0) for i in range(x.ndim)]
        return jnp.pad(x, widths, constant_values=fill)

    def _pad_pairs(self, x: jax.Array | None, first: int = 2) -> jax.Array | None:
        for side, axis in enumerate((first, first + 1)):
            if x is not None and x.shape[axis] == self.lengths[side]:
                x = self._pad(x, side, axis)
        return x

    def _pad_weights(self, weights: Weights) -> Weights:
        weights = jax.tree.map(precise, weights)
        return weights._replace(tables=jax.tree.map(lambda x: self._pad_pairs(x, 1), weights.tables))

    def by_row(self, x: jax.Array) -> jax.Array:
        """Lays `(b, T, N, H)` out as `(b, K, G, T, H)`, padded."""
        size, length, _, width = x.shape
        x = x.reshape(size, length, *self.shape[1:], width).transpose(0, 2, 3, 1, 4)
        return self._pad(x, 0, 3)

    def by_token(self, x: jax.Array) -> jax.Array:
        """Lays `(blocks, b, K, G·queries, H)` out as `(b, T, N, H)`."""
        x = x.reshape(x.shape[0], *self.shape, self.tile[0], x.shape[-1]).transpose(1, 0, 4, 2, 3, 5)
        return x.reshape(x.shape[0], -1, self.shape[1] * self.shape[2], x.shape[-1])[:, : self.lengths[0]]

    def rows(self, tree: Any, i: jax.Array | int) -> Any:
        """Cuts block i from arrays `(b, K, G, T, ...)`, as `(b, K, G·queries, ...)`."""
        cut = jax.tree.map(lambda x: _cut(x, 3, i, self.tile[0]), tree)
        return jax.tree.map(lambda x: x.reshape(*x.shape[:2], -1, *x.shape[4:]), cut)

    def columns(self, tree: Any, j: jax.Array | int) -> Any:
        """Cuts block j from arrays `(b, K, S, ...)`."""
        return jax.tree.map(lambda x: _cut(x, 2, j, self.tile[1]), tree)

    def visible(self, i: jax.Array | int) -> tuple[Any, Any]:
        """Finds the bounds [first, end) of the blocks of keys that some query of block i may see."""
        plan, (queries, keys), blocks = self.plan, self.tile, self.count[1]
        if not (plan.causal or plan.window):
            return 0, blocks
        first, last = keys_in_sight(self.rules.offset + i * queries, queries, plan.causal, plan.window)
        lower = jnp.int32(0) if first is None else first // keys
        return jnp.clip(lower, 0, blocks), jnp.clip(last // keys + 1, 0, blocks)

    def allowed(self, i: jax.Array | int, j: jax.Array | int) -> jax.Array | None:
        """Tells which queries of block i may see which keys of block j; broadcasts to `(b, K, G·queries, keys)`."""
        plan, rules, (queries, keys) = self.plan, self.rules, self.tile
        key = (j * keys + jnp.arange(keys, dtype=jnp.int32))[None, None, None]
        query = rules.offset + i * queries + jnp.arange(queries, dtype=jnp.int32)
        query = jnp.tile(query, self.shape[2])[None, None, :, None]
        conditions = near(query, key, plan.causal, plan.window)
        if self.count[1] * keys > self.lengths[1]:
            conditions.append(key < self.lengths[1])
        if rules.lengths is not None:
            conditions.append(key < rules.lengths[:, None, None, None])
        if rules.query_segments is not None:
            of_queries = jnp.tile(_cut(self._pad(rules.query_segments, 0, 1), 1, i, queries), (1, self.shape[2]))
            of_keys = _cut(self._pad(rules.key_segments, 1, 1), 1, j, keys)
            conditions.append(of_queries[:, None, :, None] == of_keys[:, None, None])
        if self.dense is not None:
            conditions.append(self.pairs(self.dense, i, j))
        return functools.reduce(jnp.logical_and, conditions) if conditions else None

    def at(self, i: jax.Array | int, j: jax.Array | int) -> TileAt:
        """Gives the positions of tile (i, j), and its tables."""
        queries, keys = self.tile
        rows = self.rules.first + self.rules.offset + i * queries + jnp.arange(queries, dtype=jnp.int32)
        columns = self.rules.first + j * keys + jnp.arange(keys, dtype=jnp.int32)
        tables = jax.tree.map(lambda x: _cut(_cut(x, 1, i, queries), 2, j, keys), self.weights.tables)
        return TileAt(rows, columns, self.shape[:2], tables, self.rules.layer)

    def of_rows(self, x: jax.Array) -> jax.Array:
        """Repeats one number for each head, `(N,)`, at the rows of a block: `(1, K, G·queries)`."""
        return jnp.repeat(x.reshape(1, self.shape[1], self.shape[2]), self.tile[0], axis=2)

    def count_keys(self, i: jax.Array | int) -> jax.Array:
        """Counts the keys that the queries of block i may attend to, at least 1, `(b, K, G·queries, 1)`."""
        size, groups, together = self.shape

        def add(j, total):
            allowed = self.allowed(i, j)
            shape = (*total.shape[:3], self.tile[1])
            allowed = jnp.broadcast_to(True if allowed is None else allowed, shape)
            return total + allowed.sum(-1, keepdims=True, dtype=jnp.int32)

        start = jnp.zeros((size, groups, together * self.tile[0], 1), jnp.int32)
        total = add(0, start) if self.count[1] == 1 else jax.lax.fori_loop(*self.visible(i), add, start)
        return jnp.maximum(total, 1).astype(self.dtype)

    def pairs(self, x: jax.Array, i: jax.Array | int, j: jax.Array | int) -> jax.Array:
        """Cuts tile (i, j) from `(b, N, T, S)`, in which axes may be 1; broadcasts to `(b, K, G·queries, keys)`."""
        x = _cut(_cut(x, 2, i, self.tile[0]), 3, j, self.tile[1])
        _, groups, together = self.shape
        if together == 1:
            return x
        x = jnp.broadcast_to(x, (len(x), groups * together, self.tile[0], x.shape[3]))
        return x.reshape(len(x), groups, -1, x.shape[3])

    def finish(self, scores: jax.Array, i: jax.Array | int, j: jax.Array | int, *, turn: bool = False) -> jax.Array:
        """Adds the bias to scores and sets masked ones to the normaliser's number; with `turn`, keys are the rows."""
        turned = (lambda x: x.swapaxes(2, 3)) if turn else (lambda x: x)
        if self.bias is not None:
            scores = scores + turned(self.pairs(self.bias, i, j)).astype(scores.dtype)
        allowed = self.allowed(i, j)
        masked = self.plan.normaliser.masked(scores.dtype)
        return scores if allowed is None else jnp.where(turned(allowed), scores, masked)

    def kept(self, i: jax.Array | int, j: jax.Array | int) -> jax.Array | None:
        """Tells which weights of tile (i, j) dropout keeps, `(b, K, G·queries, keys)`; None without dropout."""
        if not self.plan.rate:
            return None
        words = jax.tree.map(lambda word: word[..., None], self.rows(self.words, i))
        first = jnp.asarray(self.rules.first + j * self.tile[1], jnp.uint32)
        columns = first + jnp.arange(self.tile[1], dtype=jnp.uint32)
        return keep_columns(words, columns.reshape(1, 1, 1, -1), self.plan.rate)

    def forward(self) -> tuple[jax.Array, jax.Array]:
        """Computes the output `(b, T, N, V)` and the normaliser's number for each row, `(b, N, T)`."""
        out, row = _over_blocks(lambda _, i: (None, self.forward_rows(i)), None, self.count[0])[1]
        return self.by_token(out), self.by_token(row)[..., 0].swapaxes(1, 2)

    def partial(self) -> Carry:
        """Computes `partial_rows` of all rows, `(b, T, N, V)` and `(b, T, N, 1)`, to be merged with more."""
        carry = _over_blocks(lambda _, i: (None, self.partial_rows(i)), None, self.count[0])[1]
        return jax.tree.map(self.by_token, carry)

    def forward_rows(self, i: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        """Computes the output `(b, K, G·queries, V)` and the normaliser's number by row, `(b, K, G·queries, 1)`."""
        out, row = flash.finish(self.plan.normaliser, self.partial_rows(i), self.plan.rate)
        return out.astype(self.value.dtype), row

    def partial_rows(self, i: jax.Array | int) -> Carry:
        """Computes the sums of values by unfinished weights, `(b, K, G·queries, V)`, and the normaliser's state."""
        rows, normaliser = self.rows(self.query, i), self.plan.normaliser

        def step(j: Any, carry: Carry) -> Carry:
            scores = self.plan.score(rows, self.columns(self.key, j), self.weights.score, self.at(i, j))
            value = self.columns(self.value, j)
            add = lambda weights: product("bkrs,bksv->bkrv", weights.astype(value.dtype), value)  # noqa: E731
            return flash.step(normaliser, carry, self.finish(scores, i, j), self.kept(i, j), add, reduce_in_lanes)

        column = jnp.zeros((*self.shape[:2], self.shape[2] * self.tile[0], 1), self.dtype)
        count = self.count_keys(i) if normaliser.counts else column + 1
        params = {name: self.of_rows(x)[..., None] for name, x in self.weights.normaliser.items()}
        state = normaliser.start(params, column.shape, count, self.dtype)
        if self.count[1] == 1:
            return step(0, Carry(state, None))
        out = jnp.zeros((*column.shape[:3], self.value.shape[-1]), self.dtype)
        return jax.lax.fori_loop(*self.visible(i), step, Carry(state, out))

    def backward(self, out, row, gradient, d_weights, d_bias) -> tuple[Any, ...]:
        """Computes gradients of query, key and value; adds those of weights and bias to `d_weights` and `d_bias`."""
        return self.backward_through(jnp.sum(precise(gradient) * precise(out), -1), row, gradient, d_weights, d_bias)

    def backward_through(self, through_sum, row, gradient, d_weights, d_bias) -> tuple[Any, ...]:
        """Does what `backward` does, given Σ_v gradient · output, `(b, T, N)`, in place of the output."""
        through_sum = self.by_row(through_sum[..., None])[..., 0]
        scaled = self.by_row((gradient / (1 - self.plan.rate)).astype(gradient.dtype))
        row = self._pad(row.reshape(*self.shape, -1), 0, 3, float(jnp.finfo(self.dtype).max) / 2)

        def step(sums, i):
            return self.backward_rows(i, *self.rows((scaled, row, through_sum), i), sums)

        start = (
            *zeros((self.key, self.value)),
            self._pad_weights(d_weights),
            None if d_bias is None else self._pad_pairs(d_bias),
        )
        (d_key, d_value, d_padded, d_bias_), d_query = _over_blocks(step, start, self.count[0])
        join = self.plan.score.join
        d_key, d_value = jax.tree.map(lambda x: x.swapaxes(1, 2)[:, : self.lengths[1]], (join(d_key), d_value))
        d_bias, d_weights = jax.tree.map(
            lambda x, padded: jax.lax.slice(padded, [0] * x.ndim, x.shape), (d_bias, d_weights), (d_bias_, d_padded)
        )
        return jax.tree.map(self.by_token, join(d_query)), d_key, d_value, d_weights, d_bias

    def backward_rows(self, i, gradient, row, through_sum, sums) -> tuple[Any, Any]:
        """Adds the terms of block i to the sums, and gives its gradient of the query. Keys are the score's rows."""
        query, normaliser = self.rows(self.query, i), self.plan.normaliser
        row_, through_sum_ = row[:, :, None], through_sum[:, :, None]

        def step(j, state):
            d_query, (d_key, d_value, d_weights, d_bias) = state
            scores, pull = self.plan.score.vjp(self.columns(self.key, j), query, self.weights.score, self.at(i, j))
            through = product("bksv,bkrv->bksr", self.columns(self.value, j), gradient)
            allowed, kept = (x if x is None else x.swapaxes(2, 3) for x in (self.allowed(i, j), self.kept(i, j)))
            masked = self.finish(scores, i, j, turn=True)
            dropped, d_scores = flash.step_grad(normaliser, masked, allowed, kept, row_, through, through_sum_)
            d_keys, d_queries, d_score, d_tables = pull(d_scores)
            d_values = product("bksr,bkrv->bksv", dropped.astype(gradient.dtype), gradient)
            add = functools.partial(_add, blocks={2: j})
            d_key, d_value = jax.tree.map(add, (d_key, d_value), (d_keys, d_values))
            d_query, d_score = jax.tree.map(jnp.add, (d_query, d_weights.score), (d_queries, d_score))
            d_tables = jax.tree.map(functools.partial(_add, blocks={1: i, 2: j}), d_weights.tables, d_tables)
            if d_bias is not None:
                d_bias = self.add_pairs(d_bias, d_scores.swapaxes(2, 3), i, j)
            return d_query, (d_key, d_value, d_weights._replace(score=d_score, tables=d_tables), d_bias)

        state = zeros(query), self._with_normaliser(sums, row, through_sum)
        d_query, sums = step(0, state) if self.count[1] == 1 else jax.lax.fori_loop(*self.visible(i), step, state)
        return sums, d_query

    def _with_normaliser(self, sums: Any, row: jax.Array, through_sum: jax.Array) -> Any:
        """Adds the gradients of the normaliser's arrays at the rows of a block to the sums."""
        params = jax.tree.map(self.of_rows, self.weights.normaliser)
        rows = self.plan.normaliser.parameter_gradients(params, row, through_sum)
        if not rows:
            return sums
        d_key, d_value, d_weights, d_bias = sums
        by_head = lambda x: x.reshape(*self.shape, -1).sum((0, 3)).reshape(-1)  # noqa: E731
        added = jax.tree.map(lambda total, x: total + by_head(x), d_weights.normaliser, rows)
        return d_key, d_value, d_weights._replace(normaliser=added), d_bias

    def add_pairs(self, total: jax.Array, tile: jax.Array, i: jax.Array | int, j: jax.Array | int) -> jax.Array:
        """Adds tile (i, j), `(b, K, G·queries, keys)`, to `total`, `(b, N, T, S)`, in which axes may be 1."""
        size, groups, together = self.shape
        tile = tile.reshape(size, groups * together, self.tile[0], self.tile[1])
        narrow = [axis for axis in range(4) if total.shape[axis] == 1]
        return _add(total, tile.sum(narrow, keepdims=True), {2: i, 3: j})


def _cut(x: jax.Array, axis: int, block: jax.Array | int, size: int) -> jax.Array:
    """Cuts a block from `x` along an axis, or gives all of `x` if there is one block or the axis has size 1."""
    if x.shape[axis] in (1, size):
        return x
    return jax.lax.dynamic_slice_in_dim(x, block * size, size, axis)


def _add(total: jax.Array, part: jax.Array, blocks: dict[int, jax.Array | int]) -> jax.Array:
    """Adds `part` to `total` at the given blocks of some axes."""
    if total.shape == part.shape:
        return total + part
    sizes = zip(total.shape, part.shape, strict=True)
    starts = [jnp.int32(blocks.get(axis, 0) * size if whole > size else 0) for axis, (whole, size) in enumerate(sizes)]
    block = jax.lax.dynamic_slice(total, starts, part.shape)
    return jax.lax.dynamic_update_slice(total, block + part, starts)


def _over_blocks(step: Callable, sums: Any, count: int) -> tuple[Any, Any]:
    """Scans over the numbers of blocks, or calls `step` directly if there is only one."""
    if count == 1:
        sums, outputs = step(sums, 0)
        return sums, jax.tree.map(lambda x: x[None], outputs)
    return jax.lax.scan(step, sums, jnp.arange(count, dtype=jnp.int32))
