"""The learnable arrays of a score, and the checks of the options that a score has."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

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


def check_flags(options: Any, *names: str) -> None:
    """Raises UsageError unless the named options are True or False."""
    for name in names:
        if not isinstance(getattr(options, name), bool):
            raise UsageError(f"The option {name} must be True or False, not {getattr(options, name)!r}.")


def is_count(value: Any) -> bool:
    """Returns whether the value is a whole number above 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def is_number(value: Any) -> bool:
    """Returns whether the value is a finite number and no flag."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")
