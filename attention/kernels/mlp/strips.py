"""The scores of a strip of pairs without a (rows, columns, units) array.

A strip has 8 rows, which are queries in the forward pass and keys in the backward pass: a_i + b_j does not care.
`ByUnits` is for few weights: it holds one (8, columns) array for each hidden unit and mixes them with scalars;
`Rectified` does so with fewer operations, for ReLUs and at most one unit in the last layer.
`Stacked` is for many weights: the units of several rows lie above each other, and one matrix product mixes them all.
`ByUnits` and `Stacked` are differentiated by `jax.vjp`, so that any activation works.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from attention.activations import ACTIVATIONS
from attention.kernels.mlp.network import Network, PairPlan, Weights

STRIP = 8  # rows of a strip, as many as a TPU's register has
FEW = 32  # the most weights that are spread one by one
Gradients = tuple[jax.Array, jax.Array, Weights]  # of rows, of columns and of each head's weights


@jax.custom_vjp
def _relu(x: jax.Array) -> jax.Array:
    """Computes max(x, 0); its gradient asks the result, so that a kernel keeps no mask in the meantime."""
    return jnp.maximum(x, 0)


def _relu_forward(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return (y := jnp.maximum(x, 0)), y


_relu.defvjp(_relu_forward, lambda y, gradient: (jnp.where(y > 0, gradient, 0.0),))
IN_TPU_KERNELS = ACTIVATIONS | {"relu": _relu}


def columns(x: jax.Array) -> list[jax.Array]:
    """Splits `(R, C)` into C arrays `(R, 1)`."""
    return [x[:, c : c + 1] for c in range(x.shape[1])]


def join(parts: Sequence[jax.Array], axis: int) -> jax.Array:
    """Joins arrays of size 1 along the axis, by selection, which needs no shifts within a register."""
    shape = tuple(len(parts) if d == axis else size for d, size in enumerate(parts[0].shape))
    index = jax.lax.broadcasted_iota(jnp.int32, shape, axis)
    zero = jnp.zeros(shape, parts[0].dtype)
    return functools.reduce(lambda x, numbered: jnp.where(index == numbered[0], numbered[1], x), enumerate(parts), zero)


@dataclasses.dataclass(frozen=True)
class ByUnits:
    """A strip as one (8, columns) array for each unit.

    Columns and weights are spread over the rows of a strip, so that their gradients are sums of whole arrays.
    """

    network: Network

    @property
    def together(self) -> int:
        """How many parts of a tile are computed without a loop: 256 for d' = 2, which compile in some seconds."""
        return 2**10 // self.network.size

    @property
    def units(self) -> int:
        """The number of units of rows."""
        return self.network.units[0]

    @property
    def column_units(self) -> int:
        """The number of units of columns."""
        return self.units

    def centred(self, rows: jax.Array, columns: jax.Array, real: int) -> tuple[jax.Array, jax.Array]:
        """Moves a part of columns `(B, N, units, C)`, of which so many are real, to rows `(B, N, R, units)`."""
        return rows, columns

    def columns_of(self, x: jax.Array, weights: Weights) -> jax.Array:
        """Gives the units of columns `(B, N, column_units, C)` from `(B, N, units, C)` and each head's weights."""
        return x

    def gradients(self, rows: jax.Array, cols: jax.Array, weights: Weights, sums: Gradients) -> Gradients:
        """Completes what a kernel sums over pairs to the gradients of `(B, N, R, M)`, `(B, N, M, C)` and weights."""
        return sums

    def spread_weights(self, weights: Weights, width: int) -> tuple[jax.Array, ...]:
        """Spreads the P weights over one array `(8 P, width)`, each over 8 rows."""
        flat = jnp.concatenate([w.reshape(-1) for w in weights])
        return (jnp.broadcast_to(jnp.repeat(flat, STRIP)[:, None], (flat.size * STRIP, width)),)

    @property
    def learned(self) -> list[bool]:
        """Which arrays of `spread_weights` have a gradient."""
        return [True]

    def spread_columns_shape(self, width: int) -> tuple[int, int]:
        """Gives the shape that `spread_columns` makes."""
        return STRIP * self.column_units, width

    def spread_columns(self, x: jax.Array) -> jax.Array:
        """Spreads `(M, C)` over `(8 M, C)`."""
        return jnp.concatenate([jnp.broadcast_to(x[m : m + 1], (STRIP, x.shape[1])) for m in range(len(x))], 0)

    def gather_columns(self, x: jax.Array) -> jax.Array:
        """Sums a gradient of `spread_columns` to `(M, C)`."""
        return join([jnp.sum(part, axis=0, keepdims=True) for part in _cut(x, STRIP)], 0)

    def spread_rows_shape(self, width: int) -> tuple[int, int]:
        """Gives the shape that `spread_rows` makes."""
        return STRIP, self.units * width

    def spread_rows(self, x: jax.Array, width: int) -> jax.Array:
        """Spreads a strip `(8, M)` over `(8, M width)`."""
        return jnp.concatenate([jnp.broadcast_to(column, (STRIP, width)) for column in columns(x)], 1)

    def gather_rows(self, x: jax.Array) -> jax.Array:
        """Sums a gradient of `spread_rows` to `(8, M)`."""
        return join([jnp.sum(part, axis=1, keepdims=True) for part in jnp.split(x, self.units, 1)], 1)

    def scores(self, rows: jax.Array, across: jax.Array, weights: Sequence[jax.Array]) -> jax.Array:
        """Computes the scores `(8, C)` of a strip."""
        activation, numbers = IN_TPU_KERNELS[self.network.activation], iter(_cut(weights[0], STRIP))
        hidden = [activation(a + b) for a, b in zip(jnp.split(rows, self.units, 1), _cut(across, STRIP), strict=True)]
        for width, biased in zip(self.network.units[1:], self.network.biased, strict=True):
            mixed = [_sum([next(numbers) * h for h in hidden]) for _ in range(width)]
            hidden = [activation(x + next(numbers) if biased else x) for x in mixed]
        return _sum([next(numbers) * h for h in hidden])


@dataclasses.dataclass(frozen=True)
class Rectified(ByUnits):
    """A strip as `ByUnits`, of relu(a_m + b_m) = max(a_m, −b_m) + b_m, mixed into at most one unit.

    The mixture of the b_m is one more unit of the columns, in place of a sum for each pair and unit. A ReLU's output is
    its input times its derivative. So a kernel needs no gradients of weights, and no weights in other gradients: it
    sums the scores' gradients over the pairs where units are positive, for rows and for columns; `gradients` has the
    rest. The last sum, which is for c, has no use where there is none.
    """

    @property
    def column_units(self) -> int:
        """The number of units of columns: those of rows, negative, and their mixture."""
        return self.units + 1

    @property
    def learned(self) -> list[bool]:
        """Which arrays of `spread_weights` have a gradient: none."""
        return [False]

    def centred(self, rows: jax.Array, columns: jax.Array, real: int) -> tuple[jax.Array, jax.Array]:
        """Moves the columns' means to the rows: rounding is relative to |a_m| and |b_m|, which are then small."""
        mean = columns.sum(-1) / real  # padding is zeros
        return rows + mean[:, :, None], columns - mean[..., None]

    def columns_of(self, x: jax.Array, weights: Weights) -> jax.Array:
        """Gives −b_m and Σ w_m b_m + c, `(B, N, M + 1, C)`, from b_m and each head's weights.

        Where no unit is positive, the sum over units undoes the latter but for c. A second ReLU would take what
        rounding leaves for positive where c is 0, as in fresh weights, so the most that it may leave is taken off:
        (M + 2) ε Σ |w_m b_m|.
        """
        mixing, offset, _ = self._named(weights)
        terms = mixing[None, ..., None] * x
        mixed = terms.sum(-2, keepdims=True) + offset[None, :, None, None]
        if len(self.network.units) > 1:
            rounding = (self.units + 2) * float(jnp.finfo(x.dtype).eps)
            mixed -= rounding * jnp.abs(terms).sum(-2, keepdims=True)
        return jnp.concatenate([-x, mixed], -2)

    def _named(self, weights: Weights) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Gives w `(N, M)`, c `(N,)` and the last factor v `(N,)` of each head."""
        if len(self.network.units) == 1:
            mixing = weights[0][..., 0]
            return mixing, jnp.zeros_like(mixing[:, 0]), jnp.ones_like(mixing[:, 0])
        mixing, *offset, vector = (x[:, 0] for x in weights)
        return mixing, offset[0][:, 0] if offset else jnp.zeros_like(vector[:, 0]), vector[:, 0]

    def scores(self, rows: jax.Array, across: jax.Array, weights: Sequence[jax.Array]) -> jax.Array:
        """Computes the scores `(8, C)` of a strip; its gradients are the sums that `gradients` takes."""
        return _rectified(len(self.network.units) > 1, rows, across, weights[0])

    def gradients(self, rows: jax.Array, cols: jax.Array, weights: Weights, sums: Gradients) -> Gradients:
        """Completes the gradients: with the derivatives of ReLUs held, which are in the sums, scores are products."""
        of_rows, of_cols, _ = sums

        def total(rows: jax.Array, cols: jax.Array, weights: Weights) -> jax.Array:
            mixing, offset, last = self._named(weights)
            of_units = (rows * of_rows).sum((0, 2)) + (cols * of_cols[:, :, :-1]).sum((0, 3))
            return (last * ((mixing * of_units).sum(-1) + offset * of_cols[:, :, -1].sum((0, 2)))).sum()

        return jax.grad(total, (0, 1, 2))(rows, cols, weights)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _rectified(outer: bool, rows: jax.Array, across: jax.Array, weights: jax.Array) -> jax.Array:
    """Computes v relu(x), or x unless `outer`, where x = Σ w_m max(a_m, −b_m) + Σ w_m b_m + c."""
    return _rectified_forward(outer, rows, across, weights)[0]


def _rectified_forward(outer: bool, rows: jax.Array, across: jax.Array, weights: jax.Array):
    (*negative, offset), factors = _cut(across, STRIP), _cut(weights, STRIP)
    units = zip(factors, jnp.split(rows, len(negative), 1), negative, strict=False)
    terms = [w * jnp.maximum(a, b) for w, a, b in units]
    mixed = functools.reduce(jnp.add, terms, offset)
    return factors[-1] * jnp.maximum(mixed, 0) if outer else mixed, (rows, across, weights, mixed)


def _rectified_backward(outer: bool, saved: tuple, gradient: jax.Array):
    """Gives the gradient where units are positive, without factors; see `Rectified.gradients`."""
    rows, across, weights, mixed = saved
    gradient = jnp.where(mixed > 0, gradient, 0.0) if outer else gradient
    *negative, _ = _cut(across, STRIP)
    units = [jnp.where(a > b, gradient, 0.0) for a, b in zip(jnp.split(rows, len(negative), 1), negative, strict=True)]
    return jnp.concatenate(units, 1), jnp.concatenate([*units, gradient], 0), jnp.zeros_like(weights)


_rectified.defvjp(_rectified_forward, _rectified_backward)


def _sum(terms: list[jax.Array]) -> jax.Array:
    return functools.reduce(jnp.add, terms)


def _cut(x: jax.Array, size: int) -> list[jax.Array]:
    return [x[start : start + size] for start in range(0, len(x), size)]


@dataclasses.dataclass(frozen=True)
class Stacked:
    """A strip as (rows × units, columns) arrays, of as many rows as fill the 128 rows of a product.

    A layer's kernel stands on the diagonal of a matrix once for each of these rows. Units are padded with zeros to
    whole registers.
    """

    network: Network
    rounded: bool

    centred, columns_of, gradients = ByUnits.centred, ByUnits.columns_of, ByUnits.gradients

    @property
    def together(self) -> int:
        """How many parts of a tile are computed without a loop, as compile time allows."""
        return 2**8 // self.units // (1 if self.rounded else 4)

    @property
    def units(self) -> int:
        """The number of units of rows and of columns, with padding."""
        return -(-self.network.units[0] // STRIP) * STRIP

    column_units = units

    @property
    def stacked(self) -> int:
        """The number of rows of one product."""
        return next(rows for rows in (8, 4, 2, 1) if rows * self.units <= 128 or rows == 1)

    def spread_weights(self, weights: Weights, width: int) -> tuple[jax.Array, ...]:
        """Spreads each layer's matrix, its transpose and its bias `(·, width)`; for the vector, it lays a matrix for
        each product of the strip below each other, and their transposes.
        """
        together, sizes, weights = self.stacked, [self.units], list(weights)
        eye, spread = jnp.eye(together, dtype=weights[0].dtype), []
        for biased in self.network.biased:
            kernel, bias = weights.pop(0), weights.pop(0) if biased else None
            sizes.append(-(-len(kernel) * together // STRIP) * STRIP // together)
            matrix = jnp.kron(eye, _padded(kernel, sizes[-1], sizes[-2]))
            spread += [matrix, matrix.T]
            if biased:
                spread.append(jnp.tile(_padded(bias, sizes[-1], 1), (together, width)))
        vector = _padded(weights[0].T, 1, sizes[-1])
        parts = jnp.split(jnp.kron(jnp.eye(STRIP, dtype=vector.dtype), vector), STRIP // together, axis=1)
        return (*spread, jnp.concatenate(parts, 0), jnp.concatenate([part.T for part in parts], 0))

    @property
    def learned(self) -> list[bool]:
        """Which arrays of `spread_weights` have a gradient: all but the transposes."""
        layers = [learned for biased in self.network.biased for learned in (True, False, True)[: 2 + biased]]
        return [*layers, True, False]

    def spread_columns_shape(self, width: int) -> tuple[int, int]:
        """Gives the shape that `spread_columns` makes."""
        return self.units, width

    def spread_columns(self, x: jax.Array) -> jax.Array:
        """Leaves `(M, C)` unchanged."""
        return x

    gather_columns = spread_columns

    def spread_rows_shape(self, width: int) -> tuple[int, int]:
        """Gives the shape that `spread_rows` makes."""
        return STRIP * self.units, width

    def spread_rows(self, x: jax.Array, width: int) -> jax.Array:
        """Spreads a strip `(8, M)` over `(8 M, width)`."""
        return jnp.concatenate([jnp.broadcast_to(column, (self.units, width)) for column in columns(x.T)], 0)

    def gather_rows(self, x: jax.Array) -> jax.Array:
        """Sums a gradient of `spread_rows` to `(8, M)`."""
        return join([jnp.sum(part, axis=1, keepdims=True) for part in _cut(x, self.units)], 1).T

    def scores(self, rows: jax.Array, across: jax.Array, weights: Sequence[jax.Array]) -> jax.Array:
        """Computes the scores `(8, C)` of a strip."""
        activation = IN_TPU_KERNELS[self.network.activation]
        *layers, vector, turned = weights
        parts, split, terms = STRIP // self.stacked, jnp.split(rows, STRIP), []
        for part, (matrix, transpose) in enumerate(
            zip(_cut(vector, STRIP), _cut(turned, len(turned) // parts), strict=True)
        ):
            here = split[part * self.stacked : (part + 1) * self.stacked]
            hidden = jnp.concatenate([activation(row + across) for row in here], 0)
            terms.append(_mix(self.rounded, matrix, transpose, self._hidden(hidden, layers, activation)))
        return _sum(terms)

    def _hidden(self, hidden: jax.Array, layers: Sequence[jax.Array], activation: Callable) -> jax.Array:
        arrays = iter(layers)
        for biased in self.network.biased:
            hidden = _mix(self.rounded, next(arrays), next(arrays), hidden)
            hidden = activation(hidden + next(arrays) if biased else hidden)
        return hidden


def _padded(x: jax.Array, rows: int, width: int) -> jax.Array:
    return jnp.pad(x, [(0, rows - x.shape[0]), (0, width - x.shape[1])])


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _mix(rounded: bool, matrix: jax.Array, transpose: jax.Array, x: jax.Array) -> jax.Array:
    """Computes matrix @ x; a TPU turns no factor if the transpose is at hand. Only the matrix gets a gradient."""
    return dot(matrix, x, (1, 0), rounded)


def _mix_forward(rounded: bool, matrix: jax.Array, transpose: jax.Array, x: jax.Array):
    return dot(matrix, x, (1, 0), rounded), (transpose, x)


def _mix_backward(rounded: bool, saved: tuple[jax.Array, jax.Array], gradient: jax.Array):
    transpose, x = saved
    return dot(gradient, x, (1, 1), rounded), jnp.zeros_like(transpose), dot(transpose, gradient, (1, 0), rounded)


_mix.defvjp(_mix_forward, _mix_backward)


def dot(x: jax.Array, y: jax.Array, axes: tuple[int, int], rounded: bool = False) -> jax.Array:
    """Sums the product over the axes, at least in float32; exact unless factors are rounded to bfloat16."""
    kind = jnp.promote_types(x.dtype, jnp.float32)
    if rounded:
        x, y = x.astype(jnp.bfloat16), y.astype(jnp.bfloat16)
    exact = jax.lax.Precision.HIGHEST if x.dtype != jnp.bfloat16 else None
    numbers = (((axes[0],), (axes[1],)), ((), ()))
    return jax.lax.dot_general(x, y, numbers, precision=exact, preferred_element_type=kind)


def form_of(plan: PairPlan) -> ByUnits | Stacked:
    """Chooses the form that suits the network."""
    network = plan.network
    if network.size > FEW:
        return Stacked(network, plan.rounded)
    mixed = len(network.units) == 1 or network.units[1:] == (1,)
    return Rectified(network) if mixed and network.activation == "relu" else ByUnits(network)
