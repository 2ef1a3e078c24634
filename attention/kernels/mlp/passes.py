"""The forward and the backward pass over tiles of pairs on a TPU."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from attention.kernels.mlp.strips import STRIP, dot, form_of
from attention.kernels.mlp.tile import TpuTile, names_of


def forward_kernel(tile: TpuTile, visible: Any, at: tuple[Any, Any]) -> None:
    """Adds a tile to the outputs of its queries: an online softmax. `at` is its place in the grid of tiles."""
    ref, plan, form = tile.ref, tile.plan, form_of(tile.plan)

    @pl.when(at[1] == 0)
    def _():
        # Half of the lowest score, so that a row without allowed keys has weights exp(lowest - half) = 0.
        ref["highest"][...] = jnp.full_like(ref["highest"], tile.lowest / 2)
        ref["total"][...] = jnp.zeros_like(ref["total"])
        ref["sum"][...] = jnp.zeros_like(ref["sum"])
        tile.spread_rows()

    def strips(starts, whole):
        for group in tile.groups(starts):
            shrinks, shares = zip(*(_shares(tile, row, whole) for row in group), strict=True)
            rows, width = pl.ds(group[0], STRIP * len(group)), ref["sum"].shape[1]
            added = dot(tile.pack(group, list(shares)), ref["value"][...], (1, 0))
            ref["sum"][rows, :] = ref["sum"][rows, :] * _narrowed(jnp.concatenate(shrinks, 0), width) + added

    @pl.when(visible)
    def _():
        ref["columns"][...] = form.spread_columns(ref["across"][...])
        tile.visit(strips)

    @pl.when(at[1] == tile.tiles - 1)
    def _():
        total = ref["total"][...].sum(-1, keepdims=True)
        total = jnp.where(total == 0, 1.0, total)
        ref["out"][...] = (ref["sum"][...] / (total * (1 - plan.rate))).astype(ref["out"].dtype)
        ref["log_sum"][...] = ref["highest"][:, :1] + jnp.log2(total)


def _narrowed(x: jax.Array, width: int) -> jax.Array:
    """Takes `width` of columns that are all equal, or one, which broadcasts, where there are not so many."""
    return x[:, :width] if width <= x.shape[1] else x[:, :1]


def _shares(tile: TpuTile, row: Any, whole: bool) -> tuple[jax.Array, list[jax.Array]]:
    """Adds the exponentials of a strip to the totals; returns the factor of earlier sums, and them in parts."""
    ref, form, rows = tile.ref, form_of(tile.plan), pl.ds(row, STRIP)
    spread, weights = ref["spread"][tile.spread(row), :], tile.weights()
    scores = [form.scores(spread, ref["columns"][:, part], weights) for part in tile.parts]
    scores = [tile.finish(x, row, part, whole) for x, part in zip(scores, tile.parts, strict=True)]
    before = ref["highest"][rows, :]
    highest = jnp.maximum(before, functools.reduce(jnp.maximum, scores).max(-1, keepdims=True))
    shrink, shares = jnp.exp2(before - highest), [jnp.exp2(x - highest) for x in scores]
    ref["highest"][rows, :] = highest
    ref["total"][rows, :] = ref["total"][rows, :] * shrink + functools.reduce(jnp.add, shares)
    if tile.plan.rate:
        shares = [jnp.where(tile.kept(row, part), x, 0.0) for x, part in zip(shares, tile.parts, strict=True)]
    return shrink, shares


def backward_kernel(tile: TpuTile, visible: Any, at: tuple[Any, Any]) -> None:
    """Adds a tile to the gradients of all operands.

    Rows are keys, so that gradients of queries are sums of whole registers, and weights are factors as they lie.
    """
    ref, form = tile.ref, form_of(tile.plan)

    @pl.when((at[0] == 0) & (at[1] == 0))
    def _():
        for x in (ref["d_columns"], *_sums(tile)):
            x[...] = jnp.zeros_like(x)

    @pl.when(at[1] == 0)
    def _():
        for name in ("d_spread", "d_value"):
            ref[name][...] = jnp.zeros_like(ref[name])
        tile.spread_rows()

    def strips(starts, whole):
        d_columns = [None] * len(tile.parts)
        for group in tile.groups(starts):
            rows = pl.ds(group[0], STRIP * len(group))
            d_shares = dot(ref["value"][rows, :], ref["gradient"][...], (1, 1))
            d_shares = [d_shares[start : start + STRIP] for start in range(0, len(d_shares), STRIP)]
            shares = [_gradients(tile, row, whole, x, d_columns) for row, x in zip(group, d_shares, strict=True)]
            ref["d_value"][rows, :] += dot(tile.pack(group, shares), ref["gradient"][...], (1, 0))
        for part, gradient in zip(tile.parts, d_columns, strict=True):
            ref["d_spread_columns"][:, part] += gradient

    @pl.when(visible)
    def _():
        ref["columns"][...] = form.spread_columns(ref["across"][...])
        ref["d_spread_columns"][...] = jnp.zeros_like(ref["d_spread_columns"])
        tile.visit(strips)
        across = tile.block[1]
        columns = pl.ds(pl.multiple_of(tile.y * across, across), across) if tile.tiles > 1 else slice(None)
        ref["d_columns"][:, columns] += form.gather_columns(ref["d_spread_columns"][...])

    @pl.when(at[1] == tile.tiles - 1)
    def _():
        tile.gather_rows()

    if "d_bias" in ref:

        @pl.when(jnp.logical_not(visible))
        def _():
            ref["d_bias"][...] = jnp.zeros_like(ref["d_bias"])


def _sums(tile: TpuTile) -> list[Any]:
    """Lists where the gradients of the score's weights are added up."""
    return [tile.ref[name] for name in (f"d_{name}" for name in names_of(form_of(tile.plan))) if name in tile.ref]


def _gradients(tile: TpuTile, row: Any, whole: bool, d_shares: jax.Array, d_columns: list[Any]) -> list[jax.Array]:
    """Adds the gradients of a strip's rows, of weights and of columns in parts, and returns its weights in parts."""
    ref, form, shares, d_row, d_weights = tile.ref, form_of(tile.plan), [], None, None
    spread, weights = ref["spread"][tile.spread(row), :], tile.weights()
    for index, part in enumerate(tile.parts):
        scores, pull = jax.vjp(form.scores, spread, ref["columns"][:, part], weights)
        dropped, d_scores = _through_softmax(tile, scores, row, part, whole, d_shares[:, part])
        d_strip, d_column, d_weight = pull(d_scores)
        shares.append(dropped)
        d_row, d_columns[index] = _add(d_row, d_strip), _add(d_columns[index], d_column)
        d_weights = _add(d_weights, [x for x, has in zip(d_weight, form.learned, strict=True) if has])
    ref["d_spread"][tile.spread(row), :] += d_row
    for x, gradient in zip(_sums(tile), d_weights, strict=True):
        x[...] += gradient
    return shares


def _through_softmax(
    tile: TpuTile, scores: jax.Array, row: Any, part: slice, whole: bool, d_shares: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Computes the weights of a part, after dropout, and the gradient of its scores from that of the weights."""
    ref, rate, rows = tile.ref, tile.plan.rate, pl.ds(row, STRIP)
    shares = jnp.exp2(tile.finish(scores, row, part, whole) - ref["log_sum"][:, part])
    dropped = shares
    if rate:
        kept = tile.kept(row, part)
        dropped, d_shares = (jnp.where(kept, x / (1 - rate), 0.0) for x in (shares, d_shares))
    d_scores = shares * (d_shares - ref["through_sum"][:, part])
    if "d_bias" in ref:
        ref["d_bias"][rows, part] = d_scores
    return dropped, d_scores


def _add(total: Any, x: Any) -> Any:
    return x if total is None else jax.tree.map(jnp.add, total, x)
