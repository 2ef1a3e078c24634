"""The input of the pairwise family's Pallas kernels."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from attention.activations import ACTIVATIONS
from attention.kernels.sight import KernelPlan

# Mosaic GPU does not support custom derivatives, which `jax.nn.relu` has.
IN_KERNELS = ACTIVATIONS | {"relu": lambda x: jnp.where(x <= 0, jnp.zeros((), x.dtype), x)}


Weights = Sequence[jax.Array]  # kernel (M', M) of each layer and bias (M', 1) where it has one, then the vector (M', 1)


@dataclasses.dataclass(frozen=True)
class Network:
    """The layers of the MLP after a_i + b_j.

    Attributes:
      units: Width of each layer; the first is the width of a_i + b_j.
      biased: For each layer after the first, whether it has a bias.
      activation: Name of the activation.
    """

    units: tuple[int, ...]
    biased: tuple[bool, ...]
    activation: str

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """The shapes of the arrays in `Weights`."""
        layers = zip(self.units, self.units[1:], self.biased, strict=False)
        mixing = [shape for m, k, bias in layers for shape in ((k, m), (k, 1))[: 1 + bias]]
        return [*mixing, (self.units[-1], 1)]

    @property
    def size(self) -> int:
        """The number of weights."""
        return sum(rows * columns for rows, columns in self.shapes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairPlan(KernelPlan):
    """The static part of a kernel of an MLP on pairs.

    Attributes:
      network: The MLP on each pair.
      rounded: Whether matrix products may round their factors to bfloat16, as those of bfloat16 models do.
    """

    network: Network
    rounded: bool = False


class Operands(NamedTuple):
    """The arrays that have gradients; T' and S' are lengths padded to whole tiles.

    Attributes:
      query: a, `(B, N, T', M)`.
      key: b, `(B, N, M, S')`.
      value: `(B, N, S', V)`.
      weights: See `Weights`, with a leading axis of size N, or 1 if heads share them.
      bias: `(B, N, T', S')` or None; an axis of size 1 is shared.
    """

    query: jax.Array
    key: jax.Array
    value: jax.Array
    weights: tuple[jax.Array, ...]
    bias: jax.Array | None


class Fixed(NamedTuple):
    """The arrays that have no gradients.

    Attributes:
      dense: int8 `(B, N, T', S')` or None; an axis of size 1 is shared.
      query_segments: `(B, T', 1)` or None.
      key_segments: `(B, 1, S')` or None.
      offset: The mask's query offset `(1,)`.
      lengths: Number of real keys `(B,)`.
      seed: Seed of dropout `(2,)`.
      sequence: Index among the sequences and heads of all devices, `(B, N)`.
    """

    dense: jax.Array | None
    query_segments: jax.Array | None
    key_segments: jax.Array | None
    offset: jax.Array
    lengths: jax.Array
    seed: jax.Array
    sequence: jax.Array
