"""What the config of every model says of it, beside its fields."""

from typing import Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike

from attention.operations import Cost
from models.fields import Declared


class ModelConfig(Declared):
    """Base of the models' configs. `build` and `cost` take the same sizes, which are those of the data.

    Attributes:
      pretrained: Published weights to start from, where such a model has any; '' starts from random ones.
    """

    PATH: ClassVar[str] = "model."

    attention: str
    pretrained: ClassVar[str] = ""

    def build(self, *sizes: Any, dtype: DTypeLike = jnp.float32) -> nn.Module:
        """The network, which computes in `dtype`; its parameters are float32."""
        raise NotImplementedError

    def cost(self, *sizes: Any) -> Cost:
        """One forward pass of one example; norms, residuals and the reading of embeddings are left out."""
        raise NotImplementedError

    def attentions(self) -> dict[str, str]:
        """The spec strings by their fields."""
        return {"attention": self.attention}

    def split_by_tensor(self) -> dict[str, int]:
        """Sizes that the mesh axis `tensor` splits, by their fields."""
        return {}
