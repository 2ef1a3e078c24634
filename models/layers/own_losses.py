"""The losses that layers have of their own in training, beside the task's."""

from typing import Any

import flax.linen as nn
import jax
from jaxtyping import Array, Float

NAME = "own_loss"
COLLECTION = "own_losses"


def with_own_loss(model: nn.Module, *inputs: Any, **options: Any) -> tuple[Any, dict[str, Float[Array, " B"]]]:
    """Calls `model.apply` and sums the layers' losses of each example as `own_loss`; {} if no layer has one."""
    output, collected = model.apply(*inputs, mutable=[COLLECTION], **options)
    losses = jax.tree.leaves(collected)
    return output, {NAME: sum(losses)} if losses else {}
