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
# Bytes of scores that `auto` lets XLA make on a GPU or TPU: both passes hold up to four arrays as large (scores,
# weights and the gradients of both), and 4 GiB is a quarter of a TPU v5e's memory. Not measured.
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
    """softmax(q·k · scale + bias) v, as Vaswani et al. (2017), eq. 1.

    A query that may attend to nothing gives zeros with zero gradient. Keys and values that no query may attend
    to are replaced by zeros first, so what stands in padding, NaN included, reaches neither output nor gradient.

    Args:
      query: Queries `(*B, T, N, H)`.
      key: Keys `(*B, S, K, H)`; K divides N, and key head k serves queries k·N/K … (k+1)·N/K.
      value: Values `(*B, S, K, V)`.
      mask: Who may attend to whom; everybody to everything where it is not given.
      bias: Added to the scores; broadcasts to `(*B, N, T, S)`.
      scale: Factor of q·k; 1/√H where it is not given.
      precision: Of q·k and its gradients, see `jax.lax.Precision`. JAX's default, where it is not given, rounds float32
        to bfloat16 on TPUs and to TF32 on NVIDIA GPUs from Ampere on, before it multiplies.
      dropout_rate: Fraction of the weights that are zeroed, in [0, 1).
      dropout_key: Key of those zeros; needed where the rate is not 0.
      return_weights: Also return the weights before dropout.
      implementation: `auto` (the best that supports the call), `xla`, `chunked`, `cudnn` or `reference`; a named
        one does the call or raises. `chunked(128, 256)` is `chunked` in tiles of 128 queries and 256 keys.

    Returns:
      The output, and the weights where they are asked for, in the dtype of `value`.

    Raises:
      UsageError: shapes that do not fit, an unknown implementation, or dropout without a key.
      UnsupportedError: the named implementation cannot do this call.
    """
    check_shapes(query, key, value)
    name, block = check_implementation(implementation, tuple(IMPLEMENTATIONS), "Dot-product attention")
    options = {"mask": mask, "bias": bias, "dropout_rate": dropout_rate, "dropout_key": dropout_key}
    if isinstance(scale, jax.Array):  # to be differentiated, perhaps: kernels take a plain number
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
    # On a CPU what counts is the cache; elsewhere one large product a batch beats many small ones, while it fits.
    small = jax.default_backend() != "cpu" and _score_bytes(call) <= MOST
    return xla.dot if small or tiles.why_not(call) else chunked.dot


def _score_bytes(call: DotCall) -> int:
    """Of all scores, on each device."""
    return math.prod(call.scores_shape) * jnp.dtype(score_dtype(call.query)).itemsize // devices()


@dataclasses.dataclass(frozen=True)
class DotProduct(Score):
    """score = q·k · scale.

    Attributes:
      scale: The factor; 0 stands for 1/√H.
      dim: d', the width that a further linear layer takes queries and keys to; 0 is no such layer. It is the layer that
        `neural` has before its MLP, so `dot_product(dim=16)` is `neural(dim=16)` without the MLP.
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
        """Keys that went through the further layer have another width."""
        return not self.dim

    @property
    def keeps_keys(self) -> bool:
        """Whether there is no further layer."""
        return not self.dim

    def parameters(self, sizes: Sizes) -> dict[str, Parameter]:
        """Kernel and bias of the further layers, which all heads share."""
        if not self.dim:
            return {}
        kernel = Parameter((sizes.head, self.dim), initializers.lecun_normal())
        bias = Parameter((self.dim,), initializers.zeros)
        return {f"down_{side}_{name}": p for side in SIDES for name, p in (("kernel", kernel), ("bias", bias))}

    def query_gain(self, head: int) -> float:
        """1/√H over the scale: T5, which has no scale either, starts its queries so (Raffel et al. 2020)."""
        return 1.0 / (self.scale * (self.dim or head) ** 0.5) if self.scale else 1.0

    def prepare_query(self, params: Params, query: jax.Array, implementation: str) -> jax.Array:
        """The query, or what the further layer makes of it."""
        return _down(params, "query", query) if self.dim else query

    def prepare_key(self, params: Params, key: jax.Array, source: jax.Array, implementation: str) -> jax.Array:
        """The key, or what the further layer makes of it."""
        return _down(params, "key", key) if self.dim else key

    def attend(self, params: Params, query: Any, key: Any, value: Any, **options: Any) -> Any:
        """`dot_product_attention`."""
        return dot_product_attention(query, key, value, scale=self.scale or None, **options)

    def cost(self, sizes: Sizes, queries: int, keys: int) -> operations.Cost:
        """4 T S N H for the two products, and the softmax."""
        cost = operations.dot_product(queries, keys, sizes.heads, sizes.head)
        if self.dim:
            cost += operations.linear((queries + keys) * sizes.heads, sizes.head, self.dim)
            cost += operations.Cost(2 * queries * keys * sizes.heads * (self.dim - sizes.head))
        return cost


def _down(params: Params, side: str, x: jax.Array) -> jax.Array:
    kernel, bias = (params[f"down_{side}_{name}"].astype(x.dtype) for name in ("kernel", "bias"))
    return x @ kernel + bias.reshape((1,) * (x.ndim - 1) + (-1,))
