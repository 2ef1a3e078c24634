"""Multi-head attention of any mechanism. The layer has the parameters; `attention/` has the mathematics."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

import attention
from attention.errors import UsageError
from attention.forms import Tokens
from attention.kernels.call import check_implementation
from attention.options import Options, as_mask
from attention.parameters import Params, Sizes
from models.layers.cache import Cache, PreparedSource
from models.layers.positions import rotate
from models.layers.projections import projection
from models.layers.stack import dropout_key
from models.mechanisms import Mechanism, resolve


class Pieces(NamedTuple):
    """The pieces of an attention layer: its projections, and the arrays of its score and alignment."""

    score: Params
    query: Callable[[jax.Array], jax.Array]
    key: Callable[[jax.Array], jax.Array | None]
    value: Callable[[jax.Array], jax.Array] | None  # None if the values are the keys
    out: Callable[[jax.Array], jax.Array]
    align: tuple[jax.Array, jax.Array] | None


class MultiHeadAttention(nn.Module):
    """Multi-head self- or cross-attention of any mechanism, for whole sequences or token by token.

    `apply(..., mutable="attention")` also gives the attention weights `(B, N, T, S)` of every layer.

    Attributes:
      mechanism: The attention mechanism, or a string that names it, such as `neural(dim=2)`.
      heads: N, the number of heads.
      length: ℓ, the longest sequence for which a mechanism of fixed length is built.
      implementation: The implementation of the scores, see `attention.dot_product_attention`.
      dropout: Rate on the attention weights.
      bias: Whether linear projections have biases.
      epsilon: ε of the LayerNorm in MLP projections.
      rotary: Whether projected queries and keys are rotated by their positions; for self-attention only.
      dtype: Compute dtype.
    """

    mechanism: Mechanism | str
    heads: int
    length: int
    implementation: str = "auto"
    dropout: float = 0.0
    bias: bool = True
    epsilon: float = 1e-6
    rotary: bool = False
    dtype: DTypeLike = jnp.float32

    def __post_init__(self):
        if isinstance(self.mechanism, str):
            (self.mechanism,) = resolve(self.mechanism, 1)
        if not isinstance(self.mechanism, Mechanism):
            raise UsageError(f"A layer needs a Mechanism or a string such as 'neural(dim=2)', not {self.mechanism!r}.")
        super().__post_init__()

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
          cache: The cache from `init_cache` or from the previous call.

        Returns:
          An array like `x`, and with a cache also the cache for the next call.

        Raises:
          UsageError: the heads do not divide the width, a fixed length is exceeded, or the mechanism does not support
            cross-attention.
        """
        self._check(x.shape[-1], source, cache)
        mask = as_mask(mask)
        if cache is None:
            x = _without_padding(x, mask) if source is None else x
        else:
            x = _without_padding(x, _from(mask, cache.length))
            mask = dataclasses.replace(mask, causal=True, query_offset=cache.length)
        prepared = isinstance(source, PreparedSource)
        source = x if source is None else source
        pieces = self._pieces(x.shape[-1], source.width if prepared else source.shape[-1])
        query = self._query(pieces, x, mask)
        if prepared:
            key, value = source.key, source.key if source.value is None else source.value
        elif cache is None:
            source = mask.without_unreachable(source, x.shape[1], x.ndim + 1)
            key, value = self._keys_and_values(pieces, source)
            value = self._align(pieces, value, mask)
        else:
            key, value = self._keys_and_values(pieces, source, cache.length)
            key, value, cache = self._remember(pieces, cache, key, value, mask)
        if cache is not None and cache.state is not None:
            state, visible = cache.state, _from(mask, cache.length)
            heads, state = self.mechanism.score.advance(pieces.score, query, key, value, state, visible)
            cache = dataclasses.replace(cache, state=state)
        else:
            heads = self._attend(pieces.score, query, key, value, mask, train)
        out = pieces.out(heads)
        return out if cache is None else (out, cache.advance(x.shape[1]))

    def prepare(
        self, source: Float[Array, "B S E"], width: int, lengths: Int[Array, "B"] | None = None
    ) -> PreparedSource:
        """Returns the keys and values of a source, which calls take in its place.

        Args:
          source: Inputs of the keys and values.
          width: D, the width of the queries' inputs.
          lengths: Number of real tokens in each source; by default all.

        Raises:
          UsageError: a call with this source would raise it.
        """
        self._check(width, source, None)
        mask = attention.Mask(key_lengths=lengths)
        pieces = self._pieces(width, source.shape[-1])
        key, value = self._keys_and_values(pieces, mask.without_unreachable(source, 1, source.ndim + 1))
        value = self._align(pieces, value, mask)
        return PreparedSource(key, None if value is key else value, source.shape[-1])

    def init_cache(self, batch: int, max_length: int, width: int) -> Cache:
        """Returns an empty cache of `max_length` tokens for inputs `(batch, …, width)`; it needs no parameters.

        Args:
          batch: B.
          max_length: The most tokens that it will hold, with the prompt. Inside `jax.jit` an overflow cannot raise.
          width: D.

        Raises:
          UsageError: the heads do not divide the width.
        """
        mechanism, score = self.mechanism, self.mechanism.score
        sizes = Sizes(width, self.heads, self._head(width), self.length)
        length = jnp.zeros((), jnp.int32)
        value = jax.ShapeDtypeStruct((batch, max_length, self._groups(), sizes.head), self.dtype)
        state = score.start(sizes, (batch,), self.dtype)
        align = mechanism.align is not None
        if state is not None:
            return Cache(length, raw=_zeros(value) if align else None, state=state)
        params = {n: jax.ShapeDtypeStruct(p.shape, jnp.float32) for n, p in score.arrays(sizes).items()}
        source = jax.ShapeDtypeStruct((batch, max_length, width), self.dtype)
        prepare = lambda params, key, source: score.prepare_key(params, key, Tokens(0, source))  # noqa: E731
        key = jax.eval_shape(prepare, params, value if score.reads_key else None, source)
        tied = self._values_are_keys()
        return Cache(
            length,
            key=_zeros(key),
            raw=_zeros(value) if align and not tied else None,
            value=_zeros(value) if align or not tied else None,
        )

    def _check(self, width: int, source: jax.Array | PreparedSource | None, cache: Cache | None) -> None:
        mechanism = self.mechanism
        check_implementation(self.implementation, mechanism.score.implementations, mechanism.name)
        if self.rotary and "none" in (mechanism.query, mechanism.key):
            raise UsageError(f"{mechanism.name} has no queries and keys to rotate; choose other positions than rotary.")
        if self.rotary and mechanism.value == "tied":
            raise UsageError(
                f"The values of {mechanism.name} are its keys, which rotary positions would turn; choose others."
            )
        if source is None:
            return
        if self.rotary:
            raise UsageError("Rotary positions are for self-attention; leave out the source.")
        if cache is not None:
            raise UsageError(
                "A decode cache is for self-attention; cross-attention takes what prepare makes of a source."
            )
        if not mechanism.score.cross:
            raise UsageError(f"{mechanism.name} with these options is for self-attention only; leave out the source.")
        unprojected = {"identity", "shared"} & {mechanism.key, mechanism.value}
        source_width = source.width if isinstance(source, PreparedSource) else source.shape[-1]
        if source_width != width and unprojected:
            raise UsageError(
                f"{mechanism.name} has a key or value projection {min(unprojected)!r}, so the source must be "
                f"{width} wide as the queries are, not {source_width}."
            )

    def _head(self, width: int) -> int:
        if width % self.heads:
            raise UsageError(f"{self.heads} heads do not divide a width of {width}; choose a divisor of {width}.")
        return width // self.heads

    def _groups(self) -> int:
        """Returns K, the number of key and value heads."""
        groups = self.mechanism.kv_heads or self.heads
        if self.heads % groups:
            raise UsageError(f"kv_heads={groups} does not divide {self.heads} heads; choose a divisor.")
        return groups

    @nn.compact
    def _pieces(self, width: int, source_width: int) -> Pieces:
        mechanism = self.mechanism
        score = self._score_parameters(Sizes(source_width, self.heads, self._head(width), self.length))
        query = self._projection("query", width)
        key = query if mechanism.key == "shared" else self._projection("key", width)
        tied = mechanism.value == "tied" or (mechanism.value == "identity" == mechanism.key)
        value = None if tied else self._projection("value", width)
        return Pieces(score, query, key, value, self._projection("out", width), self._alignment())

    def _score_parameters(self, sizes: Sizes) -> Params:
        declared = self.mechanism.score.arrays(sizes)
        if not declared:
            return {}

        def start(key):
            keys = jax.random.split(key, len(declared))
            return {n: p.init(k, p.shape, jnp.float32) for k, (n, p) in zip(keys, declared.items(), strict=True)}

        return self.param("score", start)

    def _alignment(self) -> tuple[jax.Array, jax.Array] | None:
        if self.mechanism.align is None:
            return None
        per_head = (self.heads,) if self.mechanism.align.per_head else ()
        kernel_init = nn.initializers.glorot_uniform(batch_axis=(0,) if per_head else ())
        kernel = self.param("align_kernel", kernel_init, (*per_head, self.length, self.length))
        return kernel, self.param("align_bias", nn.initializers.zeros_init(), (*per_head, self.length))

    def _query(self, pieces: Pieces, x: jax.Array, mask: attention.Mask) -> Any:
        query = pieces.query(x)
        query = rotate(query, mask.query_offset) if self.rotary else query
        return self.mechanism.score.prepare_query(pieces.score, query, Tokens(mask.query_offset, x))

    def _keys_and_values(self, pieces: Pieces, source: jax.Array, first: Any = 0) -> tuple[Any, jax.Array]:
        """Returns prepared keys, and values before alignment, of tokens whose first is at the position `first`."""
        slices = pieces.key(source)
        key = rotate(slices, first) if self.rotary else slices
        key = self.mechanism.score.prepare_key(pieces.score, key, Tokens(first, source))
        if self.mechanism.value == "tied":
            return key, key
        return key, slices if pieces.value is None else pieces.value(source)

    def _projection(self, piece: str, width: int) -> Callable[[jax.Array], Any]:
        """Returns a projection to heads of that total width, or for `out` from heads to that width."""
        mechanism, head = self.mechanism, self._head(width)
        kind = getattr(mechanism, piece)
        if kind == "none" and piece == "key":
            return lambda x: None
        gain = mechanism.score.query_gain(head) if piece == "query" else 1.0
        gain = gain**0.5 if mechanism.key == "shared" else gain
        heads = self._groups() if piece in ("key", "value") else self.heads
        outputs, inputs = ((width,), 2) if piece == "out" else ((heads, head), 1)
        return projection(kind, outputs, inputs, self.bias, self.epsilon, gain, self.dtype, name=piece)

    def _attend(self, params: Params, query: Any, key: Any, value: Any, mask: attention.Mask, train: bool) -> jax.Array:
        returns_weights = self.is_mutable_collection("attention") and not self.is_initializing()
        rate = self.dropout if train else 0.0
        drawn = rate > 0 or (train and self.mechanism.score.random)
        options = Options(mask, None, rate, dropout_key(self) if drawn else None, returns_weights, self.implementation)
        out = self.mechanism.score.attend(params, query, key, value, options)
        if not returns_weights:
            return out
        out, weights = out
        self.sow("attention", "weights", weights, reduce_fn=lambda _, new: new, init_fn=lambda: None)
        return out

    def _values_are_keys(self) -> bool:
        """Returns whether a cache need not hold values because they are the prepared keys."""
        mechanism = self.mechanism
        keys_unchanged = mechanism.score.keeps_keys and not self.rotary
        return mechanism.value == "tied" or (mechanism.key == "identity" == mechanism.value and keys_unchanged)

    def _remember(
        self, pieces: Pieces, cache: Cache, key: Any, value: Any, mask: attention.Mask
    ) -> tuple[Any, Any, Cache]:
        """Returns the keys and values of all slots (for a recurrence, of the new tokens) and the cache with them."""
        tokens, tied, recurrent = value.shape[1], self._values_are_keys(), cache.state is not None
        if not recurrent:
            key, cache = cache.append("key", key)
        if self.mechanism.align is not None:
            if tied and not recurrent:
                raw = key
            else:
                raw, cache = cache.append("raw", value)
            value = self._align(pieces, raw, mask, rows=tokens)
        elif tied and not recurrent:
            return key, key, cache
        if not recurrent:
            value, cache = cache.append("value", value)
        return key, value, cache

    def _align(self, pieces: Pieces, value: jax.Array, mask: attention.Mask, rows: int | None = None) -> jax.Array:
        """Returns W^A V + b `(B, R, N, H)`, or V if there is no alignment."""
        return value if pieces.align is None else attention.align_values(value, *pieces.align, mask=mask, rows=rows)


def _without_padding(x: jax.Array, mask: attention.Mask) -> jax.Array:
    """Returns the inputs of a self-attention with zeros at padding, which then gives no queries either."""
    if mask.key_lengths is None:
        return x
    return jnp.where(mask.real_keys(x.shape[1])[..., None], x, jnp.zeros((), x.dtype))


def _from(mask: attention.Mask, first: jax.Array) -> attention.Mask:
    """Returns the mask shifted so that the token at `first` is at position 0."""
    lengths = None if mask.key_lengths is None else mask.key_lengths - first
    return dataclasses.replace(mask, query_offset=0, key_lengths=lengths)


def _zeros(like: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)
