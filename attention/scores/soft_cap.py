"""Dot products that saturate: c · tanh(q·k / (c √H)) (Gemma 2, arXiv:2408.00118, section 2)."""

import dataclasses

import jax
import jax.numpy as jnp

from attention.errors import UsageError
from attention.forms import At
from attention.parameters import Params, is_number
from attention.score import Score


@dataclasses.dataclass(frozen=True)
class SoftCap(Score):
    """score = c · tanh(q·k / (c √H)).

    Attributes:
      cap: c, which no score exceeds; Gemma 2 has 50.
      scale: The factor of q·k; 0 means 1/√H.
    """

    cap: float = 50.0
    scale: float = 0.0

    def __post_init__(self):
        super().__post_init__()
        if not is_number(self.cap) or self.cap <= 0:
            raise UsageError(f"The option cap must be a number above 0, not {self.cap!r}.")
        if not is_number(self.scale) or self.scale < 0:
            raise UsageError(f"The option scale must be a number of at least 0, not {self.scale!r}.")

    def pair(self, params: Params, query: jax.Array, key: jax.Array, at: At) -> jax.Array:
        """Returns the capped score."""
        return self.cap * jnp.tanh(query @ key * (self.scale or query.shape[-1] ** -0.5) / self.cap)
