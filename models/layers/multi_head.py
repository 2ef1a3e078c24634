"""Multi-head attention of any mechanism. The layer has the parameters; `attention/` has the mathematics."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

import attention
from attention.forms import Tokens
from attention.options import Options, as_mask
from attention.parameters import Params
from attention.score import Mixer
from models.layers.attention_weights import keep_weights, weights_asked_of
from models.layers.cache import Cache, PreparedSource
from models.layers.own_losses import keep_loss, loss_asked_of
from models.layers.pieces import AttentionPieces, Pieces


class MultiHeadAttention(AttentionPieces):
    """Multi-head self- or cross-attention of any mechanism, for whole sequences or token by token.

    `apply(..., mutable="attention")` also gives the attention weights `(B, N, T, S)` of every layer, and
    `mutable="own_losses"` the loss `(B,)` of layers that have one of their own.
    """

    def __call__(
        self,
        x: Float[Array, "B T D"],
        source: Float[Array, "B S E"] | PreparedSource | None = None,
        *,
        mask: attention.Mask | jax.Array | None = None,
        train: bool = False,
        cache: Cache | None = None,
    ) -> Float[Array, "B T D"] | tuple[Float[Array, "B T D"], Cache]:
        """Attends from `x` to `source`, or to itself, or with a cache to all preceding tokens and itself.

        Args:
          x: Inputs of the queries.
          source: Inputs of the keys and values, or the result of `prepare`; `x` by default.
          mask: Which query may attend to which key, as a `Mask` or a boolean array. With a cache its keys are the slots
            of the cache, and it is causal.
          train: Whether attention weights are dropped.
          cache: The cache from `init_cache` or from the previous call; then the result has the one for the next call.

        Raises:
          UsageError: the heads do not divide the width, a fixed length is exceeded, or the mechanism does not support
            cross-attention.
        """
        self.check(x.shape[-1], source, cache)
        mask = self._within_window(as_mask(mask))
        if source is None:
            x = _without_padding(x, mask if cache is None else _from(mask, cache.length))
        if cache is not None:
            mask = dataclasses.replace(mask, causal=True, query_offset=cache.length)
        prepared = isinstance(source, PreparedSource)
        source = x if source is None else source
        pieces = self.pieces(x.shape[-1], source.width if prepared else source.shape[-1])
        at = self._tokens(mask.query_offset, x)._replace(rotary=self.query_rotary(x.shape[-1]))
        query = self.mechanism.score.prepare_query(pieces.score, pieces.query(x), at)
        if cache is not None:
            heads, cache = self._attend_cached(pieces, query, cache, source, mask, train)
        else:
            if prepared:
                key, value = source.key, source.key if source.value is None else source.value
            else:
                key, value = self._of_source(pieces, source, mask, x.shape[1])
            heads = self._attend(self.mechanism.score, pieces.score, query, key, value, mask, train)
        out = pieces.out(pieces.gate(heads, x))
        return out if cache is None else (out, cache.advance(x.shape[1]))

    def prepare(
        self, source: Float[Array, "B S E"], width: int, lengths: Int[Array, "B"] | None = None
    ) -> PreparedSource:
        """Computes the keys and values of a source, which calls take in its place.

        Args:
          source: Inputs of the keys and values.
          width: D, the width of the queries' inputs.
          lengths: Number of real tokens in each source; by default all.

        Raises:
          UsageError: a call with this source would raise it.
        """
        self.check(width, source, None)
        pieces = self.pieces(width, source.shape[-1])
        key, value = self._of_source(pieces, source, attention.Mask(key_lengths=lengths), 1)
        return PreparedSource(key, None if value is key else value, source.shape[-1])

    def init_cache(self, batch: int, max_length: int, width: int) -> Cache:
        """Makes an empty cache of `max_length` tokens for inputs `(batch, …, width)`, without parameters.

        Args:
          batch: B.
          max_length: The most tokens that it will hold, with the prompt. Inside `jax.jit` an overflow cannot raise.
          width: D.

        Raises:
          UsageError: the heads do not divide the width.
        """
        score, tied = self.mechanism.score, self.values_are_keys()
        sizes = self.sizes(width)
        slots = lambda *shape: jax.ShapeDtypeStruct((batch, max_length, *shape), self.dtype)  # noqa: E731
        value, length, align = slots(self.groups(), sizes.head), jnp.zeros((), jnp.int32), self.mechanism.align
        state = score.start(sizes, (batch,), self.dtype)
        if state is not None:
            return Cache(length, raw=None if align is None else _zeros(value), state=state)
        if self.mechanism.latent:
            return Cache(length, latent=_zeros(slots(self.mechanism.rotary + self.mechanism.latent)))
        params = {n: jax.ShapeDtypeStruct(p.shape, jnp.float32) for n, p in score.arrays(sizes).items()}
        prepare = lambda params, key, source: score.prepare_key(params, key, self._tokens(0, source))  # noqa: E731
        key = jax.eval_shape(prepare, params, value if score.traits.reads_key else None, slots(width))
        return Cache(
            length,
            key=_zeros(key),
            raw=None if align is None or tied else _zeros(value),
            value=None if align is None and tied else _zeros(value),
        )

    def _tokens(self, first: int | jax.Array, source: jax.Array, before: Any = None) -> Tokens:
        return Tokens(first, source, self.key_rotary, before, self.layer, self.depth)

    def _within_window(self, mask: attention.Mask) -> attention.Mask:
        windows = [window for window in (mask.window, self.mechanism.window) if window]
        return dataclasses.replace(mask, window=min(windows, default=0))

    def _of_source(
        self, pieces: Pieces, source: jax.Array, mask: attention.Mask, queries: int
    ) -> tuple[Any, jax.Array]:
        """Computes the prepared keys and the aligned values of a whole source."""
        source = mask.without_unreachable(source, queries, source.ndim + 1)
        key, value = self._keys_and_values(pieces, pieces.latent(source, 0), self._tokens(0, source))
        return key, pieces.align(value, mask=mask)

    def _keys_and_values(self, pieces: Pieces, inputs: jax.Array, at: Tokens) -> tuple[Any, jax.Array]:
        """Computes prepared keys, and values before alignment."""
        part = self.mechanism.rotary
        shared, inputs = inputs[..., None, :part], inputs[..., part:]
        slices = pieces.key(inputs)
        if part:
            slices = jnp.concatenate([jnp.broadcast_to(shared, (*slices.shape[:-1], part)), slices], axis=-1)
        key = self.mechanism.score.prepare_key(pieces.score, slices, at)
        if self.mechanism.value == "tied":
            return key, key
        return key, slices if pieces.value is None else pieces.value(inputs)

    def _attend_cached(
        self, pieces: Pieces, query: Any, cache: Cache, source: jax.Array, mask: attention.Mask, train: bool
    ) -> tuple[jax.Array, Cache]:
        """Computes the heads of the tokens after those in a cache, and the cache with these tokens."""
        score = self.mechanism.score
        if cache.latent is None:
            key, value, cache = self._remember(pieces, cache, source, mask)
        else:
            slots, cache = cache.append("latent", pieces.latent(source, cache.length))
            if self.absorbs(*source.shape[1:]):
                return self._attend_latents(pieces, query, slots, mask, train), cache
            key, value = self._keys_and_values(pieces, slots, self._tokens(0, slots))
        if cache.state is None:
            return self._attend(score, pieces.score, query, key, value, mask, train), cache
        heads, state = score.advance(pieces.score, query, key, value, cache.state, mask)
        return heads, dataclasses.replace(cache, state=state)

    def _attend_latents(
        self, pieces: Pieces, query: jax.Array, slots: jax.Array, mask: attention.Mask, train: bool
    ) -> jax.Array:
        """Computes the heads with the projections of keys and values moved to queries and outputs.

        q·(W c) = (Wᵀ q)·c, so all heads share one key of the latent's width, which is their value too (DeepSeek-V2,
        section 2.1.2).
        """
        part, score, (batch, tokens, heads, wide) = self.mechanism.rotary, self.mechanism.score, query.shape
        latent, groups = self.mechanism.latent, self.groups()
        kernels = (piece.parameters((latent,))[0] for piece in (pieces.key, pieces.value))  # (C, K, H)
        of_key, of_value = (kernel.astype(self.dtype) for kernel in kernels)
        grouped = query[..., part:].reshape(batch, tokens, groups, -1, wide - part)
        moved = jnp.einsum("btkgh,ckh->btkgc", grouped, of_key).reshape(batch, tokens, heads, latent)
        query = jnp.concatenate([query[..., :part], moved], axis=-1)
        score = dataclasses.replace(score, scale=score.scale or wide**-0.5)
        shared = slots[:, :, None]
        mixed = self._attend(score, pieces.score, query, shared, shared, mask, train)[..., part:]
        mixed = mixed.reshape(batch, tokens, groups, -1, latent)
        return jnp.einsum("btkgc,ckh->btkgh", mixed, of_value).reshape(batch, tokens, heads, -1)

    def _remember(
        self, pieces: Pieces, cache: Cache, source: jax.Array, mask: attention.Mask
    ) -> tuple[Any, Any, Cache]:
        """Computes keys and values of all slots (for a recurrence, of the new tokens) and the cache with them."""
        tokens, tied = source.shape[1], self.values_are_keys()
        recurrent, aligned = cache.state is not None, self.mechanism.align is not None
        at = self._tokens(cache.length, source, cache.before())
        key, value = self._keys_and_values(pieces, pieces.latent(source, cache.length), at)
        if not recurrent:
            key, cache = cache.append("key", key)
            value = key if tied else value
        if aligned:
            if recurrent or not tied:
                value, cache = cache.append("raw", value)
            value = pieces.align(value, mask=mask, rows=tokens)
        if not recurrent and (aligned or not tied):
            value, cache = cache.append("value", value)
        return key, value, cache

    def _attend(
        self, score: Mixer, params: Params, query: Any, key: Any, value: Any, mask: attention.Mask, train: bool
    ) -> jax.Array:
        returns_weights = weights_asked_of(self)
        rate = self.dropout if train else 0.0
        drawn = rate > 0 or (train and score.weighing.random)
        key_of_dropout = self.make_rng("dropout") if drawn else None
        place = {"layer": self.layer, "depth": self.depth}
        options = Options(mask, None, rate, key_of_dropout, returns_weights, self.implementation, **place)
        if score.traits.own_loss and loss_asked_of(self):
            keep_loss(self, score.own_loss(params, query, key, options))
        out = score.attend(params, query, key, value, options)
        if not returns_weights:
            return out
        out, weights = out
        keep_weights(self, weights)
        return out


def _without_padding(x: jax.Array, mask: attention.Mask) -> jax.Array:
    """Sets the inputs of a self-attention to zeros at padding, which then gives no queries either."""
    if mask.key_lengths is None:
        return x
    return jnp.where(mask.real_keys(x.shape[1])[..., None], x, jnp.zeros((), x.dtype))


def _from(mask: attention.Mask, first: jax.Array) -> attention.Mask:
    """Shifts a mask so that the token at `first` is at position 0."""
    lengths = None if mask.key_lengths is None else mask.key_lengths - first
    return dataclasses.replace(mask, query_offset=0, key_lengths=lengths)


def _zeros(like: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)
