"""Base of the models' configs."""

from typing import Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike

from attention import specs
from attention.defining import files
from attention.operations import Cost
from attention.types import Checked


class ModelConfig(Checked):
    """Base of the models' configs. `build` and `cost` take the same sizes, which are those of the data.

    Attributes:
      pretrained: Published weights to start from, for models that have them; '' starts from random weights.
    """

    PATH: ClassVar[str] = "model."

    attention: str
    pretrained: ClassVar[str] = ""

    def build(self, *sizes: Any, dtype: DTypeLike = jnp.float32) -> nn.Module:
        """Makes the network, which computes in its field `dtype` and has float32 parameters.

        Its other fields are `config`; `length`, the tokens that attention sees; for a classifier `classes`, the number
        of logits; and for a model of text `vocabulary`, the number of tokens.
        """
        raise NotImplementedError

    def cost(self, *sizes: Any) -> Cost:
        """Counts the cost of one forward pass of one example, without norms, residuals and embedding look-ups."""
        raise NotImplementedError

    def attentions(self) -> dict[str, str]:
        """Lists the spec strings by field name."""
        return {"attention": self.attention}

    @property
    def has_own_loss(self) -> bool:
        """Whether layers have losses of their own in training; see `models.layers.MultiHeadAttention`."""
        return False

    def code(self) -> dict[str, str]:
        """Reads the user's files with its mechanisms, by file name."""
        return files.texts(name for spec in self.attentions().values() for name in specs.of_files(spec))

    def remarks(self) -> list[str]:
        """Explains what its fields mean together, in lines to print before the first step."""
        return []

    def split_by_tensor(self) -> dict[str, int]:
        """Lists the sizes, by field name, that the mesh axis `tensor` splits."""
        return {}

    def why_whole(self) -> str:
        """Gives the reason, as part of a sentence, why devices cannot share a sequence's tokens; '' if they can."""
        return f"model.name={self.name!r} has no attention among tokens that devices could share"
