"""Dot products that saturate: c · tanh(q·k / (c √H)) (Gemma 2, arXiv:2408.00118, section 2)."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from attention.forms import At
from attention.parameters import Params
from attention.score import Score, Traits
from attention.types import NotNegative, Positive


@dataclasses.dataclass(frozen=True)
class SoftCap(Score):
    """score = c · tanh(q·k / (c √H)).

    Attributes:
      cap: c, which no score exceeds; Gemma 2 has 50.
      scale: The factor of q·k; 0 means 1/√H.
    """

    cap: Positive = 50.0
    scale: NotNegative = 0.0
    traits = Traits(keeps_keys=True)

    def pair(self, params: Params, query: jax.Array, key: jax.Array, at: At) -> jax.Array:
        """Caps the product."""
        return self.cap * jnp.tanh(query @ key * (self.scale or query.shape[-1] ** -0.5) / self.cap)

    def oracle(self, weights: dict[str, np.ndarray], query: np.ndarray, key: np.ndarray, at: At) -> float:
        """Caps the product, in NumPy."""
        return self.cap * np.tanh(np.sum(query * key) * (self.scale or len(key) ** -0.5) / self.cap)
