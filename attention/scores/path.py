"""PaTH attention: dot products through a Householder-like matrix of each token between (Yang et al. 2025, 2505.16381).

The product of the matrices of a block of tokens is I − Wᵀ (I + diag(β) tril(W Wᵀ, −1))⁻¹ diag(β) W, the UT transform,
so that queries meet one block after another, the newest first.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.nn import initializers
from jaxtyping import Array, Float

from attention import operations
from attention.activations import unit
from attention.forms import Tokens
from attention.kernels import reference, xla
from attention.kernels.arrays import precise, spread_heads
from attention.kernels.call import Call, check_implementation, common
from attention.operations import Cost
from attention.options import Options
from attention.parameters import Parameter, Params, Sizes, lift
from attention.recurrences.state import Marks, cut_chunks, inverted, solved
from attention.recurrences.surrounded import convolved
from attention.score import Mixer, Traits
from attention.types import Count

BLOCK = 64  # tokens whose matrices are multiplied at once
TAPS = 3  # tokens of the convolution


@dataclasses.dataclass(frozen=True)
class Path(Mixer):
    """score = q_iᵀ A_i … A_{j+1} k_j/√H under a softmax, with A_s = I − β_s w_s w_sᵀ of each token.

    w = silu(conv(U D x)), divided by its norm, with D of `rank` rows and a causal convolution of 3 tokens; and
    β = 2 σ(B x + b). These are the `PaTHAttention` of flash-linear-attention, but for each query head, even where
    heads share keys.

    Attributes:
      rank: How many numbers of a token w is projected from; a cache keeps these in its place.
      forget: Whether Σ_{s=j+1..i} log σ(F x_s + f), over √H as in the published code, is added (PaTH-FoX).
    """

    rank: Count = 32
    forget: bool = False
    title = "PaTH attention"
    normaliser = "softmax"
    traits = Traits(causal=True, reads_source=True, ties_values=False, in_parts=False, kernels=())

    @property
    def _gates(self) -> tuple[str, ...]:
        return ("strength", "forget") if self.forget else ("strength",)

    def parameters(self, sizes: Sizes) -> dict[str, Parameter]:
        """Declares D, U and the taps of the convolution, then B and b, and F and f if it forgets."""
        wide = sizes.heads, sizes.head
        taps = initializers.variance_scaling(1 / 3, "fan_in", "uniform", 0, (), (1, 2))
        declared = {
            "down_kernel": Parameter((sizes.model, self.rank), initializers.lecun_normal()),
            "up_kernel": Parameter((self.rank, *wide), initializers.lecun_normal(in_axis=0, out_axis=(1, 2))),
            "taps": Parameter((TAPS, *wide), taps),
        }
        for name in self._gates:
            declared[f"{name}_kernel"] = Parameter((sizes.model, sizes.heads), initializers.lecun_normal())
            declared[f"{name}_bias"] = Parameter((sizes.heads,), initializers.zeros)
        return declared

    def prepare_key(self, params: Params, key: jax.Array, at: Tokens) -> Any:
        """Gives the turned keys, D x `(*B, S, 1, rank)`, and what gates are made of, `(*B, S, N, 1)` each."""
        source = at.source.astype(key.dtype)
        low, *gates = (source @ params[f"{name}_kernel"].astype(source.dtype) for name in ("down", *self._gates))
        biases = (lift(params[f"{name}_bias"], source.ndim).astype(source.dtype) for name in self._gates)
        logits = (gate + bias for gate, bias in zip(gates, biases, strict=True))
        return at.turn(key), low[..., None, :], *(x[..., None] for x in logits)

    def attend(self, params: Params, query: jax.Array, key: Any, value: jax.Array, options: Options) -> Any:
        """Computes the output, and the weights if asked for, from the scores of all pairs."""
        self.check_causal(options.mask)
        name, _ = check_implementation(options.implementation, self.implementations, self.title)
        (keys, low, *gates), (queries, heads, width) = key, query.shape[-3:]
        logits, *forget = (precise(gate) for gate in gates)
        marks = Marks.of(options.mask, 0, value.shape[-3])
        strength = 2 * jax.nn.sigmoid(logits)
        if marks.real is not None:
            strength = jnp.where(marks.real[..., None, None], strength, 0)
        tokens = query * width**-0.5, keys, self._directions(params, low, marks), strength
        by_head = (jnp.moveaxis(precise(spread_heads(x, heads)), -2, -3) for x in tokens)
        scores = _scores(*by_head, options.mask.query_offset, 1 if name == "reference" else BLOCK)
        for logits in forget:
            sums = jnp.cumsum(jax.nn.log_sigmoid(logits), axis=-3) * width**-0.5
            scores -= jnp.moveaxis(sums, -3, -1)  # a softmax ignores what is added to a row
        call = Call(normaliser=self.weighing, params=params, **common(queries, heads, value, options))
        out, weights = (reference if name == "reference" else xla).weigh_values(call, scores)
        return (out, weights) if options.return_weights else out

    def _directions(self, params: Params, low: jax.Array, marks: Marks) -> Float[Array, "*B S N H"]:
        """Computes w; the convolution does not reach into another segment."""
        wide = precise(jnp.tensordot(low[..., 0, :], params["up_kernel"].astype(low.dtype), 1))
        wide = jnp.pad(wide, [(0, 0)] * (wide.ndim - 3) + [(TAPS - 1, 0), (0, 0), (0, 0)])
        return unit(jax.nn.silu(convolved(wide, params["taps"].astype(wide.dtype), marks.runs(TAPS - 1))))

    def cost(self, sizes: Sizes, queries: int, keys: int) -> Cost:
        """Counts a product and a matrix of rank 1 for each pair."""
        return operations.of_program(self, sizes, queries, keys, "reference")


def _scores(
    query: Float[Array, "*B N T H"],
    key: Float[Array, "*B N S H"],
    direction: Float[Array, "*B N S H"],
    strength: Float[Array, "*B N S 1"],
    first: int | jax.Array,
    size: int,
) -> Float[Array, "*B N T S"]:
    """Computes the scores of queries from position `first` on with blocks of `size` keys, the last block first.

    Each block also brings the queries before its first token, where the keys of the next block are.
    """
    queries, keys = query.shape[-2], key.shape[-2]
    size = min(size, max(1, keys))
    place = lift(jnp.arange(keys)[:, None], key.ndim)
    key, direction, erase, place = (cut_chunks(x, size) for x in (key, direction, strength * direction, place))
    inner = None
    if size > 1:
        overlap, met = (jnp.tril(erase @ x.mT, -1) for x in (direction, key))
        both = solved(overlap, inverted(overlap), jnp.concatenate([met, erase], -1))
        inner, erase = both[..., :size], both[..., size:]
    at = lift(first + jnp.arange(queries)[:, None], query.ndim)

    def step(query: jax.Array, block: Any) -> tuple[jax.Array, jax.Array]:
        key, direction, erase, inner, place = block
        met = jnp.where(place.mT <= at, query @ direction.mT, 0)
        scores = query @ key.mT
        return query - met @ erase, scores if inner is None else scores - met @ inner

    _, scores = jax.lax.scan(step, query, (key, direction, erase, inner, place), reverse=True)
    scores = jnp.moveaxis(scores, 0, -2)
    return jax.lax.collapse(scores, scores.ndim - 2)[..., :keys]
