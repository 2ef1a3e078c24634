"""ALiBi: dot products less the distance of the tokens times a slope of each head (Press et al. 2022, section 3)."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from attention.forms import At
from attention.parameters import Parameter, Params, Sizes
from attention.score import Score, Traits


@dataclasses.dataclass(frozen=True)
class Alibi(Score):
    """score = q·k/√H − m |i − j|, with the paper's slope m for each head.

    Attributes:
      learned: Whether slopes are learned from there on; they stay positive.
    """

    learned: bool = False
    traits = Traits(keeps_keys=True)

    def parameters(self, sizes: Sizes) -> dict[str, Parameter]:
        """Declares log m if slopes are learned."""
        init = lambda key, shape, dtype: jnp.log(jnp.asarray(slopes(shape[0]), dtype))  # noqa: E731
        return {"log_slope": Parameter((sizes.heads,), init, ("heads",))} if self.learned else {}

    def pair(self, params: Params, query: jax.Array, key: jax.Array, at: At) -> jax.Array:
        """Lowers the product by the distance."""
        slope = jnp.exp(params["log_slope"]) if self.learned else jnp.asarray(slopes(at.heads), query.dtype)[at.head]
        return query @ key * query.shape[-1] ** -0.5 - slope * jnp.abs(at.query - at.key)

    def oracle(self, weights: dict[str, np.ndarray], query: np.ndarray, key: np.ndarray, at: At) -> float:
        """Lowers the product by the distance, in NumPy, with the paper's slopes for 2, 4, 8 … heads."""
        slope = np.exp(weights["log_slope"][at.head]) if self.learned else 2 ** (-8 * (at.head + 1) / at.heads)
        return np.sum(query * key) / np.sqrt(len(key)) - slope * abs(at.query - at.key)


def slopes(heads: int) -> np.ndarray:
    """Computes 2^(−8n/N) for n from 1 to N; between powers of 2, every other slope of the next one fills up."""
    whole = 2 ** math.floor(math.log2(heads))
    exponents = [8 * n / whole for n in range(1, whole + 1)]
    exponents += [4 * n / whole for n in range(1, 2 * (heads - whole), 2)]
    return 2.0 ** -np.asarray(exponents)
