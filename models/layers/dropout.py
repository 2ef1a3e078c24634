"""Dropout that draws the same bits in every replica."""

import flax.linen as nn
from jaxtyping import Array, Float

from attention.dropout import dropout, seed_of


class Dropout(nn.Module):
    """Dropout whose mask is recomputed, never stored; it is active if `train` is set.

    Attributes:
      rate: Probability of a zero.
    """

    rate: float

    @nn.compact
    def __call__(self, x: Float[Array, "*S"], *, train: bool) -> Float[Array, "*S"]:
        return dropout(x, self.rate, seed_of(self.make_rng("dropout"))) if train and self.rate else x
