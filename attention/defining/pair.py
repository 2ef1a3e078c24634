"""A score from a function of one pair, whose keyword arguments are its options and its learned numbers."""

import dataclasses
import inspect
from typing import Any

import jax
import jax.numpy as jnp
from jax.nn import initializers

from attention.defining.definition import check_definition
from attention.errors import UsageError
from attention.forms import At
from attention.parameters import Initialiser, Parameter, Params, Sizes
from attention.score import Score
from attention.types import Number

PLAIN = (bool, int, float, str)


@dataclasses.dataclass(frozen=True)
class Learned:
    """An array that a function of a pair learns.

    Attributes:
      init: Its initial number, or an initialiser `(key, shape, dtype)`.
      shape: Its axes, whole numbers or `'head'`, which is the width H of a head.
      positive: Whether its logarithm is learned, so that it stays above 0.
      over: What the axes in front of these count.
    """

    init: Number | Initialiser
    shape: tuple[int | str, ...] = ()
    positive: bool = False
    over: tuple[str, ...] = ()

    def __post_init__(self):
        if self.positive and (callable(self.init) or not self.init > 0):
            raise UsageError(f"A positive learned number starts at a number above 0, not at {self.init!r}.")
        if wrong := [axis for axis in self.shape if axis != "head" and (not isinstance(axis, int) or axis < 1)]:
            raise UsageError(f"The axes of a learned array are whole numbers from 1 on or 'head', not {wrong[0]!r}.")

    def parameter(self, sizes: Sizes) -> Parameter:
        """Declares it for these sizes."""
        lead = {"heads": sizes.heads, "queries": sizes.length, "keys": sizes.length}
        shape = *(lead[axis] for axis in self.over), *(sizes.head if axis == "head" else axis for axis in self.shape)
        if callable(self.init):
            return Parameter(shape, self.init, self.over)
        start = jnp.log(self.init) if self.positive else self.init
        return Parameter(shape, initializers.constant(start), self.over)


def per_head(init: Number | Initialiser, *shape: int | str, positive: bool = False) -> Learned:
    """Declares a learned number for each head, or an array of this shape for each head.

    Args:
      init: Where it starts, or an initialiser `(key, shape, dtype)` of the whole array, heads first.
      *shape: Whole numbers, or `'head'` for the width of a head.
      positive: Whether it stays positive; its logarithm is learned, as `log_NAME`.
    """
    return Learned(init, shape, positive, ("heads",))


def shared(init: Number | Initialiser, *shape: int | str, positive: bool = False) -> Learned:
    """Declares a learned number, or array, that all heads of a layer share; see `per_head`."""
    return Learned(init, shape, positive)


def pair(function: Any) -> type[Score]:
    """Makes a class of scores from a function of one query and one key, for use as a decorator.

        @attention.pair
        def laplacian(query, key, at, *, tau=per_head(0.1, positive=True)):
            return -tau * jnp.abs(query - key).sum()

    `query` and `key` are vectors of H numbers, and `at` has their positions; see `Score.pair`. A keyword argument is
    learned where its default is `per_head` or `shared`; where it is a plain value, it is an option, as in
    `laplacian(scale=2.0)`. The class is as if written by hand: `attention.attend(laplacian(), ...)`.

    Raises:
      UsageError: the function is not one of a pair; the message says what is wrong.
    """
    learned, options = _arguments(function)

    def parameters(self: Score, sizes: Sizes) -> dict[str, Parameter]:
        """Declares what is learned."""
        return {_stored(name, of): of.parameter(sizes) for name, of in learned.items()}

    def of_one_pair(self: Score, params: Params, query: jax.Array, key: jax.Array, at: At) -> Any:
        """Calls the function."""
        arrays = {name: params[_stored(name, of)] for name, of in learned.items()}
        arrays = {name: jnp.exp(x) if learned[name].positive else x for name, x in arrays.items()}
        return function(query, key, at, **arrays, **{name: getattr(self, name) for name in options})

    members = {"parameters": parameters, "pair": of_one_pair, "title": function.__name__, "__doc__": function.__doc__}
    fields = [(name, type(value), dataclasses.field(default=value)) for name, value in options.items()]
    made = dataclasses.make_dataclass(function.__name__, fields, bases=(Score,), namespace=members, frozen=True)
    made.__module__, made.__qualname__ = function.__module__, function.__qualname__  # where pickle finds it
    check_definition(made())
    return made


def _stored(name: str, of: Learned) -> str:
    return f"log_{name}" if of.positive else name


def _arguments(function: Any) -> tuple[dict[str, Learned], dict[str, Any]]:
    """Splits the keyword arguments of a pair's function into what is learned and the options."""
    if not inspect.isfunction(function):
        raise UsageError(f"attention.pair decorates a function of a query, a key and `at`, not {function!r}.")
    arguments = inspect.signature(function).parameters.values()
    first = [p.name for p in arguments if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = {p.name: p.default for p in arguments if p.kind is p.KEYWORD_ONLY}
    if len(first) != 3 or len(first) + len(rest) != len(arguments):
        raise UsageError(
            f"{function.__name__} must take a query, a key and `at`, and all else by keyword, as in "
            f"def {function.__name__}(query, key, at, *, tau=per_head(1.0)), but it takes "
            f"{inspect.signature(function)}."
        )
    for name, value in rest.items():
        if not isinstance(value, (Learned, *PLAIN)):
            raise UsageError(
                f"The argument {name} of {function.__name__} needs a default: per_head(...) or shared(...) where it is "
                f"learned, or a number, True, False or a string where it is an option."
            )
    learned = {name: value for name, value in rest.items() if isinstance(value, Learned)}
    return learned, {name: value for name, value in rest.items() if name not in learned}
