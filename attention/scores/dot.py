"""The dot family: scores = q̂·k̂ · scale + key bias, softmax over the keys, weighted mean of the values."""

import dataclasses
import numbers
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jax.nn import initializers
from jaxtyping import Array, Float

from attention.activations import inverse_rms
from attention.errors import UsageError
from attention.forms import At, Dot, Tokens
from attention.kernels.arrays import precise, score_dtype
from attention.normaliser import count_keys
from attention.operations import Cost
from attention.options import Options, takes_options
from attention.parameters import Parameter, Params, Sizes, lift
from attention.score import PRODUCTS, Score, Traits, attend
from attention.types import Names, NotNegative, Sentinel, Size

SIDES = ("query", "key")
NORMS = {"rms": 0.0, "rms_offset": 1.0}  # and what is added to their weights
EPSILON = 1e-6  # of the norms, in Qwen 3 and Gemma 3


@takes_options
def dot_product_attention(
    query: Float[Array, "*B T N H"],
    key: Float[Array, "*B S K H"],
    value: Float[Array, "*B S K V"],
    *,
    scale: float | Float[Array, ""] | None = None,
    precision: jax.lax.PrecisionLike = None,
    **options: Any,
) -> Float[Array, "*B T N V"] | tuple[Float[Array, "*B T N V"], Float[Array, "*B N T S"]]:
    """Computes softmax(q·k · scale + bias) v (Vaswani et al. 2017, eq. 1).

    A query that may attend to no key gives zeros with zero gradient. Keys and values that no query may attend to are
    replaced by zeros first, so the contents of padding, NaN included, reach neither output nor gradient.

    Args:
      query: Queries `(*B, T, N, H)`.
      key: Keys `(*B, S, K, H)`; K divides N, and key head k serves queries k·N/K … (k+1)·N/K.
      value: Values `(*B, S, K, V)`.
      **options: The fields of `attention.options.Options`: mask, bias, dropout, weights and implementation.
      scale: Factor of q·k; 1/√H by default.
      precision: Precision of q·k and its gradients, see `jax.lax.Precision`. By default JAX rounds float32 to bfloat16
        on TPUs and to TF32 on NVIDIA GPUs from Ampere on before it multiplies.

    Returns:
      The output, and the weights if `return_weights` is set, in the dtype of `value`.

    Raises:
      UsageError: the shapes do not fit, the implementation is unknown, or dropout has no key.
      UnsupportedError: the named implementation does not support this call.
    """
    scale = float(scale) if isinstance(scale, numbers.Real) else scale
    if scale is not None and (isinstance(scale, jax.Array) or scale <= 0):
        query, scale = query * jnp.asarray(scale, query.dtype), 1.0  # kernels take a Python number above 0
    return attend(DotProduct(scale or 0.0, precision=precision), {}, query, key, value, **options)


@dataclasses.dataclass(frozen=True)
class DotProduct(Score):
    """score = q·k · scale.

    Attributes:
      scale: The factor; 0 means 1/√H.
      dim: d', the width to which a further linear layer projects queries and keys; 0 means no such layer. `neural` has
        this layer before its MLP, so `dot_product(dim=16)` is `neural(dim=16)` without the MLP.
      qk_norm: `rms` divides each query and key by its root mean square and multiplies it by learned weights that all
        heads share (Qwen 3), `rms_offset` by 1 + weights (Gemma 3); '' does neither.
      precision: Precision of the products, see `jax.lax.Precision`, such as `highest`; None is JAX's default.
    """

    scale: NotNegative = 0.0
    dim: Size = 0
    qk_norm: Annotated[str, Names(NORMS), Sentinel("", "none")] = ""
    precision: Any = dataclasses.field(default=None, kw_only=True)
    title = "Dot-product attention"

    def __post_init__(self):
        super().__post_init__()
        if self.qk_norm and self.dim:
            raise UsageError("Dot-product scores have a further layer (dim) or a norm (qk_norm), not both.")

    @property
    def traits(self) -> Traits:
        """Says that keys are stored unchanged, without the further layer and the norm."""
        plain = not (self.dim or self.qk_norm)
        return Traits(ties_values=plain, keeps_keys=plain, kernels=PRODUCTS)

    def parameters(self, sizes: Sizes) -> dict[str, Parameter]:
        """Declares kernel and bias of the further layers, and the weights of the norm, which all heads share."""
        if self.qk_norm:
            init = initializers.zeros if NORMS[self.qk_norm] else initializers.ones
            return {f"{side}_norm": Parameter((sizes.head,), init) for side in SIDES}
        if not self.dim:
            return {}
        kernel = Parameter((sizes.head, self.dim), initializers.lecun_normal())
        bias = Parameter((self.dim,), initializers.zeros)
        return {f"down_{side}_{name}": p for side in SIDES for name, p in (("kernel", kernel), ("bias", bias))}

    def query_gain(self, head: int) -> float:
        """Divides 1/√H by the scale, as T5 initialises its queries for unscaled scores (Raffel et al. 2020)."""
        return 1.0 / (self.scale * (self.dim or head) ** 0.5) if self.scale else 1.0

    def prepare_query(self, params: Params, query: jax.Array, at: Tokens) -> jax.Array:
        """Applies the further layer or the norm, if there is one."""
        return self._prepare(params, "query", query, at)

    def prepare_key(self, params: Params, key: jax.Array, at: Tokens) -> jax.Array:
        """Applies the further layer or the norm, if there is one."""
        return self._prepare(params, "key", key, at)

    def _prepare(self, params: Params, side: str, x: jax.Array, at: Tokens) -> jax.Array:
        if self.qk_norm:
            weights = NORMS[self.qk_norm] + params[f"{side}_norm"]
            wide = precise(x)
            x = (wide * inverse_rms(wide, EPSILON) * lift(weights, x.ndim)).astype(x.dtype)
        x = at.turn(x)
        if not self.dim:
            return x
        kernel, bias = (params[f"down_{side}_{name}"].astype(x.dtype) for name in ("kernel", "bias"))
        return x @ kernel + lift(bias, x.ndim)

    def pair(self, params: Params, query: jax.Array, key: jax.Array, at: At) -> jax.Array:
        """Computes q·k · scale."""
        return jnp.dot(query, key, precision=self.precision) * (self.scale or query.shape[-1] ** -0.5)

    def form(self, params: Params, query: jax.Array, key: jax.Array) -> Dot:
        """Gives the scores as they are."""
        return Dot(query, key, self.scale or query.shape[-1] ** -0.5, precision=self.precision)


@dataclasses.dataclass(frozen=True)
class ScalableSoftmax(DotProduct):
    """score = s log(n) · q·k · scale, n the number of keys that the query may attend to, with an s that a head learns.

    The softmax of these scores does not flatten as n grows (Nakanishi 2025, arXiv:2501.19399, without its bias).
    s starts from 0.43, as in the paper.
    """

    title = "Scalable softmax"

    def parameters(self, sizes: Sizes) -> dict[str, Parameter]:
        """Declares s beside what dot products have."""
        scale = Parameter((sizes.heads,), initializers.constant(0.43), ("heads",))
        return super().parameters(sizes) | {"length_scale": scale}

    def attend(self, params: Params, query: jax.Array, key: Any, value: jax.Array, options: Options) -> Any:
        """Multiplies the queries by s log(n) first, so that all kernels of dot products serve."""
        shape = (*query.shape[:-3], query.shape[-2], query.shape[-3], value.shape[-3])
        allowed = options.mask.materialise(*shape[-2:], len(shape))
        count = count_keys(allowed, shape, score_dtype(query)).swapaxes(-3, -2)
        factor = lift(params["length_scale"][:, None], query.ndim) * jnp.log(count)
        return super().attend(params, (query * factor).astype(query.dtype), key, value, options)

    def cost(self, sizes: Sizes, queries: int, keys: int) -> Cost:
        """Counts the factor of each query too."""
        return super().cost(sizes, queries, keys) + Cost(pointwise=queries * sizes.heads * (sizes.head + 2))
