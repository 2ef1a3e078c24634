"""The learnable arrays of a score, and the kinds of options that a score has."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, get_type_hints

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
    """Returns an array with leading axes of 1, as it needs to be broadcast to one of that rank."""
    return x.reshape((1,) * (rank - x.ndim) + x.shape)


def trail(x: jax.Array, rank: int) -> jax.Array:
    """Returns an array with axes of 1 behind its own, up to that rank."""
    return x.reshape(x.shape + (1,) * (rank - x.ndim))


class Valid(NamedTuple):
    """What an option may be, as metadata of its type.

    Attributes:
      what: As it reads in an error.
      holds: Whether a value is valid.
    """

    what: str
    holds: Callable[[Any], bool]


def text_like(example: str) -> Valid:
    """Returns what an option may be that is a string, such as the example."""
    return Valid(f"a string such as {example!r}", lambda x: isinstance(x, str))


def check_options(options: Any) -> None:
    """Raises UsageError unless the options, fields of a dataclass, are what their types say, such as `Count`."""
    for name, valid in _checks(type(options)):
        if not valid.holds(value := getattr(options, name)):
            raise UsageError(f"The option {name} must be {valid.what}, not {value!r}.")


@functools.cache
def _checks(cls: type) -> list[tuple[str, Valid]]:
    hints = get_type_hints(cls, include_extras=True)
    kinds = {field.name: Flag if hints[field.name] is bool else hints[field.name] for field in dataclasses.fields(cls)}
    return [(name, valid) for name, kind in kinds.items() for valid in getattr(kind, "__metadata__", ())]


def is_count(value: Any) -> bool:
    """Returns whether the value is a whole number above 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def is_number(value: Any) -> bool:
    """Returns whether the value is a finite number and no flag."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")


Flag = Annotated[bool, Valid("True or False", lambda x: isinstance(x, bool))]
Count = Annotated[int, Valid("a whole number above 0", is_count)]
Size = Annotated[int, Valid("a whole number of at least 0", lambda x: x is not False and (x == 0 or is_count(x)))]
Positive = Annotated[float | int, Valid("a number above 0", lambda x: is_number(x) and x > 0)]
NotNegative = Annotated[float | int, Valid("a number of at least 0", lambda x: is_number(x) and x >= 0)]
