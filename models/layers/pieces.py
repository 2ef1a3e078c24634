"""The attributes of an attention layer, their checks, and its parameters."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Int

import attention
from attention.errors import UsageError
from attention.kernels.call import check_implementation
from attention.parameters import Params, Sizes
from attention.score import Mixer
from attention.scores.dot import DotProduct
from attention.scores.rotary import Rotary
from models.layers.cache import Cache, PreparedSource
from models.layers.norms import RmsNorm
from models.layers.projections import MLPS, Dense, MlpProjection
from models.mechanisms import Mechanism, resolve

LATENT_EPSILON = 1e-6  # ε of the norms of latents, as in DeepSeek-V2


class Pieces(NamedTuple):
    """The pieces of an attention layer: its projections, and the arrays of its score and alignment.

    `latent` takes the source and its first token's position, and returns what keys and values are projected from: the
    source itself if there is no latent. It begins with the turned key that all heads share, if there is one. `align`
    takes values, a mask and rows, as `attention.align_values`; without an alignment it returns the values. `gate` takes
    the heads' outputs and the queries' inputs.
    """

    score: Params
    query: Callable[[jax.Array], jax.Array]
    latent: Callable[[jax.Array, int | jax.Array], jax.Array]
    key: Callable[[jax.Array], jax.Array | None]
    value: Callable[[jax.Array], jax.Array] | None  # None if the values are the keys
    gate: Callable[[jax.Array, jax.Array], jax.Array]
    out: Callable[[jax.Array], jax.Array]
    align: Callable[..., jax.Array]


class AttentionPieces(nn.Module):
    """Base of `MultiHeadAttention` with its attributes and parameters.

    Attributes:
      mechanism: The attention mechanism, a score or recurrence, or a string that names one, such as `neural(dim=2)`.
      heads: N, the number of heads.
      length: ℓ, the longest sequence, for mechanisms whose parameters have a fixed length; others need none.
      implementation: How attention is computed, see `attention.dot_product_attention`.
      dropout: Rate on the attention weights.
      bias: Whether linear projections have biases.
      epsilon: ε of the LayerNorm in MLP projections.
      rotary: Rotary positions of queries and keys, or None; for self-attention only.
      dtype: Compute dtype.
      head: H, the width of a head; 0 is D/N.
      layer: The number of its block, counted from 0; blocks that differ only in it can be scanned.
      depth: The number of blocks.
    """

    mechanism: Mechanism | Mixer | type[Mixer] | str
    heads: int
    length: int = 0
    implementation: str = "auto"
    dropout: float = 0.0
    bias: bool = True
    epsilon: float = 1e-6
    rotary: Rotary | None = None
    dtype: DTypeLike = jnp.float32
    head: int = 0
    layer: int | Int[Array, ""] = dataclasses.field(default=0, compare=False)
    depth: int = 1

    def __post_init__(self):
        (self.mechanism,) = resolve(self.mechanism, 1)
        super().__post_init__()

    def check(self, width: int, source: jax.Array | PreparedSource | None, cache: Cache | None) -> None:
        """Raises UsageError unless the mechanism supports a call with queries of this width."""
        mechanism = self.mechanism
        check_implementation(self.implementation, mechanism.score.implementations, mechanism.name)
        arrays = mechanism.score.arrays(self.sizes(width)).values()
        if not self.length and (mechanism.align is not None or any(0 in array.shape for array in arrays)):
            raise UsageError(f"{mechanism.name} is built for a fixed length; give its longest sequence as length.")
        if self.rotary and "none" in (mechanism.query, mechanism.key):
            raise UsageError(f"{mechanism.name} has no queries and keys to rotate; choose positions other than rotary.")
        if self.rotary and mechanism.value == "tied":
            raise UsageError(
                f"The values of {mechanism.name} are its keys, which rotary positions would turn; choose others."
            )
        pieces = (mechanism.query, mechanism.key, mechanism.value, mechanism.out)
        if "identity" in pieces and self.head and self.head * self.heads != width:
            raise UsageError(
                f"{mechanism.name} splits its inputs among the heads, so {self.heads} heads of a width {width} cannot "
                f"be {self.head} wide; leave out model.head."
            )
        sizes = self.heads, self.groups(), self.head_width(width)
        sides, plain = mechanism.score.widths(*sizes), Mixer.widths(mechanism.score, *sizes)
        if "identity" in (mechanism.query, mechanism.key) and sides != plain:
            raise UsageError(f"{mechanism.name} splits its inputs among the heads; leave out groups and state.")
        if source is None:
            return
        if self.rotary:
            raise UsageError("Rotary positions are for self-attention; leave out the source.")
        if cache is not None:
            raise UsageError(
                "A decode cache is for self-attention; cross-attention takes what prepare makes of a source."
            )
        if not mechanism.cross:
            raise UsageError(f"{mechanism.name} with these options is for self-attention only; leave out the source.")
        unprojected = {"identity", "shared"} & {mechanism.key, mechanism.value}
        source_width = source.width if isinstance(source, PreparedSource) else source.shape[-1]
        if source_width != width and unprojected:
            raise UsageError(
                f"{mechanism.name} has a key or value projection {min(unprojected)!r}, so the source must be "
                f"{width} wide as the queries are, not {source_width}."
            )

    def head_width(self, width: int) -> int:
        """Finds H, the width of a head."""
        if self.head:
            return self.head
        if width % self.heads:
            raise UsageError(f"{self.heads} heads do not divide a width of {width}; choose a divisor of {width}.")
        return width // self.heads

    def sizes(self, width: int, source_width: int = 0) -> Sizes:
        """Collects the score's sizes; its heads include the rotated part beside a latent, if there is one."""
        head = self.head_width(width) + self.mechanism.rotary
        return Sizes(source_width or width, self.heads, head, self.length)

    @property
    def key_rotary(self) -> Rotary | None:
        """The rotary positions of keys; None if all heads share a key, which is turned already."""
        return None if self.mechanism.rotary else self.rotary

    def query_rotary(self, width: int) -> Rotary | None:
        """Chooses the rotary positions of queries; a part beside a latent has default ones if none are given."""
        part = self.mechanism.rotary
        if not part:
            return self.rotary
        rotary = self.rotary or Rotary()
        return dataclasses.replace(rotary, fraction=rotary.fraction * part / (self.head_width(width) + part))

    def absorbs(self, tokens: int, width: int) -> bool:
        """Tells whether new tokens read a cache of latents as it is, without keys and values of each head.

        That needs plain products: dot products of keys that do not turn, projected without biases. For more tokens than
        a head is wide, projecting all slots to heads takes fewer operations.
        """
        mechanism = self.mechanism
        products = isinstance(mechanism.score, DotProduct) and mechanism.score.traits.keeps_keys
        linear = mechanism.key == mechanism.value == "linear" and not self.bias and self.key_rotary is None
        return products and linear and tokens <= self.head_width(width) and self.implementation != "cudnn"

    def groups(self) -> int:
        """Finds K, the number of key and value heads."""
        groups = self.mechanism.kv_heads or self.heads
        if self.heads % groups:
            raise UsageError(f"kv_heads={groups} does not divide {self.heads} heads; choose a divisor.")
        return groups

    @nn.compact
    def pieces(self, width: int, source_width: int) -> Pieces:
        """Makes the pieces for inputs of queries and of keys that are this wide."""
        mechanism = self.mechanism
        score = self._score_parameters(self.sizes(width, source_width))
        query = self._query(width)
        latent = self._latent() if mechanism.latent else lambda source, first: source
        key = query if mechanism.key == "shared" else self._projection("key", width)
        tied = mechanism.value == "tied" or (mechanism.value == "identity" == mechanism.key)
        value = None if tied else self._projection("value", width)
        gate, out = self._gate(width), self._projection("out", width)
        return Pieces(score, query, latent, key, value, gate, out, self._alignment())

    def _query(self, width: int) -> Callable[[jax.Array], jax.Array]:
        query = self._projection("query", width)
        if not self.mechanism.query_latent:
            return query
        down = self._narrow("query_latent", self.mechanism.query_latent)
        return lambda x: query(down(x))

    def _latent(self) -> Callable[[jax.Array, int | jax.Array], jax.Array]:
        down, part = self._narrow("latent", self.mechanism.latent), self.mechanism.rotary
        if not part:
            return lambda source, first: down(source)
        shared, rotary = Dense((1, part), bias=self.bias, dtype=self.dtype, name="rotary_key"), self.rotary or Rotary()

        def key_and_latent(source: jax.Array, first: int | jax.Array) -> jax.Array:
            turned = rotary.turn(shared(source), first)[..., 0, :]
            return jnp.concatenate([turned, down(source)], axis=-1)

        return key_and_latent

    def _narrow(self, name: str, width: int) -> Callable[[jax.Array], jax.Array]:
        """Makes a projection to a latent, with the norm if the mechanism has one."""
        down = Dense((width,), bias=self.bias, dtype=self.dtype, name=name)
        if not self.mechanism.latent_norm:
            return down
        norm = RmsNorm(LATENT_EPSILON, self.dtype, name=f"{name}_norm")
        return lambda x: norm(down(x))

    def _gate(self, width: int) -> Callable[[jax.Array, jax.Array], jax.Array]:
        numbers = self.mechanism.gates(self.head_width(width))
        if not numbers:
            return lambda heads, x: heads
        gate = Dense((self.heads, numbers), bias=self.bias, dtype=self.dtype, name="output_gate")
        return lambda heads, x: heads * nn.sigmoid(gate(x))

    def _score_parameters(self, sizes: Sizes) -> Params:
        declared = self.mechanism.score.arrays(sizes)
        if not declared:
            return {}

        def start(key):
            keys = jax.random.split(key, len(declared))
            return {n: p.init(k, p.shape, jnp.float32) for k, (n, p) in zip(keys, declared.items(), strict=True)}

        return self.param("score", start)

    def _alignment(self) -> Callable[..., jax.Array]:
        if self.mechanism.align is None:
            return lambda value, **options: value
        per_head = (self.heads,) if self.mechanism.align.per_head else ()
        kernel_init = nn.initializers.glorot_uniform(batch_axis=(0,) if per_head else ())
        kernel = self.param("align_kernel", kernel_init, (*per_head, self.length, self.length))
        bias = self.param("align_bias", nn.initializers.zeros_init(), (*per_head, self.length))
        return functools.partial(attention.align_values, kernel=kernel, bias=bias)

    def _projection(self, piece: str, width: int) -> Callable[[jax.Array], Any]:
        """Makes a projection to heads, which together are as wide as stated, or for `out` from heads to that width."""
        mechanism, head = self.mechanism, self.head_width(width)
        kind = getattr(mechanism, piece)
        if kind == "none" and piece == "key":
            return lambda x: None
        head += mechanism.rotary if piece == "query" else 0
        gain = mechanism.score.query_gain(head) if piece == "query" else 1.0
        gain = gain**0.5 if mechanism.key == "shared" else gain
        wide = mechanism.score.widths(self.heads, self.groups(), head) | {"value": (self.groups(), head)}
        outputs, inputs = ((width,), 2) if piece == "out" else (wide[piece], 1)
        more = {"gain": gain, "dtype": self.dtype, "name": piece}
        if kind == "linear":
            return Dense(outputs, inputs, self.bias, **more)
        if kind in MLPS:
            return MlpProjection(outputs, inputs, **MLPS[kind], epsilon=self.epsilon, **more)
        return lambda x: x.reshape(*x.shape[:-inputs], *outputs)  # `identity` and `none`

    def values_are_keys(self) -> bool:
        """Tells whether a cache need not hold values because they are the prepared keys."""
        mechanism = self.mechanism
        keys_unchanged = mechanism.score.traits.keeps_keys and not self.rotary
        return mechanism.value == "tied" or (mechanism.key == "identity" == mechanism.value and keys_unchanged)
