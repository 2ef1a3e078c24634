"""A running state W = Σ_j u_j k_jᵀ, computed for all pairs at once or chunk by chunk.

With a strength β, u_j = β_j (v_j − W k_j) depends on all keys before; within a chunk that is a triangular system
(Yang et al. 2024, "Parallelizing linear Transformers with the delta rule over sequence length"):
(I + diag(β) tril(K Kᵀ, −1)) U = diag(β) (V − K Wᵀ). Where what is erased is read at e_j in place of β_j k_j,
u_j = v_j − W e_j and (I + tril(E Kᵀ, −1)) U = V − E Wᵀ. A token may write several times.

A state that fades, W_j = W_{j−1} diag(α_j) + u_j k_jᵀ, weighs what key s wrote by exp(b_t − b_s) when it is read at t:
b are the sums of log α within a chunk (Yang et al. 2023, "Gated linear attention"). All exponents are at most 0.

A state that turns, W_j = W_{j−1} R(−θ_j) + u_j k_jᵀ, is read in a chunk by queries and keys that are turned by the sums
of θ within it, as by rotary positions (Lahoti et al. 2026, "Mamba-3").

Milliseconds for 1,024 tokens, causal, 8 heads of 64, float32, 2 quiet cores of an AMD EPYC, jax 0.10.2:

| | `retention` | `gated_linear` | `gated_delta` | `state_space` | `kimi_delta` |
| --------------------- | --- | --- | --- | --- | ----- |
| forward alone, scan   | 7   | 10  | 13  | 6   | 17    |
| forward alone, chunks | 11  | 17  | 18  | 10  | 31    |
| both passes, scan     | 638 | 624 | 887 | 646 | 1,002 |
| both passes, chunks   | 59  | 77  | 181 | 77  | 154   |
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attention.kernels.arrays import precise, spread_heads
from attention.mask import Mask
from attention.mesh import platform
from attention.parameters import lift, trail

CHUNK = 64  # tokens
NARROW_CHUNK = 16  # where each column fades by itself, which takes more products; GPUs take CHUNK there too


class Marks(NamedTuple):
    """What a mask says about the tokens that are written.

    Attributes:
      real: Whether each token is real, not padding, `(*B, S)`; None if all are real.
      starts: Whether a segment begins with it, `(*B, S)`, so that the state is empty before; None without segments.
    """

    real: jax.Array | None
    starts: jax.Array | None

    @classmethod
    def of(cls, mask: Mask, first: int | jax.Array, tokens: int) -> Marks:
        """Takes the part of a mask that is about the tokens from position `first` on."""
        real, segments = None if mask.key_lengths is None else mask.real_keys(tokens, first), mask.key_segments
        if segments is None:
            return cls(real, None)
        starts = jnp.diff(segments, prepend=segments[..., :1], axis=-1) != 0
        return cls(real, jax.lax.dynamic_slice_in_dim(starts, first, tokens, -1))

    def runs(self, before: int) -> jax.Array | None:
        """Counts the segments that began up to each token and to those `before` the first, `(*B, before + S)`."""
        if self.starts is None:
            return None
        none = jnp.zeros((*self.starts.shape[:-1], before), int)
        return jnp.concatenate([none, jnp.cumsum(self.starts, -1)], -1)

    def repeated(self, times: int) -> Marks:
        """Says the same of tokens that each write several times, of which the first begins a segment."""
        if times == 1:
            return self
        real, starts = (None if x is None else jnp.repeat(x, times, -1) for x in self)
        if starts is not None:
            starts &= lift(np.arange(starts.shape[-1]) % times == 0, starts.ndim)
        return Marks(real, starts)


class Writes(NamedTuple):
    """The arrays that write and read the state, by head and at least in float32.

    Attributes:
      query: Features that read, `(*B, N, T, H)`, or None if nothing is read.
      key: Features that write, `(*B, N, S, H)`; zero where nothing is written.
      value: `(*B, N, S, V)`.
      strength: β, `(*B, N, S, 1)`, or None.
      erase: e, `(*B, N, S, H)`, in place of β φ(k), or None; if both are None, values are written unchanged.
      decay: log α, `(*B, N, S, 1)` or `(*B, N, S, H)`, before each key is written; None if nothing fades.
      starts: Whether a segment begins with the key, `(*B, 1, S, 1)`, or None without segments.
      later: What is written with the key after its own query has read, `(*B, N, S, V)`, or None; not with β or e.
      turn: θ, angles by which pairs of columns turn before the key is written, `(*B, N, S, at most H/2)`, or None.
    """

    query: jax.Array | None
    key: jax.Array
    value: jax.Array
    strength: jax.Array | None
    erase: jax.Array | None
    decay: jax.Array | None
    starts: jax.Array | None
    later: jax.Array | None = None
    turn: jax.Array | None = None

    @classmethod
    def of(cls, query, key, value, strength, decay, later=None, turn=None, *, marks: Marks) -> Writes:
        """Builds them from arrays in the layout of `jax.nn`; keys that are padding write nothing."""
        number = strength is not None and strength.ndim < key.ndim
        writing = key, value, *((strength[..., None], None) if number else (None, strength)), decay, turn
        if marks.real is not None:
            writing = jax.tree.map(lambda x: jnp.where(marks.real[..., None, None], x, 0), writing)
            followed = jnp.pad(marks.real[..., 1:], [(0, 0)] * (marks.real.ndim - 1) + [(0, 1)])
            later = None if later is None else jnp.where(followed[..., None, None], later, 0)
        spread = spread_heads((query, *writing, later), query.shape[-2])
        by_head = jax.tree.map(lambda x: jnp.moveaxis(precise(x), -2, -3), spread)
        dtype = jnp.result_type(*jax.tree.leaves(by_head))
        *made, turn, later = jax.tree.map(lambda x: x.astype(dtype), by_head)
        starts = None if marks.starts is None else marks.starts[..., None, :, None]
        return cls(*made, starts, later, turn)

    def turned(self) -> tuple[Writes, jax.Array | None]:
        """Turns what reads and writes to where the state was before the first key, and says how far it turns."""
        if self.turn is None:
            return self, None
        angles = jnp.cumsum(self.turn, -2)
        query, key, erase = (None if x is None else turned(x, angles) for x in (self.query, self.key, self.erase))
        return self._replace(query=query, key=key, erase=erase), -angles[..., -1:, :]


class Passage(NamedTuple):
    """What is left of what one token of a chunk wrote, or of the state before the chunk, at another token.

    Attributes:
      sums: b, the sums of log α from the first token on, `(*B, N, C, 1 or H)`, or None if nothing fades.
      runs: The number of segments that began up to each token, `(*B, 1, C, 1)`, or None without segments.
    """

    sums: jax.Array | None
    runs: jax.Array | None

    @classmethod
    def of(cls, writes: Writes) -> Passage:
        """Sums what fades and what begins."""
        decay, starts = writes.decay, writes.starts
        sums = None if decay is None else jnp.cumsum(decay, -2)
        return cls(sums, None if starts is None else jnp.cumsum(starts, -2))

    def from_before(self, x: jax.Array) -> jax.Array:
        """Weighs features `(*B, N, C, H)` of the tokens that meet the state before the chunk."""
        return self._faded(x, self.sums, None if self.runs is None else self.runs == 0)

    def to_after(self, x: jax.Array) -> jax.Array:
        """Weighs features `(*B, N, C, H)` of the tokens by what is left after the chunk."""
        rest = None if self.sums is None else self.sums[..., -1:, :] - self.sums
        return self._faded(x, rest, None if self.runs is None else self.runs == self.runs[..., -1:, :])

    def through(self, state: jax.Array) -> jax.Array:
        """Weighs a state `(*B, N, V, H)` before the chunk by what is left after it."""
        rest = None if self.sums is None else self.sums[..., -1:, :]
        return self._faded(state, rest, None if self.runs is None else self.runs[..., -1:, :] == 0)

    def _faded(self, x: jax.Array, decay: jax.Array | None, passes: jax.Array | None) -> jax.Array:
        x = x if decay is None else x * jnp.exp(decay)
        return x if passes is None else jnp.where(passes, x, 0)

    def between(self, rows: jax.Array, columns: jax.Array) -> jax.Array:
        """Computes Σ_h x_th y_sh exp(b_t − b_s) for s ≤ t of one segment and else 0, `(*B, N, C, C)`."""
        pairs = _pairs(rows, columns, self.sums)
        return pairs if self.runs is None else jnp.where(self.runs == self.runs.swapaxes(-1, -2), pairs, 0)


class Chunk(NamedTuple):
    """What a chunk of tokens writes and reads, as far as that does not need the state before it.

    Attributes:
      value, strength, later: See `Writes`.
      erase: Features that meet the state before the chunk, `(*B, N, C, H)`, or None if nothing is erased.
      overlap: How much of what one key writes the later ones erase, `(*B, N, C, C)`, or None.
      inverse: The inverse of I + overlap, or None.
      left: Features that write, weighed by what is left after the chunk.
      kept: What is left of the state, `(*B, N, 1, H)`.
      back: The angles by which the state turns back, or None.
      query: Features that read the state before the chunk, or None.
      pairs: What the queries read of each key, `(*B, N, C, C)`, or None.
    """

    value: jax.Array
    strength: jax.Array | None
    later: jax.Array | None
    erase: jax.Array | None
    overlap: jax.Array | None
    inverse: jax.Array | None
    left: jax.Array
    kept: jax.Array
    back: jax.Array | None
    query: jax.Array | None
    pairs: jax.Array | None

    @classmethod
    def of(cls, writes: Writes) -> Chunk:
        """Computes the parts from the arrays of a chunk, or of all chunks at once."""
        writes, back = writes.turned()
        query, key, strength, passage = writes.query, writes.key, writes.strength, Passage.of(writes)
        erase, removed = key if strength is not None else writes.erase, (None, None, None)
        if erase is not None:
            overlap = jnp.tril(passage.between(erase, key), -1)
            overlap = overlap if strength is None else strength * overlap
            removed = passage.from_before(erase), overlap, inverted(overlap)
        kept = passage.through(jnp.ones_like(key[..., :1, :]))
        read = (None, None) if query is None else (passage.from_before(query), passage.between(query, key))
        return cls(writes.value, strength, writes.later, *removed, passage.to_after(key), kept, back, *read)

    def own(self, state: jax.Array | None) -> jax.Array:
        """Computes u_j of each key, `(*B, N, C, V)`, given the state before the chunk; None is an empty state."""
        if self.erase is None:
            return self.value
        rest = self.value if state is None else self.value - jnp.einsum("...sh,...vh->...sv", self.erase, state)
        return rest if self.overlap is None else self._solved(rest)

    def _solved(self, x: jax.Array) -> jax.Array:
        return solved(self.overlap, self.inverse, x if self.strength is None else self.strength * x)

    def ready(self) -> Chunk:
        """Solves for what keys write before the state is known, which takes one product more but leaves fewer."""
        if self.erase is None:
            return self
        value, erase = self._solved(self.value), self._solved(self.erase)
        return self._replace(value=value, erase=erase, strength=None, overlap=None, inverse=None)

    def after(self, state: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Computes the state after the chunk, and u_j of each key."""
        own = self.own(state)
        written = own if self.later is None else own + self.later
        after = self.kept * state + jnp.einsum("...sv,...sh->...vh", written, self.left)
        return (after if self.back is None else turned(after, self.back)), own

    def read(self, state: jax.Array, own: jax.Array) -> jax.Array | None:
        """Computes what the queries read, `(*B, N, C, V)`; None without queries."""
        if self.query is None:
            return None
        known = jnp.einsum("...th,...vh->...tv", self.query, state)
        if self.later is None:
            return known + self.pairs @ own
        of_token = jnp.diagonal(self.pairs, axis1=-2, axis2=-1)[..., None] * own
        return known + jnp.tril(self.pairs, -1) @ (own + self.later) + of_token


def all_pairs(writes: Writes, mask: Mask) -> jax.Array:
    """Computes the output `(*B, T, N, V)` from φ(q)·φ(k) of all pairs; with segments T = S and the mask is causal."""
    passage = Passage.of(writes._replace(decay=None))
    written = Chunk.of(writes._replace(query=None)).own(None)
    pairs = jnp.einsum("...th,...sh->...ts", writes.query, writes.key)
    if mask.causal:
        allowed = mask.positions(*pairs.shape[-2:])
        pairs = jnp.where(lift(allowed, pairs.ndim), pairs, 0.0)
    if passage.runs is not None:
        pairs = jnp.where(passage.runs == passage.runs.swapaxes(-1, -2), pairs, 0.0)
    return jnp.moveaxis(pairs @ written, -3, -2)


def after_all(writes: Writes) -> jax.Array:
    """Computes what all queries read after all keys, `(*B, T, N, V)`, chunk by chunk."""
    if writes.strength is None and writes.erase is None and writes.decay is None:
        after = jnp.einsum("...sv,...sh->...vh", writes.value, writes.key)
    else:
        _, after = _scan(writes._replace(query=None), None)
    return jnp.einsum("...nvh,...nth->...tnv", after, writes.query)


def from_state(writes: Writes, before: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """Computes the causal output `(*B, T, N, V)` of tokens after a state `(*B, N, V, H)`, and the next state."""
    keys, times = writes.key.shape[-2], writes.key.shape[-2] // writes.query.shape[-2]
    if times > 1:  # a query reads after the last of its token
        before_last = [(0, 0)] * (writes.query.ndim - 1) + [(times - 1, 0), (0, 0)]
        query = jnp.pad(writes.query[..., None, :], before_last)
        writes = writes._replace(query=query.reshape(*query.shape[:-3], keys, query.shape[-1]))
    out, after = _scan(writes, before)
    out = jnp.moveaxis(out, 0, -3)
    out = out.reshape(*out.shape[:-3], -1, out.shape[-1])[..., times - 1 : keys : times, :]
    return jnp.moveaxis(out, -3, -2), after


def _scan(writes: Writes, before: jax.Array | None) -> tuple[jax.Array | None, jax.Array]:
    """Computes what the queries read, with the axis of chunks first, or None without queries, and the last state.

    The state before is empty if it is None. On GPUs, what does not need the state is computed for all chunks at once,
    so that the loop has little left: by the compiler for an H100, both passes of `gated_delta` over 4,096 tokens start
    1,579 kernels, and 5,419 with all in the loop. A CPU's caches hold one chunk, but not all.
    """
    at_once, wide = platform() == "gpu", writes.decay is None or writes.decay.shape[-1] == 1
    chunk = min(CHUNK if at_once or wide else NARROW_CHUNK, writes.key.shape[-2])
    chunks = jax.tree.map(lambda x: cut_chunks(x, chunk), writes)
    keys, width = writes.key, writes.value.shape[-1]
    before = jnp.zeros((*keys.shape[:-2], width, keys.shape[-1]), keys.dtype) if before is None else before

    def one(state: jax.Array, writes: Writes) -> tuple[jax.Array, jax.Array | None]:
        chunk = Chunk.of(writes)
        after, own = chunk.after(state)
        return after, chunk.read(state, own)

    def step(state: jax.Array, chunk: Chunk) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        after, own = chunk.after(state)
        return after, (state, own)

    if not at_once:
        after, out = jax.lax.scan(one, before, chunks)
        return out, after
    ready = jax.checkpoint(lambda writes: Chunk.of(writes).ready())(chunks)
    after, met = jax.lax.scan(step, before, ready)
    return ready.read(*met), after


def last_token(x: jax.Array, before: jax.Array, real: jax.Array | None) -> jax.Array:
    """Takes the last real token of `(*B, S, N, H)`, or what was before, `(*B, N, H)`, if there is none."""
    if real is None:
        return x[..., -1, :, :]
    wide = jnp.concatenate([before[..., None, :, :], x.astype(before.dtype)], -3)
    return jnp.take_along_axis(wide, trail(real.sum(-1, keepdims=True), wide.ndim), -3)[..., 0, :, :]


def turned(x: jax.Array, angles: jax.Array) -> jax.Array:
    """Turns the first pairs of columns (2i, 2i + 1) of `(…, H)` by angles `(…, at most H/2)`."""
    cos, sin, wide = jnp.cos(angles), jnp.sin(angles), 2 * angles.shape[-1]
    even, odd = x[..., 0:wide:2], x[..., 1:wide:2]
    pairs = jnp.stack([even * cos - odd * sin, even * sin + odd * cos], -1)
    return jnp.concatenate([pairs.reshape(*pairs.shape[:-2], wide), x[..., wide:]], -1)


def _pairs(rows: jax.Array, columns: jax.Array, sums: jax.Array | None) -> jax.Array:
    """Computes Σ_h x_th y_sh exp(b_th − b_sh) for s ≤ t and else 0, `(*B, N, C, C)`; without sums b is 0."""
    if sums is None:
        return jnp.tril(jnp.einsum("...th,...sh->...ts", rows, columns))
    if sums.shape[-1] > 1:
        return _pairs_by_column(rows, columns, sums)
    length = rows.shape[-2]
    before = lift(jnp.tril(jnp.ones((length, length), bool))[..., None], rows.ndim + 1)
    # Chosen before the exponential: beyond the diagonal it may be infinite.
    faded = jnp.exp(jnp.where(before, sums[..., :, None, :] - sums[..., None, :, :], -jnp.inf))
    return jnp.einsum("...th,...sh->...ts", rows, columns) * faded[..., 0]


def _pairs_by_column(rows: jax.Array, columns: jax.Array, sums: jax.Array) -> jax.Array:
    """Computes `_pairs` where each column fades by itself, in a product for each size of blocks of 1, 2, 4, … tokens.

    Tokens of the second block of two are read through what the first block's last leaves, b_m: exp(b_t − b_m) weighs
    the rows and exp(b_m − b_s) the columns, and neither exponent is above 0.
    """
    length = rows.shape[-2]
    place = np.arange(length)
    out = lift(np.eye(length, dtype=rows.dtype), rows.ndim) * jnp.sum(rows * columns, -1, keepdims=True)
    for size in (2**level for level in range((length - 1).bit_length())):
        second = place // size % 2 == 1
        middle = np.minimum(place // (2 * size) * 2 * size + size, length) - 1
        sign = np.where(second, 1, -1)[:, None].astype(rows.dtype)
        near = jnp.exp(lift(sign, rows.ndim) * (sums - sums[..., middle, :]))
        pairs = jnp.einsum("...th,...sh->...ts", rows * near, columns * near)
        out += jnp.where(lift((middle[:, None] == middle) & second[:, None] & ~second, rows.ndim), pairs, 0)
    return out


def solved(lower: jax.Array, inverse: jax.Array, right: jax.Array) -> jax.Array:
    """Solves (I + lower) u = right for u, with a strictly lower-triangular matrix, by the inverse of I + lower.

    It avoids `triangular_solve`, because two of them in one program can deadlock on a CPU. With jaxlib 0.10.2 on two
    cores, both threads of XLA's pool were in `lapack_strsm_ffi`, each waiting in `ParallelBatchMap` for a thread of
    that pool to take a part of its batch.
    """
    inverse = jax.lax.stop_gradient(inverse)
    return jax.lax.custom_linear_solve(
        lambda u: u + lower @ u,
        right,
        solve=lambda _, x: inverse @ x,
        transpose_solve=lambda _, x: inverse.swapaxes(-1, -2) @ x,
    )


def inverted(lower: jax.Array) -> jax.Array:
    """Computes (I + lower)⁻¹ by doubling diagonal blocks of 1, 2, 4, …: [[A, 0], [C, B]]⁻¹ has −B⁻¹CA⁻¹ for C."""
    lead, length = lower.shape[:-2], lower.shape[-1]
    full = 2 ** math.ceil(math.log2(max(1, length)))
    lower = jnp.pad(lower, [(0, 0)] * len(lead) + [(0, full - length)] * 2)
    inverse, size = jnp.ones((*lead, full, 1, 1), lower.dtype), 1
    while size < full:
        halves = lower.reshape(*lead, full // (2 * size), 2, size, full // (2 * size), 2, size)
        corner = jnp.moveaxis(jnp.diagonal(halves[..., 1, :, :, 0, :], axis1=-4, axis2=-2), -1, -3)
        first, second = inverse[..., 0::2, :, :], inverse[..., 1::2, :, :]
        above = jnp.concatenate([first, jnp.zeros_like(first)], axis=-1)
        below = jnp.concatenate([-second @ corner @ first, second], axis=-1)
        inverse, size = jnp.concatenate([above, below], axis=-2), 2 * size
    return inverse[..., 0, :length, :length]


def cut_chunks(x: jax.Array, chunk: int) -> jax.Array:
    """Pads the tokens of `(*B, N, L, H)` with zeros, which write nothing, and cuts them to `(chunks, *B, N, C, H)`."""
    *lead, length, width = x.shape
    padded = jnp.pad(x, [(0, 0)] * len(lead) + [(0, -length % chunk), (0, 0)])
    return jnp.moveaxis(padded.reshape(*lead, -1, chunk, width), -3, 0)
