"""What every implementation of the dot family is given."""

import dataclasses

import jax
from jaxtyping import Array, Float

from attention.dropout import Seed
from attention.mask import Mask


@dataclasses.dataclass(frozen=True)
class DotCall:
    """One checked call of dot-product attention: arrays in `jax.nn` layout and what to do with them.

    Attributes:
      query: `(*B, T, N, H)`.
      key: `(*B, S, K, H)`, K divides N.
      value: `(*B, S, K, V)`.
      mask: Who may attend to whom.
      bias: Added to the scores, broadcasts to `(*B, N, T, S)`, or None.
      scale: The scores' factor.
      dropout_rate: Of the weights, 0 is none.
      dropout_seed: Two words, given where the rate is not 0.
      return_weights: Whether the weights `(*B, N, T, S)` are wanted beside the output.
    """

    query: Float[Array, "*B T N H"]
    key: Float[Array, "*B S K H"]
    value: Float[Array, "*B S K V"]
    mask: Mask
    bias: Float[Array, "*#B #N #T #S"] | None
    scale: float
    dropout_rate: float
    dropout_seed: Seed | None
    return_weights: bool

    @property
    def scores_shape(self) -> tuple[int, ...]:
        """`(*B, N, T, S)`."""
        *batch, queries, heads, _ = self.query.shape
        return (*batch, heads, queries, self.key.shape[-3])

    def allowed(self) -> jax.Array | None:
        """The mask as an array that broadcasts to the scores, or None where everything is allowed."""
        return self.mask.materialise(*self.scores_shape[-2:], rank=len(self.scores_shape))
