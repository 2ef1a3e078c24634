"""What every kernel knows of a call when it is compiled, and with it which tiles see each other and which pairs."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from attention.dropout import keep_columns, words_of
from attention.kernels.call import Call
from attention.mask import Bounds, keys_in_sight, near, queries_in_sight


@dataclasses.dataclass(frozen=True, kw_only=True)
class KernelPlan:
    """The static part of a kernel, known when it is compiled.

    Attributes:
      queries: T.
      keys: S.
      block: Queries and keys of a tile.
      causal: See `Mask`.
      window: See `Mask`.
      limited: Whether the array of keys ends in padding.
      rate: Rate of dropout.
      platform: `tpu`, `gpu` or `interpret`.
    """

    queries: int
    keys: int
    block: tuple[int, int]
    causal: bool
    window: int
    limited: bool
    rate: float
    platform: str


def plan_of(call: Call, block: tuple[int, int], platform: str) -> dict[str, Any]:
    """Gives the fields of `KernelPlan`."""
    queries, keys = call.scores_shape[-2:]
    limited = call.mask.key_lengths is not None or keys % block[1] > 0
    sizes = {"queries": queries, "keys": keys, "block": block, "limited": limited, "platform": platform}
    return sizes | {"causal": call.mask.causal, "window": call.mask.window, "rate": call.dropout_rate}


def tile_of(position: Any, size: int) -> jax.Array:
    """Finds the tile that holds a position; 0 if the position is negative."""
    if isinstance(position, int):
        return jnp.int32(max(position, 0) // size)
    return jax.lax.div(jnp.maximum(position, 0), jnp.int32(size))


def tiles_of_keys(plan: KernelPlan, first: Any, rows: int, offset: Any, length: Any, size: int) -> tuple[Any, Any]:
    """Finds the first and the last tile of keys that some of `rows` queries see; there are none if last < first.

    Queries are numbered from the mask's offset on, `length` is the number of real keys, and `size` the keys of a tile.
    """
    bounds = keys_in_sight(offset + first, rows, plan.causal, plan.window)
    first, last = _tiles(bounds, size, -(-plan.keys // size))
    return first, jnp.minimum(last, tile_of(length - 1, size)) if plan.limited else last


def tiles_of_queries(plan: KernelPlan, first: Any, rows: int, offset: Any, size: int) -> tuple[Any, Any]:
    """Finds the first and the last tile of queries that see some of `rows` keys; see `tiles_of_keys`."""
    return _tiles(queries_in_sight(first - offset, rows, plan.causal, plan.window), size, -(-plan.queries // size))


def _tiles(bounds: Bounds, size: int, count: int) -> tuple[Any, Any]:
    first, last = (None if position is None else tile_of(position, size) for position in bounds)
    end = jnp.int32(count - 1)
    return jnp.int32(0) if first is None else first, end if last is None else jnp.minimum(end, last)


def kept(plan: KernelPlan, seed: tuple[Any, Any], sequence: Any, query: jax.Array, key: jax.Array) -> jax.Array:
    """Tells which weights dropout keeps, as `attention.dropout.keep` does, by the numbers of queries and keys."""
    row = sequence * jnp.uint32(plan.queries) + query.astype(jnp.uint32)
    return keep_columns(words_of(seed, row), key.astype(jnp.uint32), plan.rate)


def conditions(plan: KernelPlan, offset: Any, length: Any, query: jax.Array, key: jax.Array) -> list[jax.Array]:
    """Lists what must hold for a query to see a key, by their numbers: causality, the window, and real keys."""
    real = [key < jnp.minimum(length, plan.keys)] if plan.limited else []
    return near(offset + query, key, plan.causal, plan.window) + real


def sees_all(plan: KernelPlan, first: Any, start: Any, size: tuple[int, int], length: Any) -> Any:
    """Tells whether causality, the window and real keys allow all pairs of a tile.

    Args:
      first: The position of its first query, the mask's offset counted.
      start: Its first key.
      size: Its queries and keys.
      length: The number of real keys.
    """
    (queries, keys), needed = size, []
    if plan.causal:
        needed.append(start + keys - 1 <= first)
    if plan.window:
        needed += [first + queries - 1 - start < plan.window, start + keys - 1 - first < plan.window]
    if plan.limited:
        needed.append(start + keys <= jnp.minimum(length, plan.keys))
    return functools.reduce(jnp.logical_and, needed) if needed else True
