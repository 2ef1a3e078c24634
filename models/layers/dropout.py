"""Dropout that scans and replicas leave as it is."""

import flax.linen as nn
from jaxtyping import Array, Float

from attention.dropout import dropout, seed_of
from models.layers.stack import dropout_key


class Dropout(nn.Module):
    """Dropout whose mask is recomputed, never stored; active when `train`.

    Attributes:
      rate: Probability of a zero.
    """

    rate: float

    @nn.compact
    def __call__(self, x: Float[Array, "*S"], *, train: bool) -> Float[Array, "*S"]:
        """An array like `x`."""
        return dropout(x, self.rate, seed_of(dropout_key(self))) if train and self.rate else x
