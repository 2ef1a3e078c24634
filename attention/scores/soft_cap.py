"""Functions of a dot product: soft caps (Gemma 2, arXiv:2408.00118) and even powers (arXiv:2507.04239)."""

import dataclasses
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np

from attention.forms import At
from attention.parameters import Params
from attention.score import Score, Traits
from attention.types import Count, Example, NotNegative, Positive, Rule


@dataclasses.dataclass(frozen=True)
class SoftCap(Score):
    """score = c · tanh(q·k / (c √H)) (Gemma 2, arXiv:2408.00118, section 2).

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


@dataclasses.dataclass(frozen=True)
class Power(Score):
    """score = (q·k/√H)^p, divided by its sum over the keys (Gelada et al. 2025, arXiv:2507.04239).

    Attributes:
      degree: p, even, so that no weight is below 0.
    """

    degree: Annotated[Count, Rule("even", lambda number: number % 2 == 0)] = 2
    normaliser: Annotated[str, Example("softmax")] = dataclasses.field(default="sum", kw_only=True)
    title = "Power attention"
    traits = Traits(keeps_keys=True)

    def pair(self, params: Params, query: jax.Array, key: jax.Array, at: At) -> jax.Array:
        """Raises the product to the power."""
        return (query @ key * query.shape[-1] ** -0.5) ** self.degree

    def oracle(self, weights: dict[str, np.ndarray], query: np.ndarray, key: np.ndarray, at: At) -> float:
        """Multiplies as many products, in NumPy."""
        return np.prod([np.sum(query * key) / np.sqrt(len(key))] * self.degree)
