"""The state of a training: everything that a step changes."""

from typing import Any

import flax.struct
import jax
import optax
from jaxtyping import Bool

Params = Any


@flax.struct.dataclass
class TrainState:
    """The model and its optimizer as a pytree, which a checkpoint holds.

    Attributes:
      step: Optimizer steps taken.
      params: The parameters.
      opt_state: The optimizer's state.
      ema: The moving average of the parameters; empty where there is none.
      alive: Whether further steps change it; a loss that is not finite or the end of patience stops it for good.
    """

    step: jax.Array
    params: Params
    opt_state: optax.OptState
    ema: Params
    alive: Bool[jax.Array, "*R"]

    def averaged(self) -> Params:
        """Returns the parameters to evaluate: the moving average where there is one."""
        return self.ema or self.params


def count_parameters(params: Params) -> int:
    """Counts the numbers in a tree of arrays or of shapes."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))
