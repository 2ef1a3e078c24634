"""The scores of a tile: dot products, the MLP on pairs in two layouts, and any function of a pair."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from attention.activations import ACTIVATIONS
from attention.forms import MLP, Dot
from attention.kernels import pairs
from attention.kernels.arrays import precise, score_dtype
from attention.kernels.call import Call
from attention.kernels.loops.plan import TileAt, TileScore, Weights, product, reduce_in_lanes
from attention.mesh import platform
from attention.parameters import Params, Sizes

# Layers up to these sizes are computed unit by unit. Compared with matrix products, hidden layers of (2, 1) and (4, 4)
# were 1.5 to 3 times as fast, and (16, 8) and one layer of 64 half as fast.
NARROW_WEIGHTS, NARROW_UNITS = 32, 8


def of_tiles(call: Call) -> tuple[Weights, TileScore, int]:
    """Gives the weights, the score of a tile, and the count of numbers for each pair that are stored at once."""
    normaliser = {name: call.params[name] for name in call.normaliser.parameters(Sizes(1, 1, 1, 1))}
    form = call.form
    if isinstance(form, Dot):
        return Weights((), (), normaliser), DotScore(form.scale, form.precision), 1
    if isinstance(form, MLP):
        narrow = is_narrow(call)
        score = (NarrowScore if narrow else WideScore)(form.activation, per_head=form.vector.ndim == 2)
        units = 1 if narrow and platform() == "cpu" else widest(call)
        return Weights((form.layers, form.vector), (), normaliser), score, units
    shared, own, tables = pairs.split_params(call)
    shared = {name: x for name, x in shared.items() if name not in normaliser}
    score = PairTiles(call.score, call.scores_shape[-3], call.depth)
    return Weights((shared, own), tables, normaliser), score, pairs.widest(call)


def widest(call: Call) -> int:
    """Counts the units of the widest layer."""
    return max(call.query.shape[-1], *(kernel.shape[-1] for kernel, _ in call.form.layers), 1)


def is_narrow(call: Call) -> bool:
    """Tells whether the layers have so few units and weights that they are computed unit by unit."""
    products = [kernel.shape[-2] * kernel.shape[-1] for kernel, _ in call.form.layers]
    return widest(call) <= NARROW_UNITS and max(products, default=0) <= NARROW_WEIGHTS


@dataclasses.dataclass(frozen=True)
class DotScore(TileScore):
    """Scores that are products of rows and columns, times a scale.

    Attributes:
      scale: The factor.
      precision: Precision of the products and their gradients.
    """

    scale: float
    precision: jax.lax.PrecisionLike = None

    def split(self, x: jax.Array) -> jax.Array:
        """Leaves `x` unchanged."""
        return x

    def __call__(self, rows: jax.Array, columns: jax.Array, weights: Any, at: TileAt) -> jax.Array:
        """Computes scores `(b, K, R, C)` of `(b, K, R, H)` and `(b, K, C, H)`."""
        if score_dtype(rows) == rows.dtype:
            return self._product("bkrh,bkch->bkrc", rows * self.scale, columns)
        return self._product("bkrh,bkch->bkrc", rows, columns) * self.scale  # scaling the rows would round them again

    def vjp(self, rows: jax.Array, columns: jax.Array, weights: Any, at: TileAt) -> tuple[jax.Array, Callable]:
        """Computes the scores and their pullback, which rounds the scores' gradients to the dtype of the rows."""

        def pull(gradient: jax.Array) -> tuple[jax.Array, jax.Array, Any, Any]:
            gradient = gradient.astype(rows.dtype)
            d_rows = self._product("bkrc,bkch->bkrh", gradient, columns) * self.scale
            # XLA on a CPU multiplies contiguous arrays twice as fast as transposed ones. So the small array is
            # transposed, and the barriers keep XLA from undoing it.
            transposed = jax.lax.optimization_barrier(rows.swapaxes(2, 3))
            d_columns = jax.lax.optimization_barrier(self._product("bkhr,bkrc->bkhc", transposed, gradient))
            return d_rows, d_columns.swapaxes(2, 3) * self.scale, weights, at.tables

        return self(rows, columns, weights, at), pull

    def _product(self, equation: str, x: jax.Array, y: jax.Array) -> jax.Array:
        return product(equation, x, y, self.precision)


def _paired(row: jax.Array, column: jax.Array) -> jax.Array:
    """Adds each row's number to each column's."""
    return row[..., :, None] + column[..., None, :]


def _paired_backward(_: None, gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    return reduce_in_lanes(jnp.sum, gradient)[..., 0], gradient.sum(-2)


def _weighted(units: list[jax.Array], weights: jax.Array, bias: jax.Array | None) -> jax.Array:
    """Adds units times their weights, and a bias."""
    total = sum(weight * unit for weight, unit in zip(weights, units, strict=True))
    return total if bias is None else total + bias


def _weighted_forward(units: list[jax.Array], weights: jax.Array, bias: jax.Array | None) -> tuple[jax.Array, Any]:
    return _weighted(units, weights, bias), (units, weights, bias)


def _weighted_backward(residuals: Any, gradient: jax.Array) -> tuple[list[jax.Array], jax.Array, jax.Array | None]:
    units, weights, bias = residuals
    d_weights = jnp.stack([_total(gradient * unit) for unit in units])
    return [weight * gradient for weight in weights], d_weights, None if bias is None else _total(gradient)


def _total(x: jax.Array) -> jax.Array:
    rows = reduce_in_lanes(jnp.sum, x)[..., 0]
    return reduce_in_lanes(jnp.sum, rows).sum()


_paired_by_lanes, _weighted_by_lanes = jax.custom_vjp(_paired), jax.custom_vjp(_weighted)
_paired_by_lanes.defvjp(lambda row, column: (_paired(row, column), None), _paired_backward)
_weighted_by_lanes.defvjp(_weighted_forward, _weighted_backward)


@dataclasses.dataclass(frozen=True)
class WideScore(TileScore):
    """The MLP on each pair as matrix products, with the axis of units last.

    Attributes:
      activation: Name of the activation.
      per_head: Whether each head has its own weights.
    """

    activation: str
    per_head: bool

    def __call__(self, rows: Any, columns: Any, weights: Any, at: TileAt) -> jax.Array:
        """Computes the scores `(b, N, R, C)`."""
        return self._scores(rows, columns, weights)

    def _scores(self, rows: Any, columns: Any, weights: Any, **ways: Callable) -> jax.Array:
        score = functools.partial(self._one_head, ACTIVATIONS[self.activation], **ways)
        if self.per_head:
            score = jax.vmap(score, in_axes=(1, 1, 0), out_axes=1)
        return score(rows, columns, weights)

    def _one_head(self, activation, rows, columns, weights):
        layers, vector = weights
        hidden = activation(rows[..., :, None, :] + columns[..., None, :, :])
        for kernel, bias in layers:
            hidden = _times(hidden, kernel)
            if bias is not None:
                hidden = hidden + bias.reshape((1,) * (hidden.ndim - 1) + bias.shape)
            hidden = activation(hidden)
        return hidden @ vector


class NarrowScore(WideScore):
    """The MLP unit by unit: each unit is an array over pairs, which XLA fuses with its use and need not store.

    Queries and keys are one array for each unit, so that vector instructions run along the pairs. XLA lays arrays out
    like that where they go into a loop; sequences of one tile, without a loop, took three times as long on a CPU.
    """

    cut = True

    def split(self, x: jax.Array) -> Any:
        """Splits `x` into one array for each unit."""
        return [precise(x[..., unit]) for unit in range(x.shape[-1])]

    def join(self, parts: Any) -> jax.Array:
        """Stacks the arrays of the units."""
        return jnp.stack(parts, -1)

    def vjp(self, rows: Any, columns: Any, weights: Any, at: TileAt) -> tuple[jax.Array, Callable]:
        """Scores keys as rows against queries as columns, and gives the pullback, whose sums are in lanes."""
        score = functools.partial(self._scores, paired=_paired_by_lanes, weighted=_weighted_by_lanes)
        scores, pull = jax.vjp(score, rows, columns, weights)
        return scores, lambda gradient: (*pull(gradient), at.tables)

    def _one_head(self, activation, rows, columns, weights, paired=_paired, weighted=_weighted):
        layers, vector = jax.tree.map(lambda x: x.astype(rows[0].dtype), weights)
        units = [activation(paired(row, column)) for row, column in zip(rows, columns, strict=True)]
        for kernel, bias in layers:
            biases = [None] * kernel.shape[1] if bias is None else bias
            units = [activation(weighted(units, kernel[:, k], x)) for k, x in enumerate(biases)]
        return weighted(units, vector, None)


@jax.custom_vjp
def _times(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Computes `x @ kernel`, with a gradient of the kernel that multiplies contiguous arrays.

    XLA on a CPU is twice as fast with such a product. The barriers keep it from undoing the transposition.
    """
    return x @ kernel


def _times_forward(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return x @ kernel, (x, kernel)


def _times_backward(residuals: tuple[jax.Array, jax.Array], gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, kernel = residuals
    transposed = jax.lax.optimization_barrier(gradient.reshape(-1, gradient.shape[-1]).T)
    d_kernel = jax.lax.optimization_barrier(transposed @ x.reshape(-1, x.shape[-1])).T
    return gradient @ kernel.T, d_kernel


_times.defvjp(_times_forward, _times_backward)


@dataclasses.dataclass(frozen=True)
class PairTiles(TileScore):
    """The scores of a tile by `pair`, and their gradient by `jax.vjp`.

    Attributes:
      heads: N.
      depth: The number of layers.
    """

    score: Any
    heads: int
    depth: int

    def __call__(self, rows: Any, columns: Any, weights: tuple[Params, Params], at: TileAt) -> jax.Array:
        """Computes scores `(b, K, G·R, C)` of queries `(b, K, G·R, …)` and keys `(b, K, C, …)`."""
        shared, own = weights
        size, groups = at.shape
        together = self.heads // groups
        queries = jax.tree.map(lambda x: x.reshape(*x.shape[:2], together, -1, *x.shape[3:]), rows)
        by_group = lambda x: x.reshape(groups, together, *x.shape[1:])  # noqa: E731
        axes = {name: 0 if len(x) > 1 else None for name, x in at.tables.items()}
        tables = {name: by_group(x) if len(x) > 1 else x[0] for name, x in at.tables.items()}
        place = self.heads, at.layer, self.depth
        of_head = functools.partial(pairs.of_head, self.score, place, shared, at.queries, at.keys)
        of_groups = jax.vmap(jax.vmap(of_head, (0, None, 0, axes, 0)), (0, 0, 0, axes, 0))
        of_batch = jax.vmap(of_groups, (0, 0, None, None, None), axis_size=size)
        heads = by_group(jnp.arange(self.heads))
        scores = precise(of_batch(queries, columns, jax.tree.map(by_group, own), tables, heads))
        return scores.reshape(size, groups, -1, scores.shape[-1])

    def vjp(self, rows: Any, columns: Any, weights: Any, at: TileAt) -> tuple[jax.Array, Callable]:
        """Scores keys as rows against queries as columns, and gives the pullback."""

        def turned(keys, queries, weights, tables):
            return self(queries, keys, weights, at._replace(tables=tables)).swapaxes(2, 3)

        return jax.vjp(turned, rows, columns, weights, at.tables)
