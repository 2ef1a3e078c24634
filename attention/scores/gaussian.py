"""Projection attention: Gaussian weights on the distance of query and key (Sanger)."""

import dataclasses
import math
import numbers
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.nn import initializers
from jaxtyping import Array, Float

from attention.activations import unit
from attention.errors import UsageError
from attention.forms import At, Dot, Tokens
from attention.kernels.arrays import precise, spread_heads
from attention.kernels.call import check_weight
from attention.options import takes_options
from attention.parameters import Parameter, Params, Sizes, lift
from attention.score import PRODUCTS, Score, Traits, attend
from attention.types import NotNegative, Positive


@takes_options
def gaussian_attention(
    query: Float[Array, "*B T N H"],
    key: Float[Array, "*B S K H"],
    value: Float[Array, "*B S K V"] | None = None,
    *,
    sigma: float | Float[Array, "N"] = 1.0,
    normalise: bool = True,
    squared: bool = True,
    decay: float = 0.0,
    **options: Any,
) -> Float[Array, "*B T N V"] | tuple[Float[Array, "*B T N V"], Float[Array, "*B N T S"]]:
    """Computes softmax(−‖q−k‖²/2σ² + bias) k, which projects queries onto the surface of the keys (Sanger, eq. 14).

    ‖q‖² shifts all scores of a row alike, so the softmax removes it. The scores are then q·k/σ² − ‖k‖²/2σ², dot
    products with a bias for each key, and simply dot products at scale 1/σ² if keys have norm 1.

    Args:
      query: Queries `(*B, T, N, H)`.
      key: Keys `(*B, S, K, H)`; K divides N.
      value: Values `(*B, S, K, V)`; by default the prepared keys, as in the paper.
      sigma: σ, one for all heads or one for each head. Sanger uses 0.01 and 0.05.
      normalise: Whether to divide queries and keys by their norm first, as the paper's derivation assumes.
      squared: False follows eq. 14 as printed, with ‖q−k‖ in place of its square; the gradient at q = k is then zero.
      decay: λ ≥ 0. It adds −λ(i−j) for query i and key j, which fades the past (Sanger's outlook); it needs a causal
        mask.
      **options: The fields of `attention.options.Options`, `cudnn` and
        `pallas` only with `normalise` and `squared`, without decay.

    Returns:
      The output, and the weights if `return_weights` is set.

    Raises:
      UsageError: the shapes do not fit, σ ≤ 0, or λ < 0.
      UnsupportedError: decay has no causal mask, or the named implementation does not support this call.
    """
    sigma, decay = _plain(sigma), _plain(decay)
    per_head = isinstance(sigma, jax.Array)
    if per_head:
        check_weight("sigma", sigma, (query.shape[-2],))
    if per_head and not isinstance(sigma, jax.core.Tracer) and not np.all(np.asarray(sigma) > 0):
        raise UsageError(f"Each σ must be above 0, but they are {sigma}.")
    score = Gaussian(1.0 if per_head else sigma, per_head, normalise, squared, decay)
    params = {"log_sigma": jnp.log(sigma)} if per_head else {}
    return attend(score, params, query, key, value, **options)


@dataclasses.dataclass(frozen=True)
class Gaussian(Score):
    """score = −‖q−k‖²/2σ².

    Attributes:
      sigma: σ, or its initial value if it is learned.
      learn_sigma: Whether to learn one σ for each head. It is positive, because it is the exponential of a parameter.
      normalise: Whether to divide queries and keys by their norm first.
      squared: Whether the score has the squared distance; if not, the distance.
      decay: λ of −λ(i−j), which is added to the scores; for causal self-attention only.
    """

    sigma: Positive = 1.0
    learn_sigma: bool = False
    normalise: bool = True
    squared: bool = True
    decay: NotNegative = 0.0

    title = "Gaussian attention"

    @property
    def traits(self) -> Traits:
        """Adds cuDNN for plain dot products, as it would round a bias of keys; a decay needs a causal mask."""
        products = self.squared and self.normalise and not self.decay
        return Traits(causal=self.decay > 0, kernels=PRODUCTS if products else Traits.kernels)

    def parameters(self, sizes: Sizes) -> dict[str, Parameter]:
        """Declares log σ of each head if it is learned."""
        if not self.learn_sigma:
            return {}
        return {"log_sigma": Parameter((sizes.heads,), initializers.constant(math.log(self.sigma)), ("heads",))}

    def prepare_query(self, params: Params, query: jax.Array, at: Tokens) -> jax.Array:
        """Divides queries or keys by their norms if `normalise` is set; tied values are these keys."""
        return unit(at.turn(query)) if self.normalise else at.turn(query)

    prepare_key = prepare_query

    def pair(self, params: Params, query: jax.Array, key: jax.Array, at: At) -> jax.Array:
        """Computes −‖q−k‖²/2σ² − λ(i−j), or with the distance itself, whose gradient at q = k is zero."""
        distance = jnp.sum((query - key) ** 2)
        if not self.squared:
            apart = distance > 0
            distance = jnp.where(apart, jnp.sqrt(jnp.where(apart, distance, 1.0)), 0.0)
        return -distance / (2 * self._sigma(params) ** 2) - self.decay * (at.query - at.key)

    def form(self, params: Params, query: jax.Array, key: jax.Array) -> Dot | None:
        """Gives q·k/σ² − ‖k‖²/2σ² + λj: ‖q‖² and λi are the same for a row."""
        if not (self.squared and self.weighing.shift_invariant):
            return None
        sigma, bias = self._sigma(params), None
        if self.decay:
            steps = self.decay * jnp.arange(key.shape[-3], dtype=precise(key).dtype)
            bias = lift(steps, query.ndim)
        if not self.normalise:
            more = _key_bias(key, sigma, query.shape[-2])
            bias = more if bias is None else bias + more
        scale = sigma**-2
        if self.learn_sigma:
            # At least float32: scores may be hundreds, so rounding the scaled queries would move them by more than 1.
            query = precise(query) * lift(precise(scale)[:, None], query.ndim)
            key, scale = precise(key), 1.0
        # On TPUs JAX rounds float32 to bfloat16 before a product by default. That moves scores by up to 0.4 % of 1/σ²,
        # which is more than 1 at σ = 0.05. Inputs in bfloat16 are multiplied exactly.
        exact = jax.lax.Precision.HIGHEST if query.dtype == precise(query).dtype else None
        return Dot(query, key, scale, bias, exact)

    def _sigma(self, params: Params) -> Any:
        return jnp.exp(params["log_sigma"]) if self.learn_sigma else self.sigma


def _plain(x: Any) -> Any:
    """Makes a NumPy number a Python float, which does not promote bfloat16 to float32; leaves the rest as is."""
    return float(x) if isinstance(x, numbers.Real) and not isinstance(x, bool) else x


def _key_bias(key: jax.Array, sigma: Any, heads: int) -> jax.Array:
    """Computes −‖k‖²/2σ² of the rounded keys, `(*B, N, 1, S)`, at least in float32."""
    squares = jnp.sum(precise(spread_heads(key, heads)) ** 2, axis=-1)
    scale = lift(sigma, squares.ndim) if isinstance(sigma, jax.Array) else sigma
    return jnp.moveaxis(-squares / (2 * scale**2), -1, -2)[..., None, :]
