"""The pairwise family: scores = w·σ(… σ(a_i + b_j) …), an MLP on each pair of a query and a key.

`W·concat(q, k) + bias = a_i + b_j` with `a = W_q q + bias` and `b = W_k k`, so the first layer takes T + S products,
not T·S, and concat(q, k) is never stored. Neural, additive and Luong's concat scores are all such MLPs.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jax.nn import initializers
from jaxtyping import Array, Float

from attention.activations import ACTIVATIONS
from attention.errors import UsageError, check_known
from attention.forms import MLP, At, Tokens
from attention.kernels.arrays import spread_heads
from attention.kernels.call import check_shapes, check_weight
from attention.options import takes_options
from attention.parameters import Parameter, Params, Sizes, lift
from attention.score import Score, Traits, attend
from attention.types import Count, Names, Sentinel, Size, at_least

PAIRS = ("shared", "unique")
PARTS = ("kernel", "bias")

Layer = tuple[Float[Array, "..."], Float[Array, "..."] | None]


@takes_options
def neural_attention(
    query: Float[Array, "*B T N H"],
    key: Float[Array, "*B S K H"],
    value: Float[Array, "*B S K V"],
    layers: Sequence[Layer],
    down: Sequence[Layer] = (),
    *,
    activation: str = "relu",
    scale: float = 1.0,
    pairs: str = "shared",
    **options: Any,
) -> Float[Array, "*B T N V"] | tuple[Float[Array, "*B T N V"], Float[Array, "*B N T S"]]:
    """Computes softmax(MLP(concat(q', k')) · scale + bias) v with projected q' and k' (DiGiugno, eq. 3 to 9).

    Args:
      query: Queries `(*B, T, N, H)`.
      key: Keys `(*B, S, K, H)`; K divides N.
      value: Values `(*B, S, K, V)`.
      layers: Kernel and bias of each layer of the MLP: first `(2d', M)` on concat(q', k'), last `(M, 1)`; shared
        weights need at least two. The last bias shifts all scores of a row alike, so shared weights do not use it. A
        leading axis N gives each head its own layers.
      down: Kernel `(H, d')` and bias of the projections of queries and keys; by default there are none. They have
        a leading axis N exactly if `layers` do.
      activation: The activation after each layer but the last, a name of `attention.activations.ACTIVATIONS`.
      scale: Factor of the scores; DiGiugno's published code has none, its eq. 9 has 1/√H.
      pairs: `shared` weights, or `unique` ones for each pair as in eq. 8: then `layers` have leading axes `(L, L)`,
        or `(N, L, L)`, the leading block serves fewer tokens, and the last bias counts.
      **options: The fields of `attention.options.Options`; implementations: `auto`, `xla`, `chunked`, `reference`
        and, for TPUs and Hopper GPUs and without unique pairs, `pallas`, which on TPUs may have sizes too.

    Returns:
      The output, and the weights if `return_weights` is set.

    Raises:
      UsageError: the shapes do not fit, a name is unknown, or there are more tokens than unique weights.
      UnsupportedError: the named implementation does not support this call.
    """
    check_shapes(query, key, value)
    layers, down = tuple(layers), tuple(down)
    check_known("kind of pairs", pairs, PAIRS)
    _check_layers(layers, down, pairs == "unique", *query.shape[-2:])
    if scale != 1.0:
        layers = (*layers[:-1], jax.tree.map(lambda x: x * scale, layers[-1]))
    named = {f"layer_{index}": layer for index, layer in enumerate(layers)}
    named |= {f"down_{side}": layer for side, layer in zip(("query", "key"), down, strict=False)}
    params = {f"{name}_{part}": x for name, layer in named.items() for part, x in zip(PARTS, layer, strict=True)}
    score = Neural(
        down[0][0].shape[-1] if down else None,
        tuple(kernel.shape[-1] for kernel, _ in layers[:-1]),
        activation,
        per_head=layers[0][0].ndim - 2 * (pairs == "unique") == 3,
        pairs=pairs,
    )
    return attend(score, {name: x for name, x in params.items() if x is not None}, query, key, value, **options)


@takes_options
def additive_attention(
    query: Float[Array, "*B T N H"],
    key: Float[Array, "*B S K H"],
    value: Float[Array, "*B S K V"],
    query_kernel: Float[Array, "*N H M"],
    key_kernel: Float[Array, "*N H M"],
    hidden_bias: Float[Array, "*N M"],
    vector: Float[Array, "*N M"],
    **options: Any,
) -> Float[Array, "*B T N V"] | tuple[Float[Array, "*B T N V"], Float[Array, "*B N T S"]]:
    """Computes softmax(vᵀ tanh(W q + U k + b) + bias) v (Bahdanau et al. 2014, appendix A.1.2; Wikipedia).

    Args:
      query: Queries `(*B, T, N, H)`.
      key: Keys `(*B, S, K, H)`; K divides N.
      value: Values `(*B, S, K, V)`.
      query_kernel: W, `(H, M)`. A leading axis N of all weights gives each head its own.
      key_kernel: U, with the shape of W.
      hidden_bias: b, `(M,)`.
      vector: v, `(M,)`.
      **options: The fields of `attention.options.Options`, as of `neural_attention`.

    Returns:
      The output, and the weights if `return_weights` is set.

    Raises:
      UsageError: the shapes do not fit or the implementation is unknown.
      UnsupportedError: the named implementation does not support this call.
    """
    check_weight("query_kernel", query_kernel, (*query_kernel.shape[:-2], query.shape[-1], vector.shape[-1]))
    check_weight("key_kernel", key_kernel, query_kernel.shape)
    kernel = jnp.concatenate([query_kernel, key_kernel], axis=-2)
    layers = ((kernel, hidden_bias), (vector[..., None], None))
    return neural_attention(query, key, value, layers, activation="tanh", **options)


def _check_layers(layers: Sequence[Layer], down: Sequence[Layer], unique: bool, heads: int, width: int) -> None:
    """Raises UsageError unless the weights fit heads of that width and each other."""
    if not layers or len(down) not in (0, 2):
        raise UsageError(
            f"Neural attention needs layers, and a projection down of queries and one of keys or neither, but was "
            f"given {len(layers)} and {len(down)}."
        )
    if len(layers) == 1 and not unique:
        raise UsageError(
            "Neural attention with shared weights needs at least two layers, but was given 1: with a single one "
            "the query shifts all scores of its row alike and drops out; put a hidden layer before it."
        )
    *lead, _, _ = layers[0][0].shape
    pairs = tuple(lead[-2:]) if unique else ()
    if unique and (len(pairs) < 2 or pairs[0] != pairs[1]):
        raise UsageError(f"Unique pairs need layers with leading axes (L, L), but they are {tuple(lead)}.")
    per_head = (heads,) if len(lead) > len(pairs) else ()
    for side, (kernel, bias) in zip(("query", "key"), down, strict=bool(down)):
        check_weight(f"{side} kernel of down", kernel, (*per_head, width, -1))
        if bias is not None:
            check_weight(f"{side} bias of down", bias, (*per_head, kernel.shape[-1]))
    inputs = 2 * (down[0][0].shape[-1] if down else width)
    for index, (kernel, bias) in enumerate(layers):
        outputs = 1 if index == len(layers) - 1 else -1
        check_weight(f"kernel of layer {index}", kernel, (*per_head, *pairs, inputs, outputs))
        inputs = kernel.shape[-1]
        if bias is not None:
            check_weight(f"bias of layer {index}", bias, (*per_head, *pairs, inputs))


class PairScore(Score):
    """Base of the scores by an MLP on each pair; `pair` holds for any number of layers."""

    title = "Attention by pairs"
    traits = Traits(ties_values=False)
    activation: str
    per_head: bool
    unique = False

    def layers(self, params: Params) -> tuple[Layer, ...]:
        """Finds kernel and bias of each layer of the MLP."""
        raise NotImplementedError

    def project(self, params: Params, x: jax.Array, side: str) -> jax.Array:
        """Projects queries or keys before the first layer."""
        return x

    def prepare_query(self, params: Params, query: jax.Array, at: Tokens) -> jax.Array:
        """Computes a = W_q q + bias `(*B, T, N, M)`; if pairs are unique, the projected query."""
        return self._first(params, at.turn(query), "query")

    def prepare_key(self, params: Params, key: jax.Array, at: Tokens) -> jax.Array:
        """Computes b = W_k k, for N heads if each has its own weights; if pairs are unique, the projected key."""
        return self._first(params, at.turn(key), "key")

    def _first(self, params: Params, x: jax.Array, side: str) -> jax.Array:
        kernel, bias = self.layers(params)[0]
        heads = "n" if self.per_head else ""
        x = self.project(params, spread_heads(x, len(kernel)) if heads else x, side)
        if self.unique:
            return x
        half = jnp.split(kernel, 2, axis=-2)[side == "key"]
        return _affine(x, half, bias if side == "query" else None, heads)

    def pair(self, params: Params, query: jax.Array, key: jax.Array, at: At) -> jax.Array:
        """Applies the MLP to one pair. Its last bias shifts a row alike, so the softmax does not use it."""
        first, *rest = self.layers(params)
        if self.unique:
            of_query, of_key = jnp.split(first[0], 2)
            hidden = _plus(query @ of_query + key @ of_key, first[1])
        else:
            hidden = query + key
        for index, (kernel, bias) in enumerate(rest, 1):
            used = bias if index < len(rest) or self._shifted else None
            hidden = _plus(ACTIVATIONS[self.activation](hidden) @ kernel, used)
        return hidden[0]

    @property
    def _shifted(self) -> bool:
        return self.unique or not self.weighing.shift_invariant

    def form(self, params: Params, query: jax.Array, key: jax.Array) -> MLP | None:
        """Gives the layers after the first."""
        _, *layers, (kernel, bias) = self.layers(params)
        if self.unique or (self._shifted and bias is not None):
            return None
        return MLP(tuple(layers), kernel[..., 0], self.activation)


@dataclasses.dataclass(frozen=True)
class Neural(PairScore):
    """score = an MLP on the pair (DiGiugno).

    Attributes:
      dim: d', the width to which queries and keys are projected down; None leaves them as wide as the head.
      hidden: Hidden units of each layer; () means (d', max(1, d'/2)), as in the published code.
      activation: The activation after each hidden layer.
      scale: Whether to divide the scores by √H (eq. 9), which the published code does not.
      per_head: Whether each head has its own weights.
      pairs: `shared` weights, or `unique` ones for each pair (eq. 8), for at most the layer's length.
    """

    dim: Annotated[int | None, at_least(1), Sentinel(None, "as wide as the head")] = 2
    hidden: tuple[Count, ...] = ()
    activation: Annotated[str, Names(ACTIVATIONS)] = "relu"
    scale: bool = False
    per_head: bool = False
    pairs: Annotated[str, Names(PAIRS)] = "shared"

    @property
    def unique(self) -> bool:
        """Tells whether each pair has its own weights."""
        return self.pairs == "unique"

    @property
    def traits(self) -> Traits:
        """Leaves out the Pallas kernels, which have no unique pairs, where pairs are unique."""
        return Traits(ties_values=False, kernels=("chunked",) if self.unique else Traits.kernels)

    def parameters(self, sizes: Sizes) -> dict[str, Parameter]:
        """Declares kernel and bias of the projections down and of each layer."""
        heads = {"heads": sizes.heads} if self.per_head else {}
        pairs = {"queries": sizes.length, "keys": sizes.length} if self.unique else {}
        dim, declared = self.dim or sizes.head, {}
        widths = 2 * dim, *(self.hidden or (dim, max(1, dim // 2))), 1
        for side in ("query", "key") if self.dim is not None else ():
            declared |= _layer(f"down_{side}", heads, sizes.head, self.dim)
        for index, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
            declared |= _layer(f"layer_{index}", heads | pairs, inputs, outputs)
        return declared

    def layers(self, params: Params) -> tuple[Layer, ...]:
        """Finds kernel and bias of each layer, the last times the scale; the public function may leave biases out."""
        count = sum(name.startswith("layer_") and name.endswith("_kernel") for name in params)
        *layers, last = ((params[f"layer_{i}_kernel"], params.get(f"layer_{i}_bias")) for i in range(count))
        if self.scale:
            down = params.get("down_query_kernel")
            head = params["layer_0_kernel"].shape[-2] // 2 if down is None else down.shape[-2]
            last = jax.tree.map(lambda x: x * head**-0.5, last)
        return *layers, last

    def project(self, params: Params, x: jax.Array, side: str) -> jax.Array:
        """Projects queries or keys down."""
        if self.dim is None:
            return x
        kernel, bias = params[f"down_{side}_kernel"], params.get(f"down_{side}_bias")
        return _affine(x, kernel, bias, "n" if self.per_head else "")


@dataclasses.dataclass(frozen=True)
class Additive(PairScore):
    """score = vᵀ tanh(W q + U k + b), which is also Luong's vᵀ tanh(W_a [q; k] + b).

    Attributes:
      units: Number of hidden units; 0 means H.
      per_head: Whether each head has its own weights.
    """

    units: Size = 0
    per_head: bool = False
    activation = "tanh"

    def parameters(self, sizes: Sizes) -> dict[str, Parameter]:
        """Declares W and U stacked in one kernel, b, and v."""
        heads = {"heads": sizes.heads} if self.per_head else {}
        units = self.units or sizes.head
        return _layer("hidden", heads, 2 * sizes.head, units) | {"vector_kernel": _kernel(heads, units, 1)}

    def layers(self, params: Params) -> tuple[Layer, ...]:
        """Finds the hidden layer, and v as a layer without a bias."""
        return (params["hidden_kernel"], params.get("hidden_bias")), (params["vector_kernel"], None)


def _layer(name: str, lead: dict[str, int], inputs: int, outputs: int) -> dict[str, Parameter]:
    bias = Parameter((*lead.values(), outputs), initializers.zeros, tuple(lead))
    return {f"{name}_kernel": _kernel(lead, inputs, outputs), f"{name}_bias": bias}


def _kernel(lead: dict[str, int], inputs: int, outputs: int) -> Parameter:
    init = initializers.lecun_normal(batch_axis=tuple(range(len(lead))))
    return Parameter((*lead.values(), inputs, outputs), init, tuple(lead))


def _affine(x: jax.Array, kernel: jax.Array, bias: jax.Array | None, heads: str) -> jax.Array:
    """Multiplies x `(*B, L, N, H)` by `(H, M)`, or by `(N, H, M)` if `heads` is "n", and adds a bias."""
    return _plus(jnp.einsum(f"...nh,{heads}hm->...nm", x, kernel.astype(x.dtype)), bias)


def _plus(x: jax.Array, bias: jax.Array | None) -> jax.Array:
    return x if bias is None else x + lift(bias.astype(x.dtype), x.ndim)
