"""Native sparse attention: gated attention to compressed blocks, to chosen blocks and to near keys (2502.11089)."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.nn import initializers

from attention.forms import Tokens
from attention.kernels.arrays import precise, spread_heads
from attention.kernels.call import check_implementation
from attention.mask import Mask, choose_blocks, in_blocks, keys_of_blocks
from attention.options import Options
from attention.parameters import Parameter, Params, Sizes, lift
from attention.score import Mixer, Traits
from attention.scores.dot import DotProduct
from attention.types import Count

SIDES = ("key", "value")


@dataclasses.dataclass(frozen=True)
class NativeSparse(Mixer):
    """Σ_c g_c softmax(q·k/√H) v over compressed blocks, chosen blocks and near keys; g = σ(W x) (section 3).

    A compressed block is W₂ gelu(W₁ (its keys or values, each plus a learned vector of its place) + b₁), and is seen
    once it is complete. The heads that share keys choose the same blocks, by the sum of their weights of compressed
    blocks; the block that the query stands in is always among them.

    Attributes:
      size: The keys of a block.
      top: The blocks that a query chooses, its own included.
      near: How many keys the third branch sees, the query's own included.
    """

    size: Count = 64
    top: Count = 16
    near: Count = 512
    title = "Native sparse attention"
    normaliser = "softmax"
    traits = Traits(one_sequence=True, ties_values=False, keeps_keys=True, in_parts=False, kernels=("chunked",))

    def parameters(self, sizes: Sizes) -> dict[str, Parameter]:
        """Declares W, and of keys and values the places, W₁, b₁ and W₂, which all heads share."""
        head, flat = sizes.head, self.size * sizes.head
        compression = {
            "place": Parameter((self.size, head), initializers.normal(0.02)),
            "flat_kernel": Parameter((flat, head), initializers.lecun_normal()),
            "flat_bias": Parameter((head,), initializers.zeros),
            "out_kernel": Parameter((head, head), initializers.lecun_normal()),
        }
        gates = Parameter((sizes.model, sizes.heads, 3), initializers.lecun_normal(in_axis=0, out_axis=(1, 2)))
        return {"gate_kernel": gates} | {f"{side}_{name}": p for side in SIDES for name, p in compression.items()}

    def prepare_query(self, params: Params, query: jax.Array, at: Tokens) -> Any:
        """Turns the queries, and computes the gates of the branches `(*B, T, N, 3)`."""
        gates = jax.nn.sigmoid(jnp.tensordot(at.source, params["gate_kernel"].astype(at.source.dtype), 1))
        return at.turn(query), gates

    def attend(self, params: Params, query: Any, key: jax.Array, value: jax.Array, options: Options) -> Any:
        """Computes the gated sum, and that of the weights, where a compressed block's are spread over its keys."""
        name, _ = check_implementation(options.implementation, self.implementations, self.title)
        (query, gates), keys = query, key.shape[-3]
        visible, bias = _of_pairs(options, query, value)
        first, second, third = _with_keys_of_their_own(options)
        by_block = dataclasses.replace(
            first,
            mask=in_blocks(visible, self.size).all(-1),
            bias=None if bias is None else in_blocks(bias, self.size).mean(-1),
            return_weights=True,
            implementation="reference" if name == "reference" else "xla",
        )
        compressed = [self._compress(params, side, x) for side, x in zip(SIDES, (key, value), strict=True)]
        of_blocks, weights = DotProduct().attend({}, precise(query), *compressed, by_block)
        chosen = self._choose(weights, in_blocks(visible, self.size).any(-1), key.shape[-2], keys)
        near = min(self.near, options.mask.window or self.near)
        seen = (
            dataclasses.replace(second, mask=Mask(dense=chosen & visible)),
            dataclasses.replace(third, mask=dataclasses.replace(options.mask, window=near)),
        )
        outs = [DotProduct().attend({}, query, key, value, branch) for branch in seen]
        if not options.return_weights:
            return _gated(gates, of_blocks, *outs).astype(value.dtype)
        spread = jnp.repeat(weights / self.size, self.size, -1)[..., :keys]
        outs, weights = zip((of_blocks, spread), *outs, strict=True)
        weights = _gated(jnp.swapaxes(gates, -2, -3), *weights)
        return _gated(gates, *outs).astype(value.dtype), weights.astype(value.dtype)

    def _compress(self, params: Params, side: str, x: jax.Array) -> jax.Array:
        """Compresses keys or values `(*B, S, K, H)` to `(*B, C, K, H)`, at least in float32."""
        x, of = precise(x), lambda name: params[f"{side}_{name}"]
        blocks = jnp.moveaxis(in_blocks(jnp.moveaxis(x, -3, -1), self.size), (-2, -1), (-4, -2))  # (*B, C, K, size, H)
        placed = blocks + lift(of("place"), blocks.ndim)
        flat = placed.reshape(*placed.shape[:-2], math.prod(placed.shape[-2:]))
        hidden = jax.nn.gelu(flat @ of("flat_kernel") + lift(of("flat_bias"), flat.ndim))
        return hidden @ of("out_kernel")

    def _choose(self, weights: jax.Array, visible: jax.Array, groups: int, keys: int) -> jax.Array:
        """Masks all but the keys of chosen blocks `(*B, N, T, S)`, given the weights of blocks `(*B, N, T, C)`."""
        *batch, heads, queries, blocks = weights.shape
        grouped = lambda x: x.reshape(*batch, groups, heads // groups, queries, blocks)  # noqa: E731
        chosen = choose_blocks(grouped(weights).sum(-3), grouped(visible).any(-3), self.top)
        return keys_of_blocks(spread_heads(chosen, heads, -3), self.size, keys)


def _with_keys_of_their_own(options: Options) -> list[Options]:
    """Gives the options of the three branches, which draw their dropout independently."""
    if options.dropout_key is None:
        return [options] * 3
    return [dataclasses.replace(options, dropout_key=key) for key in jax.random.split(options.dropout_key, 3)]


def _of_pairs(options: Options, query: jax.Array, value: jax.Array) -> tuple[jax.Array, jax.Array | None]:
    """Spreads the mask, and the bias if there is one, to `(*B, N, T, S)`."""
    shape = (*value.shape[:-3], query.shape[-2], query.shape[-3], value.shape[-3])
    allowed = options.mask.materialise(*shape[-2:], len(shape))
    bias = options.bias if options.bias is None else jnp.broadcast_to(options.bias, shape)
    return jnp.broadcast_to(True if allowed is None else allowed, shape), bias


def _gated(gates: jax.Array, *branches: jax.Array) -> jax.Array:
    return sum(gates[..., c, None] * x for c, x in enumerate(branches))
