"""The dot family: scores = q̂·k̂ · scale + key bias, softmax over the keys, weighted mean of the values."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.nn import initializers
from jaxtyping import Array, Float, PRNGKeyArray

from attention import operations
from attention.errors import UsageError
from attention.kernels import chunked, cudnn, reference, tiles, xla
from attention.kernels.call import DotCall, check_implementation, check_shapes, common
from attention.kernels.reference import score_dtype
from attention.mask import Mask
from attention.mesh import devices
from attention.score import Parameter, Params, Score, Sizes, is_count

IMPLEMENTATIONS = {"reference": reference.dot, "xla": xla.dot, "chunked": chunked.dot, "cudnn": cudnn.dot}
# Most bytes of scores for which `auto` takes XLA on a GPU or TPU. Both passes hold up to four arrays of that size
# (scores, weights and the gradients of both), and 4 GiB is a quarter of the memory of a TPU v5e. Not measured.
MOST = 2**30
SIDES = ("query", "key")


def dot_product_attention(
    query: Float[Array, "*B T N H"],
    key: Float[Array, "*B S K H"],
    value: Float[Array, "*B S K V"],
    *,
    mask: Mask | None = None,
    bias: Float[Array, "*#B #N #T #S"] | None = None,
    scale: float | Float[Array, ""] | None = None,
    precision: jax.lax.PrecisionLike = None,
    dropout_rate: float = 0.0,
    dropout_key: PRNGKeyArray | None = None,
    return_weights: bool = False,
    implementation: str = "auto",
) -> Float[Array, "*B T N V"] | tuple[Float[Array, "*B T N V"], Float[Array, "*B N T S"]]:
    """Returns softmax(q·k · scale + bias) v (Vaswani et al. 2017, eq. 1).

    A query that may attend to no key gives zeros with zero gradient. Keys and values that no query may attend to are
    replaced by zeros first, so the contents of padding, NaN included, reach neither output nor gradient.

    Args:
      query: Queries `(*B, T, N, H)`.
      key: Keys `(*B, S, K, H)`; K divides N, and key head k serves queries k·N/K … (k+1)·N/K.
      value: Values `(*B, S, K, V)`.
      mask: Which query may attend to which key; by default every query to every key.
      bias: Added to the scores; broadcasts to `(*B, N, T, S)`.
      scale: Factor of q·k; 1/√H by default.
      precision: Precision of q·k and its gradients, see `jax.lax.Precision`. By default JAX rounds float32 to bfloat16
        on TPUs and to TF32 on NVIDIA GPUs from Ampere on before it multiplies.
      dropout_rate: Fraction of the weights that are zeroed, in [0, 1).
      dropout_key: Random key of dropout; needed unless the rate is 0.
      return_weights: Whether to return the weights before dropout too.
      implementation: `auto` (the best that supports the call), `xla`, `chunked`, `cudnn` or `reference`; a named one
        raises if it does not support the call. `chunked(128, 256)` takes tiles of 128 queries and 256 keys.

    Returns:
      The output, and the weights if `return_weights` is set, in the dtype of `value`.

    Raises:
      UsageError: the shapes do not fit, the implementation is unknown, or dropout has no key.
      UnsupportedError: the named implementation does not support this call.
    """
    check_shapes(query, key, value)
    name, block = check_implementation(implementation, tuple(IMPLEMENTATIONS), "Dot-product attention")
    options = {"mask": mask, "bias": bias, "dropout_rate": dropout_rate, "dropout_key": dropout_key}
    if isinstance(scale, jax.Array):  # it may need a gradient, but kernels take a Python number
        query, scale = query * scale.astype(query.dtype), 1.0
    fields = common(*query.shape[-3:-1], value, return_weights=return_weights, **options)
    call = DotCall(
        query=query,
        key=fields["mask"].without_unreachable(key, query.shape[-3], query.ndim),
        scale=query.shape[-1] ** -0.5 if scale is None else scale,
        precision=precision,
        block=block,
        **fields,
    )
    out, weights = (_best(call) if name == "auto" else IMPLEMENTATIONS[name])(call)
    return (out, weights) if return_weights else out


def _best(call: DotCall):
    if not cudnn.why_not(call):
        return cudnn.dot
    # On a CPU the cache decides; elsewhere one large product for each batch beats many small ones while it fits.
    small = jax.default_backend() != "cpu" and _score_bytes(call) <= MOST
    return xla.dot if small or tiles.why_not(call) else chunked.dot


def _score_bytes(call: DotCall) -> int:
    """Returns the bytes that all scores take on each device."""
    return math.prod(call.scores_shape) * jnp.dtype(score_dtype(call.query)).itemsize // devices()


@dataclasses.dataclass(frozen=True)
class DotProduct(Score):
    """score = q·k · scale.

    Attributes:
      scale: The factor; 0 means 1/√H.
      dim: d', the width to which a further linear layer projects queries and keys; 0 means no such layer. `neural` has
        this layer before its MLP, so `dot_product(dim=16)` is `neural(dim=16)` without the MLP.
    """

    scale: float = 0.0
    dim: int = 0
    implementations = tuple(IMPLEMENTATIONS)

    def __post_init__(self):
        if not (is_count(self.dim) or (self.dim == 0 and not isinstance(self.dim, bool))):
            raise UsageError(f"The option dim must be a whole number of at least 0, not {self.dim!r}.")
        if (
            isinstance(self.scale, bool)
            or not isinstance(self.scale, int | float)
            or not 0 <= self.scale < float("inf")
        ):
            raise UsageError(f"The scale of dot-product scores must be a number of at least 0, not {self.scale!r}.")

    @property
    def ties_values(self) -> bool:
        """Returns whether keys keep the width of values, which the further layer changes."""
        return not self.dim

    @property
    def keeps_keys(self) -> bool:
        """Returns whether keys are stored unchanged, without the further layer."""
        return not self.dim

    def parameters(self, sizes: Sizes) -> dict[str, Parameter]:
        """Returns kernel and bias of the further layers, which all heads share."""
        if not self.dim:
            return {}
        kernel = Parameter((sizes.head, self.dim), initializers.lecun_normal())
        bias = Parameter((self.dim,), initializers.zeros)
        return {f"down_{side}_{name}": p for side in SIDES for name, p in (("kernel", kernel), ("bias", bias))}

    def query_gain(self, head: int) -> float:
        """Returns 1/√H over the scale, as T5 initialises its queries for unscaled scores (Raffel et al. 2020)."""
        return 1.0 / (self.scale * (self.dim or head) ** 0.5) if self.scale else 1.0

    def prepare_query(self, params: Params, query: jax.Array, implementation: str) -> jax.Array:
        """Returns the query, after the further layer if there is one."""
        return _down(params, "query", query) if self.dim else query

    def prepare_key(self, params: Params, key: jax.Array, source: jax.Array, implementation: str) -> jax.Array:
        """Returns the key, after the further layer if there is one."""
        return _down(params, "key", key) if self.dim else key

    def attend(self, params: Params, query: Any, key: Any, value: Any, **options: Any) -> Any:
        """Returns `dot_product_attention` of the prepared arrays."""
        return dot_product_attention(query, key, value, scale=self.scale or None, **options)

    def cost(self, sizes: Sizes, queries: int, keys: int) -> operations.Cost:
        """Returns the cost of the two products, 4 T S N H, the softmax and the further layer."""
        cost = operations.dot_product(queries, keys, sizes.heads, sizes.head)
        if self.dim:
            cost += operations.linear((queries + keys) * sizes.heads, sizes.head, self.dim)
            cost += operations.Cost(2 * queries * keys * sizes.heads * (self.dim - sizes.head))
        return cost


def _down(params: Params, side: str, x: jax.Array) -> jax.Array:
    kernel, bias = (params[f"down_{side}_{name}"].astype(x.dtype) for name in ("kernel", "bias"))
    return x @ kernel + bias.reshape((1,) * (x.ndim - 1) + (-1,))
