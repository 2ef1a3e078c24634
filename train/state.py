"""The state of a training: everything that a step changes."""

from typing import Any

import flax.struct
import jax
import optax
from flax.traverse_util import flatten_dict
from jaxtyping import Bool

Params = Any
ATTENTION = ("attention", "coefficients")  # names of the layer in models


@flax.struct.dataclass
class TrainState:
    """The model and its optimizer as a pytree, which a checkpoint holds.

    Attributes:
      step: The optimizer steps taken.
      params: The parameters.
      opt_state: The optimizer's state.
      ema: The moving average of the parameters; empty if there is none.
      alive: Whether further steps change it; a loss that is not finite or the end of patience stops it for good.
    """

    step: jax.Array
    params: Params
    opt_state: optax.OptState
    ema: Params
    alive: Bool[jax.Array, "*R"]

    def averaged(self) -> Params:
        """Chooses the parameters to evaluate: the moving average if there is one."""
        return self.ema or self.params


def count_parameters(params: Params) -> int:
    """Counts the numbers in a tree of arrays or of shapes."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def first_attention(params: Params) -> Params:
    """Finds the parameters of a model's first attention layer; {} if it has none.

    Layers are ordered by number, and an encoder's come before a decoder's.
    """
    paths = [path[: path.index(name) + 1] for path in flatten_dict(params) for name in ATTENTION if name in path]
    first = min(paths, key=lambda path: (len(path), path[0].startswith("decoder"), len(path[0]), path), default=None)
    for name in first or ():
        params = params[name]
    return params if first else {}
