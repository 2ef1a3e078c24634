"""The interface between scores and models: options as fields, parameters by name, and how to attend with them."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
from jaxtyping import Array, Float

from attention.errors import UsageError
from attention.mask import Mask
from attention.operations import Cost

Initialiser = Callable[..., jax.Array]
Params = dict[str, jax.Array]


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
    """

    shape: tuple[int, ...]
    init: Initialiser


class Score:
    """How queries are compared with keys, and how the scores weigh the values.

    A subclass is a frozen dataclass whose fields are the options in spec strings. It must define `attend` and `cost`;
    the other methods are for parameters, prepared queries and keys, and recurrent states.

    Attributes:
      normaliser: How scores become weights, as tables show it: `softmax`, `sum` or `none`.
      implementations: The implementations that support it with its options.
      cross: Whether it supports cross-attention.
      reads_query: Whether the contents of queries count; if only their number does, a mechanism has `query='none'`.
      reads_key: Whether there are keys; if not, a mechanism has `key='none'` and the keys are None.
      ties_values: Whether the prepared keys can also be the values.
    """

    normaliser: ClassVar[str] = "softmax"
    implementations: tuple[str, ...] = ("reference", "xla")
    cross: bool = True
    reads_query: bool = True
    reads_key: bool = True
    ties_values: bool = True

    def parameters(self, sizes: Sizes) -> dict[str, Parameter]:
        """Returns the learnable arrays by name."""
        return {}

    def query_gain(self, head: int) -> float:
        """Returns the factor of the query projection's initial weights that makes initial scores of order 1."""
        return 1.0

    def prepare_query(self, params: Params, query: jax.Array, implementation: str) -> Any:
        """Returns the queries `(*B, T, N, H)` in the form that `attend` takes."""
        return query

    def prepare_key(self, params: Params, key: jax.Array | None, source: jax.Array, implementation: str) -> Any:
        """Returns the keys `(*B, S, N, H)` in the form that `attend` takes and that a decode cache stores.

        Args:
          params: The arrays that `parameters` declares.
          key: The keys, or None for a score without keys.
          source: The layer's inputs `(*B, S, D)` that the keys were projected from.
          implementation: The implementation that will compute the scores.
        """
        return key

    def attend(
        self, params: Params, query: Any, key: Any, value: Float[Array, "*B S N V"], **options: Any
    ) -> jax.Array | tuple[jax.Array, jax.Array]:
        """Returns the output `(*B, T, N, V)`, and the weights if `return_weights` is set.

        Keys pass through `mask.without_unreachable`, queries that may attend to no key give zeros, and dropout takes
        its bits from `attention.dropout.keep`. With a cache, S is its size, not the number of tokens in it.

        Args:
          params: The arrays that `parameters` declares.
          query: The queries from `prepare_query`.
          key: The keys from `prepare_key`.
          value: The values.
          **options: `mask`, `bias`, `dropout_rate`, `dropout_key`, `return_weights` and `implementation`, as
            `attention.dot_product_attention` describes them.
        """
        raise NotImplementedError

    @property
    def keeps_keys(self) -> bool:
        """Returns whether `prepare_key` returns the keys unchanged."""
        return type(self).prepare_key is Score.prepare_key

    def start(self, sizes: Sizes, batch: tuple[int, ...], dtype: Any) -> Any | None:
        """Returns a recurrence's state before the first token; None for mechanisms that need every key."""
        return None

    def advance(
        self, params: Params, query: Any, key: Any, value: jax.Array, state: Any, mask: Mask
    ) -> tuple[jax.Array, Any]:
        """Returns the causal output of the next tokens, which start at the mask's first, and the state after them."""
        raise NotImplementedError

    def cost(self, sizes: Sizes, queries: int, keys: int) -> Cost:
        """Returns the cost of one forward pass over one sequence, given projected queries, keys and values."""
        raise NotImplementedError(f"{type(self).__name__} has no cost; say what one forward pass takes.")


def check_flags(options: Any, *names: str) -> None:
    """Raises UsageError unless the named options are True or False."""
    for name in names:
        if not isinstance(getattr(options, name), bool):
            raise UsageError(f"The option {name} must be True or False, not {getattr(options, name)!r}.")


def is_count(value: Any) -> bool:
    """Returns whether the value is a whole number above 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
