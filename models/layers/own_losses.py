"""The losses that layers have of their own in training, beside that of the task."""

from typing import Any

import flax.linen as nn
import jax
from jaxtyping import Array, Float

NAME = "own_loss"
COLLECTION = "own_losses"


def with_own_loss(model: nn.Module, *inputs: Any, **options: Any) -> tuple[Any, dict[str, Float[Array, " B"]]]:
    """Calls `model.apply`, and adds the `own_loss` of each example, the sum of its layers'; {} if no layer has one."""
    output, kept = model.apply(*inputs, mutable=[COLLECTION], **options)
    losses = jax.tree.leaves(kept)
    return output, {NAME: sum(losses)} if losses else {}


def loss_asked_of(module: nn.Module) -> bool:
    """Tells whether a layer's loss is asked for, which `keep_loss` then takes."""
    return module.is_mutable_collection(COLLECTION) and not module.is_initializing()


def keep_loss(module: nn.Module, loss: Float[Array, " B"]) -> None:
    """Keeps the loss of a layer for `with_own_loss`."""
    module.sow(COLLECTION, NAME, loss, reduce_fn=lambda _, new: new, init_fn=lambda: None)
