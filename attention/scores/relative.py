"""T5's relative positions: a learned bias for each bucket of distances (Raffel et al. 2020, section 2.1)."""

import dataclasses
import math
from typing import Annotated

import jax
import jax.numpy as jnp
from jax.nn import initializers

from attention.errors import UsageError
from attention.forms import At
from attention.parameters import Parameter, Params, Sizes
from attention.score import Score, Traits
from attention.types import Count, NotNegative, Rule


@dataclasses.dataclass(frozen=True)
class Relative(Score):
    """score = q·k · scale + b[bucket(j − i)] of each head; T5 has a scale of 1 and shares b among layers.

    Attributes:
      buckets: Number of buckets.
      distance: The distance from which on all share the last bucket.
      ahead: Whether keys after the query have half of the buckets, as in T5's encoder; if not, all share the first.
      scale: The factor of q·k; 0 means 1/√H.
    """

    buckets: Annotated[Count, Rule("a multiple of 4", lambda number: number % 4 == 0)] = 32
    distance: Count = 128
    ahead: bool = True
    scale: NotNegative = 0.0
    traits = Traits(keeps_keys=True)

    def __post_init__(self):
        super().__post_init__()
        if self.distance <= self.buckets:
            raise UsageError(f"The option distance must be above {self.buckets} buckets, but it is {self.distance}.")

    def parameters(self, sizes: Sizes) -> dict[str, Parameter]:
        """Declares b."""
        return {"bucket_bias": Parameter((sizes.heads, self.buckets), initializers.normal(0.02), ("heads",))}

    def query_gain(self, head: int) -> float:
        """Divides 1/√H by the scale, as T5 initialises its queries."""
        return 1.0 / (self.scale * head**0.5) if self.scale else 1.0

    def pair(self, params: Params, query: jax.Array, key: jax.Array, at: At) -> jax.Array:
        """Adds the bias of the pair's bucket to the product."""
        bias = params["bucket_bias"][self.bucket(at.key - at.query)]
        return query @ key * (self.scale or query.shape[-1] ** -0.5) + bias

    def bucket(self, offset: jax.Array) -> jax.Array:
        """Finds the bucket of j − i: one a distance for small ones, then logarithmically wider ones."""
        count = self.buckets // 2 if self.ahead else self.buckets
        far = jnp.abs(offset) if self.ahead else jnp.maximum(-offset, 0)
        exact = count // 2
        ratio = jnp.maximum(far, 1).astype(jnp.float32) / exact
        steps = jnp.log(ratio) / math.log(self.distance / exact) * (count - exact)
        # Where a bucket begins at a whole distance, every rounding of the logarithm begins it there.
        wide = jnp.minimum(exact + (steps + 1e-4).astype(jnp.int32), count - 1)
        return jnp.where(far < exact, far, wide) + (count if self.ahead else 0) * (offset > 0)
