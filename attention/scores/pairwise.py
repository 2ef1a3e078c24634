"""The pairwise family: scores = w·σ(… σ(a_i + b_j) …), an MLP on each pair of a query and a key.

`W·concat(q, k) + bias = a_i + b_j` with `a = W_q q + bias` and `b = W_k k`, so the first layer takes T + S products,
not T·S, and concat(q, k) is never stored. One kernel computes neural, additive and Luong's concat scores.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.nn import initializers
from jaxtyping import Array, Float, PRNGKeyArray

from attention import operations
from attention import reference as definitions
from attention.activations import ACTIVATIONS
from attention.errors import UsageError, unknown
from attention.kernels import pair_chunked, pair_pallas, reference, tiles, xla
from attention.kernels.call import (
    PairCall,
    SoftmaxCall,
    check_implementation,
    check_rows,
    check_shapes,
    check_weight,
    common,
)
from attention.kernels.reference import precise, spread_heads
from attention.mask import Mask
from attention.score import Parameter, Params, Score, Sizes, check_flags, is_count

IMPLEMENTATIONS = {"xla": xla.pair, "chunked": pair_chunked.pair, "pallas": pair_pallas.pair}
PAIRS = ("shared", "unique")

Layer = tuple[Float[Array, "..."], Float[Array, "..."] | None]


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
    mask: Mask | None = None,
    bias: Float[Array, "*#B #N #T #S"] | None = None,
    dropout_rate: float = 0.0,
    dropout_key: PRNGKeyArray | None = None,
    return_weights: bool = False,
    implementation: str = "auto",
) -> Float[Array, "*B T N V"] | tuple[Float[Array, "*B T N V"], Float[Array, "*B N T S"]]:
    """Returns softmax(MLP(concat(q', k')) · scale + bias) v with projected q' and k' (DiGiugno, eq. 3 to 9).

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
      mask: Which query may attend to which key.
      bias: Added to the scores; broadcasts to `(*B, N, T, S)`.
      dropout_rate: Fraction of the weights that are zeroed, in [0, 1).
      dropout_key: Random key of dropout; needed unless the rate is 0.
      return_weights: Whether to return the weights before dropout too.
      implementation: `auto`, `xla`, `chunked` (tiles that bound the memory; no weights or unique pairs), `pallas`
        (likewise, for TPUs and Hopper GPUs) or `reference`. `chunked(128, 256)` and, on TPUs, `pallas(128, 256)` take
        tiles of 128 queries and 256 keys.

    Returns:
      The output, and the weights if `return_weights` is set.

    Raises:
      UsageError: the shapes do not fit, a name is unknown, or there are more tokens than unique weights.
      UnsupportedError: the named implementation does not support this call.
    """
    check_shapes(query, key, value)
    key = (mask or Mask()).without_unreachable(key, query.shape[-3], query.ndim)
    weights = PairWeights(tuple(layers), tuple(down), activation, scale, pairs)
    weights.check(*query.shape[-2:])
    return weights.attend(
        weights.prepare(query, 0, implementation),
        weights.prepare(key, 1, implementation),
        value,
        mask=mask,
        bias=bias,
        dropout_rate=dropout_rate,
        dropout_key=dropout_key,
        return_weights=return_weights,
        implementation=implementation,
    )


def additive_attention(
    query: Float[Array, "*B T N H"],
    key: Float[Array, "*B S K H"],
    value: Float[Array, "*B S K V"],
    query_kernel: Float[Array, "*N H M"],
    key_kernel: Float[Array, "*N H M"],
    hidden_bias: Float[Array, "*N M"],
    vector: Float[Array, "*N M"],
    *,
    mask: Mask | None = None,
    bias: Float[Array, "*#B #N #T #S"] | None = None,
    dropout_rate: float = 0.0,
    dropout_key: PRNGKeyArray | None = None,
    return_weights: bool = False,
    implementation: str = "auto",
) -> Float[Array, "*B T N V"] | tuple[Float[Array, "*B T N V"], Float[Array, "*B N T S"]]:
    """Returns softmax(vᵀ tanh(W q + U k + b) + bias) v (Bahdanau et al. 2014, appendix A.1.2; Wikipedia).

    Args:
      query: Queries `(*B, T, N, H)`.
      key: Keys `(*B, S, K, H)`; K divides N.
      value: Values `(*B, S, K, V)`.
      query_kernel: W, `(H, M)`. A leading axis N of all weights gives each head its own.
      key_kernel: U, with the shape of W.
      hidden_bias: b, `(M,)`.
      vector: v, `(M,)`.
      mask: Which query may attend to which key.
      bias: Added to the scores; broadcasts to `(*B, N, T, S)`.
      dropout_rate: Fraction of the weights that are zeroed, in [0, 1).
      dropout_key: Random key of dropout; needed unless the rate is 0.
      return_weights: Whether to return the weights before dropout too.
      implementation: See `neural_attention`.

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
    options = {"mask": mask, "bias": bias, "dropout_rate": dropout_rate, "dropout_key": dropout_key}
    options |= {"return_weights": return_weights, "implementation": implementation}
    return neural_attention(query, key, value, layers, activation="tanh", **options)


@dataclasses.dataclass(frozen=True)
class PairWeights:
    """The MLP of `neural_attention`, with methods that check it and compute its scores.

    Attributes:
      layers: Kernel and bias of each layer, see `neural_attention`.
      down: Kernel and bias of both projections, see `neural_attention`.
      activation: Name of the activation.
      scale: Factor of the scores.
      pairs: `shared` or `unique`.
    """

    layers: tuple[Layer, ...]
    down: tuple[Layer, ...] = ()
    activation: str = "relu"
    scale: float = 1.0
    pairs: str = "shared"

    def __post_init__(self):
        if self.activation not in tuple(ACTIVATIONS):
            raise unknown("activation of a pair's MLP", self.activation, ACTIVATIONS)
        if self.pairs not in PAIRS:
            raise unknown("kind of pairs", self.pairs, PAIRS)

    def check(self, heads: int, width: int) -> None:
        """Raises UsageError unless the weights fit heads of that width and each other."""
        if not self.layers or len(self.down) not in (0, 2):
            raise UsageError(
                f"Neural attention needs layers, and a projection down of queries and one of keys or neither, but was "
                f"given {len(self.layers)} and {len(self.down)}."
            )
        if len(self.layers) == 1 and not self.unique:
            raise UsageError(
                "Neural attention with shared weights needs at least two layers, but was given 1: with a single one "
                "the query shifts all scores of its row alike and drops out; put a hidden layer before it."
            )
        *lead, _, _ = self.layers[0][0].shape
        pairs = tuple(lead[-2:]) if self.unique else ()
        if self.unique and (len(pairs) < 2 or pairs[0] != pairs[1]):
            raise UsageError(f"Unique pairs need layers with leading axes (L, L), but they are {tuple(lead)}.")
        per_head = (heads,) if len(lead) > len(pairs) else ()
        for side, (kernel, bias) in zip(("query", "key"), self.down, strict=bool(self.down)):
            check_weight(f"{side} kernel of down", kernel, (*per_head, width, -1))
            if bias is not None:
                check_weight(f"{side} bias of down", bias, (*per_head, kernel.shape[-1]))
        inputs = 2 * (self.down[0][0].shape[-1] if self.down else width)
        for index, (kernel, bias) in enumerate(self.layers):
            outputs = 1 if index == len(self.layers) - 1 else -1
            check_weight(f"kernel of layer {index}", kernel, (*per_head, *pairs, inputs, outputs))
            inputs = kernel.shape[-1]
            if bias is not None:
                check_weight(f"bias of layer {index}", bias, (*per_head, *pairs, inputs))

    @property
    def unique(self) -> bool:
        """Returns whether each pair has its own weights."""
        return self.pairs == "unique"

    @property
    def per_head(self) -> bool:
        """Returns whether each head has its own weights."""
        return self.layers[0][0].ndim - 2 - 2 * self.unique == 1

    @property
    def implementations(self) -> tuple[str, ...]:
        """Returns the implementations that support these weights."""
        return ("reference", "xla") if self.unique else ("reference", *IMPLEMENTATIONS)

    def prepare(self, x: jax.Array, side: int, implementation: str) -> jax.Array:
        """Returns a of queries (side 0) or b of keys (side 1), `(*B, L, N, M)`.

        For unique pairs it only projects down. For the reference with shared weights it returns `x` unchanged.
        """
        if implementation == "reference" and not self.unique:
            return x
        heads = "n" if self.per_head else ""
        if heads:
            x = spread_heads(x, len(self.layers[0][0]))
        if self.down:
            x = _affine(x, *self.down[side], "n" if self.down[side][0].ndim == 3 else "")
        if self.unique:
            return x
        kernel, bias = self.layers[0]
        return _affine(x, jnp.split(kernel, 2, axis=-2)[side], bias if side == 0 else None, heads)

    def attend(self, query: jax.Array, key: jax.Array, value: jax.Array, *, implementation: str, **options: Any) -> Any:
        """Returns `neural_attention` of queries and keys that `prepare` returned for the same implementation."""
        implementation, block = check_implementation(
            implementation, self.implementations, "Attention by pairs" + " of unique weights" * self.unique
        )
        fields = common(*query.shape[-3:-1], value, **options)
        if implementation == "reference":
            out, weights = reference.weigh_values(
                SoftmaxCall(**fields), self._literal_scores(query, key, fields["mask"])
            )
        elif self.unique:
            out, weights = xla.weigh_values(SoftmaxCall(**fields), self._unique_scores(query, key, fields["mask"]))
        else:
            out, weights = self._kernel(implementation, call := self._call(query, key, fields | {"block": block}))(call)
        return (out, weights) if options["return_weights"] else out

    def _call(self, query: jax.Array, key: jax.Array, fields: dict[str, Any]) -> PairCall:
        heads = query.shape[-2]
        kernel, _ = self.layers[-1]
        fields = fields | {"value": spread_heads(fields["value"], heads)}
        return PairCall(
            query=query,
            key=spread_heads(key, heads),
            layers=self.layers[1:-1],
            vector=kernel[..., 0] * self.scale,
            activation=self.activation,
            **fields,
        )

    def _kernel(self, implementation: str, call: PairCall):
        if implementation == "auto":
            # On GPUs users must name `pallas` until it has been measured there.
            if pair_pallas.platform_here() == "tpu" and not pair_pallas.why_not(call):
                return pair_pallas.pair
            return xla.pair if tiles.why_not(call) else pair_chunked.pair
        return IMPLEMENTATIONS[implementation]

    def _literal_scores(self, query: jax.Array, key: jax.Array, mask: Mask) -> jax.Array:
        """Returns the scores of the definition; with unique pairs, queries and keys are already projected down."""

        def score(query, key, down, layers):
            return self.scale * definitions.neural_score(query, key, down, layers, ACTIVATIONS[self.activation])

        layers = self._block(query.shape[-3], key.shape[-3], mask) if self.unique else self.layers
        weights = (() if self.unique else _biased(self.down), _biased(layers))
        return reference.scores(score, query, key, weights, per_head=self.per_head, per_pair=self.unique)

    def _unique_scores(self, query: jax.Array, key: jax.Array, mask: Mask) -> jax.Array:
        """Returns the scores of pairs with their own weights: a_ij + b_ij, then layer by layer."""
        query, key = (jnp.moveaxis(precise(x), -2, -3) for x in (query, spread_heads(key, query.shape[-2])))
        lead = "nts" if self.per_head else "ts"
        (first, *rest) = self._block(query.shape[-2], key.shape[-2], mask)
        query_kernel, key_kernel = jnp.split(first[0], 2, axis=-2)
        hidden = jnp.einsum(f"...nth,{lead}hm->...ntsm", query, query_kernel)
        hidden += jnp.einsum(f"...nsh,{lead}hm->...ntsm", key, key_kernel)
        hidden = _plus(hidden, first[1])
        for kernel, bias in rest:
            hidden = jnp.einsum(f"...ntsm,{lead}mk->...ntsk", ACTIVATIONS[self.activation](hidden), kernel)
            hidden = _plus(hidden, bias)
        return hidden[..., 0] * self.scale

    def _block(self, queries: int, keys: int, mask: Mask) -> list[Layer]:
        """Returns the unique weights of these pairs: rows from the mask's query offset on, and the leading columns."""
        built = self.layers[0][0].shape[-3]
        first_pair_axis = int(self.per_head)
        why = "weights are a table over pairs of tokens"
        check_rows("Neural attention with unique pairs", why, built, mask, queries, keys)

        def cut(x):
            rows = jax.lax.dynamic_slice_in_dim(x, mask.query_offset, queries, first_pair_axis)
            return jax.lax.slice_in_dim(rows, 0, keys, axis=first_pair_axis + 1)

        return jax.tree.map(cut, list(self.layers))


def _biased(layers: Sequence[Layer]) -> list[Layer]:
    return [(kernel, jnp.zeros_like(kernel[..., 0, :]) if bias is None else bias) for kernel, bias in layers]


def _affine(x: jax.Array, kernel: jax.Array, bias: jax.Array | None, heads: str) -> jax.Array:
    """Returns x `(*B, L, N, H)` times `(H, M)`, or `(N, H, M)` if `heads` is "n", plus bias."""
    return _plus(jnp.einsum(f"...nh,{heads}hm->...nm", x, kernel.astype(x.dtype)), bias)


def _plus(x: jax.Array, bias: jax.Array | None) -> jax.Array:
    return x if bias is None else x + bias.astype(x.dtype).reshape((1,) * (x.ndim - bias.ndim) + bias.shape)


class PairScore(Score):
    """Base of the scores by an MLP on each pair."""

    ties_values = False

    def _weights(self, params: Params) -> PairWeights:
        raise NotImplementedError

    def prepare_query(self, params: Params, query: jax.Array, implementation: str) -> jax.Array:
        """Returns a, or the query projected down if pairs are unique; see `PairWeights.prepare`."""
        return self._weights(params).prepare(query, 0, implementation)

    def prepare_key(self, params: Params, key: jax.Array, source: jax.Array, implementation: str) -> jax.Array:
        """Returns b, or the key projected down if pairs are unique; see `PairWeights.prepare`."""
        return self._weights(params).prepare(key, 1, implementation)

    def attend(self, params: Params, query: Any, key: Any, value: Any, **options: Any) -> Any:
        """Returns `neural_attention` of prepared queries and keys."""
        return self._weights(params).attend(query, key, value, **options)


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

    dim: int | None = 2
    hidden: tuple[int, ...] = ()
    activation: str = "relu"
    scale: bool = False
    per_head: bool = False
    pairs: str = "shared"

    def __post_init__(self):
        if self.dim is not None and not is_count(self.dim):
            raise UsageError(f"The option dim must be a whole number above 0, or None, not {self.dim!r}.")
        check_flags(self, "scale", "per_head")
        if not isinstance(self.hidden, tuple) or not all(map(is_count, self.hidden)):
            raise UsageError(f"The option hidden must be a tuple of whole numbers above 0, not {self.hidden!r}.")
        PairWeights((), (), self.activation, 1.0, self.pairs)

    @property
    def implementations(self) -> tuple[str, ...]:
        """Returns the implementations of pairs, or with unique pairs those that support them."""
        return PairWeights((), pairs=self.pairs).implementations

    def _widths(self, sizes: Sizes) -> list[int]:
        """Returns the widths of concat(q', k') and of each layer after it."""
        dim = self.dim or sizes.head
        return [2 * dim, *(self.hidden or (dim, max(1, dim // 2))), 1]

    def parameters(self, sizes: Sizes) -> dict[str, Parameter]:
        """Returns kernel and bias of the projections down and of each layer."""
        heads = (sizes.heads,) if self.per_head else ()
        down = {}
        if self.dim is not None:
            for side in ("query", "key"):
                down |= _layer(f"down_{side}", heads, sizes.head, self.dim)
        pairs = (sizes.length, sizes.length) if self.pairs == "unique" else ()
        widths = self._widths(sizes)
        for index, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
            down |= _layer(f"layer_{index}", (*heads, *pairs), inputs, outputs)
        return down

    def _weights(self, params: Params) -> PairWeights:
        def layer(name):
            return params[f"{name}_kernel"], params[f"{name}_bias"]

        layers = tuple(layer(f"layer_{index}") for index in range(len(self.hidden or (1, 1)) + 1))
        down = () if self.dim is None else (layer("down_query"), layer("down_key"))
        head = down[0][0].shape[-2] if down else layers[0][0].shape[-2] // 2
        return PairWeights(layers, down, self.activation, head**-0.5 if self.scale else 1.0, self.pairs)

    def cost(self, sizes: Sizes, queries: int, keys: int) -> operations.Cost:
        """Returns the cost of the projections and the first layer on each token, and of the rest on each pair."""
        widths, tokens = self._widths(sizes), (queries + keys) * sizes.heads
        once = operations.linear(tokens, sizes.head, self.dim) if self.dim else operations.Cost()
        if self.pairs == "shared":
            once += operations.matmul(tokens, widths[0] // 2, widths[1])
        return once + operations.pairwise(queries, keys, sizes.heads, sizes.head, widths, unique=self.pairs == "unique")


@dataclasses.dataclass(frozen=True)
class Additive(PairScore):
    """score = vᵀ tanh(W q + U k + b), which is also Luong's vᵀ tanh(W_a [q; k] + b).

    Attributes:
      units: Number of hidden units; 0 means H.
      per_head: Whether each head has its own weights.
    """

    units: int = 0
    per_head: bool = False
    implementations = ("reference", *IMPLEMENTATIONS)

    def __post_init__(self):
        if self.units != 0 and not is_count(self.units):
            raise UsageError(f"The option units must be a whole number of at least 0, not {self.units!r}.")
        check_flags(self, "per_head")

    def parameters(self, sizes: Sizes) -> dict[str, Parameter]:
        """Returns W and U stacked in one kernel, b, and v."""
        heads = (sizes.heads,) if self.per_head else ()
        units = self.units or sizes.head
        return _layer("hidden", heads, 2 * sizes.head, units) | {"vector_kernel": _kernel(heads, units, 1)}

    def _weights(self, params: Params) -> PairWeights:
        hidden = (params["hidden_kernel"], params["hidden_bias"])
        return PairWeights((hidden, (params["vector_kernel"], None)), activation="tanh")

    def cost(self, sizes: Sizes, queries: int, keys: int) -> operations.Cost:
        """Returns the cost of the hidden layer on each token, and of tanh and v on each pair."""
        widths = [2 * sizes.head, self.units or sizes.head, 1]
        once = operations.matmul((queries + keys) * sizes.heads, sizes.head, widths[1])
        return once + operations.pairwise(queries, keys, sizes.heads, sizes.head, widths)


def _layer(name: str, lead: tuple[int, ...], inputs: int, outputs: int) -> dict[str, Parameter]:
    bias = Parameter((*lead, outputs), initializers.zeros)
    return {f"{name}_kernel": _kernel(lead, inputs, outputs), f"{name}_bias": bias}


def _kernel(lead: tuple[int, ...], inputs: int, outputs: int) -> Parameter:
    return Parameter((*lead, inputs, outputs), initializers.lecun_normal(batch_axis=tuple(range(len(lead)))))
