"""PaTH attention: what lies between two tokens turns one towards the other (Yang et al. 2025, arXiv:2505.16381)."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.nn import initializers
from jaxtyping import Array, Float

from attention import operations
from attention.activations import unit
from attention.errors import UnsupportedError
from attention.forms import Tokens
from attention.kernels import reference, xla
from attention.kernels.arrays import precise, spread_heads
from attention.kernels.call import Call, check_implementation, common
from attention.operations import Cost
from attention.options import Options
from attention.parameters import Parameter, Params, Sizes, lift
from attention.recurrences.state import solved
from attention.score import Mixer, Traits
from attention.types import Count

Rows = Float[Array, "*B N _ H"]
Strengths = Float[Array, "*B N S 1"]
Scores = Float[Array, "*B N T S"]


@dataclasses.dataclass(frozen=True)
class Path(Mixer):
    """softmax(qᵢᵀ Mᵢ Mᵢ₋₁ … Mⱼ₊₁ kⱼ/√H) v with M = I − β w wᵀ; causal.

    w = W₂ W₁ x over its norm and β = 2 σ(w_β·x + b) are of each token and head. This is the layer of
    flash-linear-attention without a convolution of w and without forget gates.

    Attributes:
      rank: The width between W₁ and W₂.
    """

    rank: Count = 32
    title = "PaTH attention"
    normaliser = "softmax"
    traits = Traits(causal=True, reads_source=True, ties_values=False, in_parts=False, kernels=())

    def parameters(self, sizes: Sizes) -> dict[str, Parameter]:
        """Declares W₁, W₂, w_β and b."""
        width = sizes.heads, sizes.head
        return {
            "turn_down_kernel": Parameter((sizes.model, self.rank), initializers.lecun_normal()),
            "turn_up_kernel": Parameter((self.rank, *width), initializers.lecun_normal(in_axis=0, out_axis=(1, 2))),
            "strength_kernel": Parameter((sizes.model, sizes.heads), initializers.lecun_normal()),
            "strength_bias": Parameter((sizes.heads,), initializers.zeros),
        }

    def prepare_key(self, params: Params, key: jax.Array, at: Tokens) -> Any:
        """Computes the keys, w `(*B, S, N, H)` and β `(*B, S, N, 1)`."""
        source = precise(at.source)
        wide = jnp.tensordot(source @ params["turn_down_kernel"], params["turn_up_kernel"], 1)
        strength = 2 * jax.nn.sigmoid(source @ params["strength_kernel"] + lift(params["strength_bias"], source.ndim))
        return at.turn(key), unit(wide), strength[..., None]

    def attend(self, params: Params, query: jax.Array, key: Any, value: jax.Array, options: Options) -> Any:
        """Computes the output, and the weights if asked for."""
        if not options.mask.causal:
            raise UnsupportedError(f"{self.title} needs a causal mask: what turns a query lies before it.")
        name, _ = check_implementation(options.implementation, self.implementations, self.title)
        fields = common(*query.shape[-3:-1], value, options)
        arrays = (precise(spread_heads(x, query.shape[-2])) for x in (query * query.shape[-1] ** -0.5, *key))
        *rows, strength = (jnp.moveaxis(x, -3, -2) for x in arrays)
        places = options.mask.query_offset + jnp.arange(query.shape[-3])
        by_token = name == "reference" or (name == "auto" and query.shape[-3] == 1)
        scores = (turn_by_turn if by_token else all_pairs)(*rows, strength, places)
        weigh = reference.weigh_values if name == "reference" else xla.weigh_values
        out, weights = weigh(Call(query=query, key=key, **fields), scores)
        return (out, weights) if options.return_weights else out

    def cost(self, sizes: Sizes, queries: int, keys: int) -> Cost:
        """Counts the turns of each query by each token."""
        return operations.of_program(self, sizes, queries, keys, "reference")


def turn_by_turn(
    query: Rows, key: Rows, turn: Rows, strength: Strengths, places: jax.Array
) -> Float[Array, "*B N T S"]:
    """Computes the scores as they are defined: queries at these places meet one key after another, the last first."""
    queries, last = query, key.shape[-2] - 1
    before = lift(places[:, None], query.ndim)

    def step(queries: jax.Array, index: jax.Array) -> tuple[jax.Array, jax.Array]:
        key_here, turn_here, strength_here = (x[..., index, :][..., None, :] for x in (key, turn, strength))
        scores = jnp.sum(queries * key_here, -1)
        turned = queries - strength_here * jnp.sum(queries * turn_here, -1, keepdims=True) * turn_here
        return jnp.where(index <= before, turned, queries), scores

    _, scores = jax.lax.scan(step, queries, last - jnp.arange(last + 1))
    return jnp.moveaxis(scores, 0, -1)[..., ::-1]


def all_pairs(query: Rows, key: Rows, turn: Rows, strength: Strengths, places: jax.Array) -> Scores:
    """Computes them at once: a product of Householder matrices is I − Wᵀ (I + L)⁻¹ diag(β) W, L = tril(β W Wᵀ, −1)."""
    keys = key.shape[-2]
    seen = lift(jnp.arange(keys)[None] <= places[:, None], query.ndim)
    pairs = lambda x, y: jnp.einsum("...th,...sh->...ts", x, y)  # noqa: E731
    turns = solved(jnp.tril(strength * pairs(turn, turn), -1), jnp.tril(strength * pairs(turn, key), -1))
    return pairs(query, key) - jnp.where(seen, pairs(query, turn), 0) @ turns
