"""The dot family: scores = q̂·k̂ · scale + key bias, softmax over the keys, weighted mean of the values."""

import dataclasses
from typing import Any

import jax
from jaxtyping import Array, Float, PRNGKeyArray

from attention import flops
from attention.errors import UsageError
from attention.kernels import chunked, cudnn, reference, xla
from attention.kernels.call import DotCall, check_implementation, check_shapes, common
from attention.mask import Mask
from attention.score import Params, Score, Sizes

IMPLEMENTATIONS = {"reference": reference.dot, "xla": xla.dot, "chunked": chunked.dot, "cudnn": cudnn.dot}


def dot_product_attention(
    query: Float[Array, "*B T N H"],
    key: Float[Array, "*B S K H"],
    value: Float[Array, "*B S K V"],
    *,
    mask: Mask | None = None,
    bias: Float[Array, "*#B #N #T #S"] | None = None,
    scale: float | Float[Array, ""] | None = None,
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
      dropout_rate: Fraction of the weights that are zeroed, in [0, 1).
      dropout_key: Key of those zeros; needed where the rate is not 0.
      return_weights: Also return the weights before dropout.
      implementation: `auto` (the best that supports the call), `xla`, `chunked`, `cudnn` or `reference`; a named
        one does the call or raises. `chunked(128, 256)` is `chunked` in tiles of 128 queries and 256 keys.

    Returns:
      The output, and the weights where they are asked for, in the dtype of `query`.

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
        block=block,
        **fields,
    )
    out, weights = (_best(call) if name == "auto" else IMPLEMENTATIONS[name])(call)
    return (out, weights) if return_weights else out


def _best(call: DotCall):
    if not cudnn.why_not(call):
        return cudnn.dot
    # On a CPU what counts is the cache; elsewhere one large product a batch beats many small ones.
    if jax.default_backend() == "cpu" and not chunked.why_not(call):
        return chunked.dot
    return xla.dot


@dataclasses.dataclass(frozen=True)
class DotProduct(Score):
    """score = q·k · scale.

    Attributes:
      scale: The factor; 0 stands for 1/√H.
    """

    scale: float = 0.0
    implementations = tuple(IMPLEMENTATIONS)

    def __post_init__(self):
        if (
            isinstance(self.scale, bool)
            or not isinstance(self.scale, int | float)
            or not 0 <= self.scale < float("inf")
        ):
            raise UsageError(f"The scale of dot-product scores must be a number of at least 0, not {self.scale!r}.")

    def query_gain(self, head: int) -> float:
        """1/√H over the scale: T5, which has no scale either, starts its queries so (Raffel et al. 2020)."""
        return 1.0 / (self.scale * head**0.5) if self.scale else 1.0

    def attend(self, params: Params, query: Any, key: Any, value: Any, **options: Any) -> Any:
        """`dot_product_attention`."""
        return dot_product_attention(query, key, value, scale=self.scale or None, **options)

    def cost(self, sizes: Sizes, queries: int, keys: int) -> flops.Cost:
        """4 T S N H for the two products, and the softmax."""
        return flops.dot_product(queries, keys, sizes.heads, sizes.head)
