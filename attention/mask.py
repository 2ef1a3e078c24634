"""Masks: which query may attend to which key, kept as structure until an implementation needs an array."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from attention.errors import UsageError
from attention.parameters import lift, trail

Bounds = tuple[int | jax.Array | None, int | jax.Array | None]
BY_POSITION = {"causal", "key_lengths"}  # the kinds of mask that a mechanism without scores of pairs honours
BY_TOKEN = {*BY_POSITION, "segments"}  # and those that a state honours, which is emptied where a segment begins


def near(query: jax.Array, key: jax.Array, causal: bool, window: int) -> list[jax.Array]:
    """Lists the conditions that causality and a window put on positions that broadcast to pairs; there may be none."""
    conditions = [key <= query] if causal else [key - query < window] if window else []
    return conditions + ([query - key < window] if window else [])


def keys_in_sight(first: int | jax.Array, queries: int, causal: bool, window: int) -> Bounds:
    """Finds the first and the last position that some of the `queries` from `first` on may see; None means no bound."""
    last = first + queries - 1
    return first - window + 1 if window else None, last if causal else last + window - 1 if window else None


def queries_in_sight(first: int | jax.Array, keys: int, causal: bool, window: int) -> Bounds:
    """Finds the first and the last position from which some of the `keys` from `first` on may be seen."""
    lowest = first if causal else first - window + 1 if window else None
    return lowest, first + keys - 1 + window - 1 if window else None


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True)
class Mask:
    """Which query may attend to which key. True means may attend, and every given condition must allow it.

    Query i is at position `query_offset + i` of the keys' sequence, so one token that is decoded against a cache
    of j keys has `query_offset = j - 1`.

    Attributes:
      dense: Boolean array that broadcasts to the scores `(*B, N, T, S)` and has their rank.
      key_lengths: Number of real keys `(*B)`; the keys after them are padding.
      query_segments: Segment of each query `(*B, T)`; a query sees only the keys of its own segment.
      key_segments: Segment of each key `(*B, S)`.
      query_offset: Position of the first query among the keys; a Python integer is static under `jax.jit`.
      causal: Whether a query sees no key after its own position.
      window: A query sees only keys less than this many positions away; 0 means no limit.
    """

    dense: Bool[Array, ...] | None = None
    key_lengths: Int[Array, "*B"] | None = None
    query_segments: Int[Array, "*B T"] | None = None
    key_segments: Int[Array, "*B S"] | None = None
    query_offset: int | Int[Array, ""] = 0
    causal: bool = False
    window: int = 0

    def __post_init__(self):
        if self.window < 0:
            raise UsageError(f"A mask's window must not be negative, but it is {self.window}; 0 means no limit.")
        if (self.query_segments is None) != (self.key_segments is None):
            raise UsageError("A mask needs query_segments and key_segments together; one of them is missing.")

    def tree_flatten_with_keys(self):
        """Gives the arrays as leaves; Python numbers and flags are part of the tree's structure."""
        static = {"causal": self.causal, "window": self.window}
        arrays = {name: getattr(self, name) for name in ("dense", "key_lengths", "query_segments", "key_segments")}
        (static if isinstance(self.query_offset, int) else arrays)["query_offset"] = self.query_offset
        leaves = [(jax.tree_util.GetAttrKey(name), value) for name, value in arrays.items()]
        return leaves, (tuple(arrays), tuple(static.items()))

    @classmethod
    def tree_unflatten(cls, structure, leaves):
        """Builds a mask from its leaves without checks, because leaves may be placeholders."""
        names, static = structure
        mask = object.__new__(cls)
        for name, value in (*zip(names, leaves, strict=True), *static):
            object.__setattr__(mask, name, value)
        return mask

    def parts(self) -> frozenset[str]:
        """Names the kinds of mask in force: any of causal, window, key_lengths, segments, dense."""
        present = {
            "causal": self.causal,
            "window": self.window > 0,
            "key_lengths": self.key_lengths is not None,
            "segments": self.query_segments is not None,
            "dense": self.dense is not None,
        }
        return frozenset(name for name, given in present.items() if given)

    def require(self, honoured: set[str], by: str) -> None:
        """Raises UsageError unless every kind of mask in force is among `honoured`; `by` names the mechanism."""
        if refused := sorted(self.parts() - honoured):
            hint = "; for a causal array write attention.Mask(causal=True)" if "dense" in refused else ""
            honours = ", ".join(sorted(honoured))
            raise UsageError(f"{by} cannot honour a mask of kind {', '.join(refused)}; it honours {honours}{hint}.")

    def in_step(self, queries: int, keys: int) -> bool:
        """Tells whether queries and keys are known to be at the same positions: as many of both, from 0 on."""
        return queries == keys and isinstance(self.query_offset, int) and self.query_offset == 0

    def check(self, batch: tuple[int, ...], queries: int, keys: int) -> None:
        """Raises UsageError unless lengths and segments fit the batch; an axis of size 1 serves all sequences."""
        trailing = {"key_lengths": (), "query_segments": (queries,), "key_segments": (keys,)}
        for name, sizes in trailing.items():
            array, full = getattr(self, name), (*batch, *sizes)
            if array is None or array.shape == full:
                continue
            lead = array.shape[: len(batch)]
            if array.shape[len(batch) :] != sizes or any(n not in (1, m) for n, m in zip(lead, batch, strict=True)):
                raise UsageError(f"The mask's {name} must have the shape {full}, but it has {array.shape}.")

    def positions(self, queries: int, keys: int) -> Bool[Array, "T S"]:
        """Makes the causal and window conditions an array, without the others."""
        query = self.query_offset + jax.lax.broadcasted_iota(jnp.int32, (queries, keys), 0)
        key = jax.lax.broadcasted_iota(jnp.int32, (queries, keys), 1)
        conditions = near(query, key, self.causal, self.window)
        return functools.reduce(jnp.logical_and, conditions, jnp.ones((queries, keys), bool))

    def materialise(self, queries: int, keys: int, rank: int) -> Bool[Array, "*B N T S"] | None:
        """Makes the whole mask one array that broadcasts to scores `(*B, N, T, S)` of the given rank.

        None means that every query may attend to every key.
        """
        conditions = []
        if self.causal or self.window:
            conditions.append(self.positions(queries, keys))
        if self.key_lengths is not None:
            conditions.append(jnp.expand_dims(self.real_keys(keys), (-3, -2)))
        if self.query_segments is not None:
            same = jnp.expand_dims(self.query_segments, -1) == jnp.expand_dims(self.key_segments, -2)
            conditions.append(jnp.expand_dims(same, -3))
        if self.dense is not None:
            if self.dense.ndim != rank:
                raise UsageError(
                    f"A dense mask needs the scores' rank {rank}, but its shape is {self.dense.shape}; add axes of 1."
                )
            conditions.append(self.dense)
        return functools.reduce(jnp.logical_and, (lift(x, rank) for x in conditions)) if conditions else None

    def real_keys(self, keys: int, first: int | jax.Array = 0) -> Bool[Array, "*B S"]:
        """Gives True at the keys from position `first` on that are not padding, those before `key_lengths`."""
        lengths = jnp.expand_dims(self.key_lengths - first, -1)
        return jax.lax.broadcasted_iota(jnp.int32, (*lengths.shape[:-1], keys), lengths.ndim - 1) < lengths

    def reachable_keys(self, queries: int, keys: int, rank: int) -> Bool[Array, "*B S"] | None:
        """Gives True at the keys that some query of some head may attend to; None if that holds for all keys."""
        kinds, first = self.parts(), self.query_offset
        if not kinds or (kinds == {"causal"} and isinstance(first, int) and first + queries >= keys):
            return None
        if "dense" in kinds:
            return self.materialise(queries, keys, rank).any(axis=(-3, -2))
        if "segments" in kinds:
            return self._reachable_by_blocks(queries, keys, rank)
        lowest, highest = queries_in_sight(jax.lax.iota(jnp.int32, keys), 1, self.causal, self.window)
        last = first + queries - 1
        first = first if lowest is None else jnp.maximum(first, lowest)
        last = last if highest is None else jnp.minimum(last, highest)
        seen = jnp.broadcast_to(first <= last, (keys,))
        return lift(seen, rank - 2) if self.key_lengths is None else self.real_keys(keys) & lift(seen, rank - 2)

    def _reachable_by_blocks(self, queries: int, keys: int, rank: int) -> Bool[Array, "*B S"]:
        """Finds the reachable keys from the mask of one block of queries at a time, to bound the memory."""
        size = min(256, queries)

        def reachable_from(start):
            start = jnp.minimum(start, queries - size)
            segments = jax.lax.dynamic_slice_in_dim(self.query_segments, start, size, -1)
            block = dataclasses.replace(self, query_segments=segments, query_offset=self.query_offset + start)
            return block.materialise(size, keys, rank).any(axis=(-3, -2))

        return jax.lax.map(reachable_from, jnp.arange(0, queries, size, dtype=jnp.int32)).any(0)

    def without_unreachable(self, x: Float[Array, ...], queries: int, rank: int) -> Float[Array, ...]:
        """Replaces `x` by zeros at the keys that no query may attend to, which drops their contents, NaN included.

        Args:
          x: Keys, values or the inputs they are projected from, `(*B, S, ...)`.
          queries: T.
          rank: Rank of the scores `(*B, N, T, S)`; it decides which axis of `x` is S.
        """
        *batch, keys = x.shape[: rank - 2]
        self.check(tuple(batch), queries, keys)
        reachable = self.reachable_keys(queries, keys, rank)
        return x if reachable is None else jnp.where(trail(reachable, x.ndim), x, jnp.zeros((), x.dtype))

    def at_queries(self, x: Float[Array, ...], queries: int, axis: int) -> Float[Array, ...]:
        """Takes the tokens of `x`, an axis of keys, at the positions of the queries; zeros beyond them."""
        return jnp.take(x, self.query_offset + jnp.arange(queries), axis=axis, mode="fill", fill_value=0)


def in_blocks(x: Array, size: int) -> Array:
    """Cuts `(…, S)` into blocks `(…, C, size)`; the last one is filled with 0 or False."""
    padded = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % size)])
    return padded.reshape(*x.shape[:-1], padded.shape[-1] // size, size)


def choose_blocks(scores: Float[Array, "*B T C"], visible: Bool[Array, "*B T C"], top: int) -> Bool[Array, "*B T C"]:
    """Chooses blocks of keys by content: for each query `top` of the blocks that it sees.

    These are the last block that it sees, which is its own under a causal mask, and those with the highest scores.

    Args:
      scores: The score of each query and block.
      visible: Whether the query sees a key of the block.
      top: The number of blocks, the last one included.
    """
    last = visible & (jax.lax.cumsum(visible.astype(jnp.int32), visible.ndim - 1, reverse=True) == 1)
    ranked = jnp.where(last, jnp.inf, jnp.where(visible, jax.lax.stop_gradient(scores), -jnp.inf))
    _, best = jax.lax.top_k(ranked, min(top, scores.shape[-1]))
    return visible & jax.nn.one_hot(best, scores.shape[-1], dtype=bool).any(-2)


def keys_of_blocks(blocks: Bool[Array, "*B T C"], size: int, keys: int) -> Bool[Array, "*B T S"]:
    """Makes the mask of keys in the chosen blocks."""
    return jnp.repeat(blocks, size, axis=-1)[..., :keys]
