"""What layers and models keep while decoding: prepared keys, values, or a running state.

`MultiHeadAttention.init_cache` makes one for self-attention, whose arrays of `max_length` slots fill from the left, and
`MultiHeadAttention.prepare` makes a `PreparedSource` for cross-attention, which no token changes. Each fact is kept
once: no values where they are the keys, no keys where the score looks at none.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
from jaxtyping import Array, Float, Int

from attention.errors import UsageError


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cache:
    """One layer's memory of the tokens so far.

    Attributes:
      length: How many tokens are in it.
      key: Keys as the score prepared them, `(B, max_length, N, …)` each, or None.
      raw: Values before their alignment, where there is one and they are not the keys.
      value: Values, aligned if the mechanism does, or None where they are the keys.
      state: Of a recurrence, in place of keys and values.
    """

    length: Int[Array, ""]
    key: Any = None
    raw: Float[Array, "*B L N H"] | None = None
    value: Float[Array, "*B L N H"] | None = None
    state: Any = None

    def append(self, name: str, new: Any) -> tuple[Any, Cache]:
        """All slots of one field with new tokens written after the last, and the cache that holds them.

        Raises:
          UsageError: there is no room, where the length is known.
        """
        slots = jax.tree.map(lambda old, x: _written(old, x, self.length), getattr(self, name), new)
        return slots, dataclasses.replace(self, **{name: slots})

    def advance(self, tokens: int) -> Cache:
        """With so many tokens more."""
        return dataclasses.replace(self, length=self.length + tokens)


@functools.partial(jax.tree_util.register_dataclass, data_fields=["key", "value"], meta_fields=["width"])
@dataclasses.dataclass(frozen=True)
class PreparedSource:
    """What one cross-attention layer sees of a whole source, the same for every token that attends to it.

    Attributes:
      key: Keys as the score prepared them, `(B, S, N, …)` each, or None.
      value: Values, aligned if the mechanism does, or None where they are the keys.
      width: E, of the inputs they were made of.
    """

    key: Any
    value: Float[Array, "B S N H"] | None
    width: int


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Decoding:
    """What a model that writes a target to a source keeps between tokens. The first axis of all but scalars is B.

    Attributes:
      target: What every token changes: caches of layers, or a recurrent state.
      source: What the source alone decides, and no token changes.
    """

    target: Any
    source: Any


def _written(old: jax.Array, new: jax.Array, length: Any) -> jax.Array:
    if (old.shape[0], *old.shape[2:]) != (new.shape[0], *new.shape[2:]):
        raise UsageError(
            f"A cache for a batch of {old.shape[0]} with {old.shape[2:]} a token was given {new.shape[0]} with "
            f"{new.shape[2:]}; make it for the inputs with init_cache."
        )
    room = old.shape[1]
    if not isinstance(length, jax.core.Tracer) and int(length) + new.shape[1] > room:
        raise UsageError(
            f"A cache of {room} tokens holds {int(length)} already, so {new.shape[1]} more do not fit; "
            "make it with a greater max_length."
        )
    return jax.lax.dynamic_update_slice_in_dim(old, new.astype(old.dtype), length, axis=1)
