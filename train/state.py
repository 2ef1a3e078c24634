"""Everything that a training step changes."""

from typing import Any

import flax.struct
import jax
import optax

Params = Any


@flax.struct.dataclass
class TrainState:
    """A pytree: what a checkpoint holds of the model and its optimizer.

    Attributes:
      step: Optimizer steps taken.
      params: The parameters.
      opt_state: The optimizer's.
      ema: Moving average of the parameters; empty where there is none.
    """

    step: jax.Array
    params: Params
    opt_state: optax.OptState
    ema: Params

    def averaged(self) -> Params:
        """The parameters to evaluate: the moving average where there is one."""
        return self.ema or self.params


def count_parameters(params: Params) -> int:
    """Numbers in a tree of arrays, or of their shapes."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))
