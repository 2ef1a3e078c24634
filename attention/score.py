"""What a mechanism's score is to the models: options as fields, parameters by name, and how to attend with them."""

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
    """What a layer is built for.

    Attributes:
      model: D, the width of the layer's inputs.
      heads: N.
      head: H, the width of a head.
      length: ℓ, the most tokens.
    """

    model: int
    heads: int
    head: int
    length: int


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One array of a score: its shape, and how it starts.

    Weight decay is for names that end in `kernel`, and a mesh splits the first axis of those.
    """

    shape: tuple[int, ...]
    init: Initialiser


class Score:
    """How queries and keys are compared, and what that does to the values.

    A subclass is a frozen dataclass whose fields are the options that spec strings take. Only `attend` and `cost`
    must be written; a mechanism with parameters, a key worth preparing, or a state has more to say.

    Attributes:
      normaliser: What makes weights of scores, for tables, such as `softmax`, `sum` or `none`.
      implementations: Those that serve it, with the options it has.
      cross: Whether it may attend from one sequence to another.
      reads_query: Whether the queries count, or their number alone; then a row has `query='none'`.
      reads_key: Whether there are keys; else a row has `key='none'`, and they are None.
      ties_values: Whether prepared keys can be the values too.
    """

    normaliser: ClassVar[str] = "softmax"
    implementations: tuple[str, ...] = ("reference", "xla")
    cross: bool = True
    reads_query: bool = True
    reads_key: bool = True
    ties_values: bool = True

    def parameters(self, sizes: Sizes) -> dict[str, Parameter]:
        """What there is to learn, by name."""
        return {}

    def query_gain(self, head: int) -> float:
        """Factor of the query projection's initial weights, such that scores of heads of that width start near 1."""
        return 1.0

    def prepare_query(self, params: Params, query: jax.Array, implementation: str) -> Any:
        """The queries `(*B, T, N, H)` in the form that `attend` takes."""
        return query

    def prepare_key(self, params: Params, key: jax.Array | None, source: jax.Array, implementation: str) -> Any:
        """The keys `(*B, S, N, H)` in the form that `attend` takes and that a decode cache keeps.

        Args:
          params: The arrays of `parameters`.
          key: The keys; None where none are read.
          source: The layer's inputs `(*B, S, D)` that the keys were projected from.
          implementation: How the scores will be computed.
        """
        return key

    def attend(
        self, params: Params, query: Any, key: Any, value: Float[Array, "*B S N V"], **options: Any
    ) -> jax.Array | tuple[jax.Array, jax.Array]:
        """Output `(*B, T, N, V)`, and the weights if asked for.

        Keys go through `mask.without_unreachable`, rows with nothing allowed give zeros, and dropout takes its bits
        from `attention.dropout.keep`. With a cache S is its size, not the number of tokens in it.

        Args:
          params: The arrays of `parameters`.
          query: From `prepare_query`.
          key: From `prepare_key`.
          value: Values.
          **options: `mask`, `bias`, `dropout_rate`, `dropout_key`, `return_weights` and `implementation`, as
            `attention.dot_product_attention` describes them.
        """
        raise NotImplementedError

    @property
    def keeps_keys(self) -> bool:
        """Whether `prepare_key` returns the keys unchanged."""
        return type(self).prepare_key is Score.prepare_key

    def start(self, sizes: Sizes, batch: tuple[int, ...], dtype: Any) -> Any | None:
        """The state before the first token of a mechanism that is a recurrence; None for all that need every key."""
        return None

    def advance(
        self, params: Params, query: Any, key: Any, value: jax.Array, state: Any, mask: Mask
    ) -> tuple[jax.Array, Any]:
        """Causal output of the next tokens, whose first is the mask's first, and the state after them."""
        raise NotImplementedError

    def cost(self, sizes: Sizes, queries: int, keys: int) -> Cost:
        """Work of one forward pass over one sequence, from projected queries, keys and values."""
        raise NotImplementedError(f"{type(self).__name__} has no cost; say what one forward pass takes.")


def check_flags(options: Any, *names: str) -> None:
    """Raises UsageError unless the named options are True or False."""
    for name in names:
        if not isinstance(getattr(options, name), bool):
            raise UsageError(f"The option {name} must be True or False, not {getattr(options, name)!r}.")


def is_count(value: Any) -> bool:
    """Whether it is a whole number above 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
