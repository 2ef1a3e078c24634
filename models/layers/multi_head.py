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
from models.layers.attention_weights import collect, is_collected
from models.layers.cache import Cache, PreparedSource
from models.layers.pieces import AttentionPieces, Pieces


class MultiHeadAttention(AttentionPieces):
    """Multi-head self- or cross-attention of any mechanism, for whole sequences or token by token.

    `apply(..., mutable="attention")` also returns the attention weights `(B, N, T, S)` of every layer, and
    `mutable="own_losses"` the loss `(B,)` of each layer that has one of its own.
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
        """Attends from `x` to `source`, to itself, or with a cache to all preceding tokens and itself.

        Args:
          x: Inputs of the queries.
          source: Inputs of the keys and values, or the result of `prepare`; `x` by default.
          mask: Which query may attend to which key, as a `Mask` or a boolean array. With a cache it is causal, and its
            keys are the cache's slots.
          train: Whether attention weights are dropped.
          cache: The cache from `init_cache` or from the previous call; the result then includes that for the next call.

        Raises:
          UsageError: the heads do not divide the width, a fixed length is exceeded, or the mechanism does not support
            cross-attention.
        """
        self.check(x.shape[-1], source, cache)
        mask = self._within_window(as_mask(mask))
        if source is None and mask.key_lengths is not None:  # padding gives no queries either
            real = mask.real_keys(x.shape[1], 0 if cache is None else cache.length)
            x = jnp.where(real[..., None], x, jnp.zeros((), x.dtype))
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
        return out if cache is None else (out, dataclasses.replace(cache, length=cache.length + x.shape[1]))

    def prepare(
        self, source: Float[Array, "B S E"], width: int, lengths: Int[Array, "B"] | None = None
    ) -> PreparedSource:
        """Computes the keys and values of a source, which calls take in its place.

        Args:
          source: Inputs of the keys and values.
          width: D, the width of the queries' inputs.
          lengths: Number of real tokens in each source; all by default.

        Raises:
          UsageError: see `__call__`.
        """
        self.check(width, source, None)
        pieces = self.pieces(width, source.shape[-1])
        key, value = self._of_source(pieces, source, attention.Mask(key_lengths=lengths), 1)
        return PreparedSource(key, None if value is key else value, source.shape[-1])

    def init_cache(self, batch: int, max_length: int, width: int) -> Cache:
        """Makes an empty cache for inputs `(batch, …, width)`; it needs no parameters.

        Args:
          batch: B.
          max_length: Most tokens that it will hold, including the prompt. Inside `jax.jit` an overflow cannot raise.
          width: D.

        Raises:
          UsageError: the heads do not divide the width.
        """
        mechanism, sizes, length = self.mechanism, self.sizes(width), jnp.zeros((), jnp.int32)
        score, aligned, tied = mechanism.score, mechanism.align is not None, self.values_are_keys()
        state = score.start(sizes, (batch,), self.dtype)

        def slots(*shape: int) -> jax.Array:
            return jnp.zeros((batch, max_length, *shape), self.dtype)

        def values() -> jax.Array:
            return slots(self.groups(), sizes.head)

        def keys() -> Any:
            params = {name: jnp.zeros(p.shape) for name, p in score.arrays(sizes).items()}
            projected = values() if score.traits.reads_key else None
            return score.prepare_key(params, projected, self._tokens(0, slots(width)))

        if state is not None:
            return Cache(length, raw=values() if aligned else None, state=state)
        if mechanism.latent:
            return Cache(length, latent=slots(mechanism.rotary + mechanism.latent))
        return Cache(
            length,
            key=jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(keys)),
            raw=values() if aligned and not tied else None,
            value=values() if aligned or not tied else None,
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
        """Computes the heads of the tokens after those in a cache, and adds these tokens to the cache."""
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
        at = self._tokens(cache.length, source, cache.last_key())
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
        rate = self.dropout if train else 0.0
        draws = rate > 0 or (train and score.weighing.random)
        options = Options(
            mask,
            dropout_rate=rate,
            dropout_key=self.make_rng("dropout") if draws else None,
            return_weights=is_collected(self, "attention"),
            implementation=self.implementation,
            layer=self.layer,
            depth=self.depth,
        )
        if score.traits.own_loss and is_collected(self, "own_losses"):
            collect(self, "own_losses", "own_loss", score.own_loss(params, query, key, options))
        out = score.attend(params, query, key, value, options)
        if not options.return_weights:
            return out
        out, weights = out
        collect(self, "attention", "weights", weights)
        return out
