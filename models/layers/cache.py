"""The memory of layers and models while they decode: prepared keys, values, or a running state.

`MultiHeadAttention.init_cache` makes a `Cache` for self-attention, whose arrays of `max_length` slots fill from the
left. `MultiHeadAttention.prepare` makes a `PreparedSource` for cross-attention, which stays as it is. Nothing is stored
twice: values that are the keys are left out, and so are keys that the score does not read.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attention.errors import UsageError


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cache:
    """One layer's memory of the preceding tokens. What a mechanism does not need is None.

    Attributes:
      length: Number of tokens in it.
      key: A tree of the prepared keys `(B, max_length, N, …)`.
      raw: Values before alignment, if the mechanism aligns them and they are not the keys.
      value: Values, after alignment if the mechanism has one; None if they are the keys.
      state: The state of a recurrence, which has no keys and values.
      latent: What keys and values are projected from, which replaces both; it begins with the turned key that all
        heads share, if there is one.
    """

    length: Int[Array, ""]
    key: Any = None
    raw: Float[Array, "*B L N H"] | None = None
    value: Float[Array, "*B L N H"] | None = None
    state: Any = None
    latent: Float[Array, "*B L C"] | None = None

    def last_key(self) -> Any:
        """Takes the prepared key of the last token, `(B, 1, N, …)`; zeros before any token, None without keys."""
        last = jnp.maximum(self.length - 1, 0)
        return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, last, 1, axis=1), self.key)

    def append(self, name: str, new: Any) -> tuple[Any, Cache]:
        """Writes new tokens after the last; returns all slots of the field, and the cache that holds them.

        Raises:
          UsageError: the tokens do not fit, if the length is known.
        """
        slots = jax.tree.map(lambda old, x: _written(old, x, self.length), getattr(self, name), new)
        return slots, dataclasses.replace(self, **{name: slots})


@functools.partial(jax.tree_util.register_dataclass, data_fields=["key", "value"], meta_fields=["width"])
@dataclasses.dataclass(frozen=True)
class PreparedSource:
    """The keys and values of a whole source for one cross-attention layer, the same for every token.

    Attributes:
      key: A tree of the prepared keys `(B, S, N, …)`, or None.
      value: Values, after alignment if the mechanism has one, or None if they are the keys.
      width: E, the width of the source's hidden states.
    """

    key: Any
    value: Float[Array, "B S N H"] | None
    width: int


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Decoding:
    """The state of a sequence-to-sequence model between tokens. The first axis of all arrays but scalars is B.

    Attributes:
      target: The part that every token changes: caches of layers, or a recurrent state.
      source: The part that depends only on the source.
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
