"""What models of tokens end in: hidden states, and the kernel that makes their greatest array of them, the logits."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["hidden", "kernel", "bias"], meta_fields=["transposed"]
)
@dataclasses.dataclass(frozen=True)
class Output:
    """Logits that nobody has computed yet.

    Attributes:
      hidden: Of each token, in the compute dtype.
      kernel: Its parameters in float32.
      bias: Added to the products, in the dtype of the sum; None where there is none.
      transposed: Whether the kernel's rows are of tokens: the embeddings.
    """

    hidden: Float[Array, "B T D"]
    kernel: Float[Array, "D V"] | Float[Array, "V D"]
    bias: Float[Array, "V"] | None = None
    transposed: bool = False

    def logits(self) -> Float[Array, "B T V"]:
        """In float32."""
        products = self._products(self.kernel.astype(self.hidden.dtype))
        return (products if self.bias is None else products + self.bias[None, None]).astype(jnp.float32)

    def _products(self, kernel: jax.Array) -> jax.Array:
        x = self.hidden
        if self.transposed and x.shape[:2] == (1, 1):
            # A matrix times a vector, or XLA on a CPU writes the embeddings transposed for every token it decodes.
            return (kernel @ x[0, 0])[None, None]
        rows = x.reshape(-1, x.shape[-1]) @ (kernel.T if self.transposed else kernel)
        return rows.reshape(*x.shape[:2], -1)
