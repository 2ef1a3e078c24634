"""The learnable arrays of a score, and the sizes that they are made for."""

import dataclasses
from collections.abc import Callable

import jax
import numpy as np

from attention.errors import UsageError

Initialiser = Callable[..., jax.Array]
Params = dict[str, jax.Array]
OVER = ("heads", "queries", "keys")


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes for which a layer is built.

    Attributes:
      model: D, the width of the layer's inputs.
      heads: N, the number of heads.
      head: H, the width of a head.
      length: ℓ, the length of the longest sequence.
    """

    model: int
    heads: int
    head: int
    length: int


@dataclasses.dataclass(frozen=True)
class Parameter:
    """The shape and the initialiser of one array of a score.

    Arrays whose names end in `kernel` have weight decay, and a mesh splits their first axis.

    Attributes:
      shape: The whole shape.
      init: Called with a random key, the shape and the dtype.
      over: What the leading axes of the shape count, in this order: `heads`, and the positions of `queries` and of
        `keys`. `Score.pair` is given the part of its own head, query and key.
    """

    shape: tuple[int, ...]
    init: Initialiser
    over: tuple[str, ...] = ()

    def __post_init__(self):
        if self.over != tuple(name for name in OVER if name in self.over):
            raise UsageError(f"A parameter is over a tuple of {', '.join(OVER)}, in this order, not {self.over!r}.")


def lift(x: jax.Array | np.ndarray, rank: int) -> jax.Array | np.ndarray:
    """Adds leading axes of 1, so that an array broadcasts to one of that rank."""
    return x.reshape((1,) * (rank - x.ndim) + x.shape)


def trail(x: jax.Array, rank: int) -> jax.Array:
    """Adds axes of 1 behind an array's own, up to that rank."""
    return x.reshape(x.shape + (1,) * (rank - x.ndim))
