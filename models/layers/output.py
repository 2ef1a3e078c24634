"""The output of models of text: hidden states and a kernel, from which the large array of logits is computed."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attention.mesh import as_rows


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["hidden", "kernel", "bias"], meta_fields=["transposed", "cap"]
)
@dataclasses.dataclass(frozen=True)
class Output:
    """Logits that are not yet computed.

    Attributes:
      hidden: Hidden state of each token, in the compute dtype.
      kernel: The output kernel in float32.
      bias: Added to the products, in the dtype of the sum; or None.
      transposed: Whether the kernel is `(V, D)`, as the embeddings are.
      cap: c of c · tanh(logits / c), which no logit exceeds (Gemma 2); 0 is no cap.
    """

    hidden: Float[Array, "B T D"]
    kernel: Float[Array, "D V"] | Float[Array, "V D"]
    bias: Float[Array, "V"] | None = None
    transposed: bool = False
    cap: float = 0.0

    def logits(self) -> Float[Array, "B T V"]:
        """Computes the logits in float32."""
        products = self._products(self.kernel.astype(self.hidden.dtype))
        logits = (products if self.bias is None else products + self.bias[None, None]).astype(jnp.float32)
        return self.cap * jnp.tanh(logits / self.cap) if self.cap else logits

    def _products(self, kernel: jax.Array) -> jax.Array:
        x = self.hidden
        if self.transposed and x.shape[:2] == (1, 1):
            # Matrix times vector: in the other order XLA on a CPU transposes the embeddings for every decoded token.
            return (kernel @ x[0, 0])[None, None]
        rows = as_rows(x) @ (kernel.T if self.transposed else kernel)
        return rows.reshape(*x.shape[:2], -1)
