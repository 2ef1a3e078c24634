"""The dot family: scores = q·k · scale, softmax over the keys, weighted mean of the values."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from attention.dropout import seed_of
from attention.errors import UsageError, unknown
from attention.kernels import chunked, cudnn, reference, xla
from attention.kernels.call import DotCall
from attention.mask import Mask

IMPLEMENTATIONS = {"reference": reference.dot, "xla": xla.dot, "chunked": chunked.dot, "cudnn": cudnn.dot}


def dot_product_attention(
    query: Float[Array, "*B T N H"],
    key: Float[Array, "*B S K H"],
    value: Float[Array, "*B S K V"],
    *,
    mask: Mask | None = None,
    bias: Float[Array, "*#B #N #T #S"] | None = None,
    scale: float | None = None,
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
        one does the call or raises.

    Returns:
      The output, and the weights where they are asked for, in the dtype of `query`.

    Raises:
      UsageError: shapes that do not fit, an unknown implementation, or dropout without a key.
      UnsupportedError: the named implementation cannot do this call.
    """
    _check_shapes(query, key, value)
    mask = mask or Mask()
    call = DotCall(
        query=query,
        key=_without_unreachable(key, query, mask),
        value=_without_unreachable(value, query, mask),
        mask=mask,
        bias=bias,
        scale=query.shape[-1] ** -0.5 if scale is None else scale,
        dropout_rate=dropout_rate,
        dropout_seed=_dropout_seed(dropout_rate, dropout_key),
        return_weights=return_weights,
    )
    out, weights = _implementation(implementation, call)(call)
    return (out, weights) if return_weights else out


def _implementation(name: str, call: DotCall):
    if name == "auto":
        return _best(call)
    if name not in IMPLEMENTATIONS:
        raise unknown("attention implementation", name, ["auto", *IMPLEMENTATIONS])
    return IMPLEMENTATIONS[name]


def _best(call: DotCall):
    if not cudnn.why_not(call):
        return cudnn.dot
    # On a CPU what counts is the cache; elsewhere one large product a batch beats many small ones.
    if jax.default_backend() == "cpu" and not chunked.why_not(call):
        return chunked.dot
    return xla.dot


def _without_unreachable(x: jax.Array, query: jax.Array, mask: Mask) -> jax.Array:
    reachable = mask.reachable_keys(query.shape[-3], x.shape[-3], rank=query.ndim)
    if reachable is None:
        return x
    return jnp.where(reachable[..., None, None], x, jnp.zeros((), x.dtype))


def _dropout_seed(rate: float, key: jax.Array | None) -> jax.Array | None:
    if not 0.0 <= rate < 1.0:
        raise UsageError(f"The attention dropout rate must be at least 0 and below 1, but it is {rate}.")
    if rate and key is None:
        raise UsageError(f"Attention dropout of {rate} needs a dropout_key.")
    return seed_of(key) if rate else None


def _check_shapes(query: jax.Array, key: jax.Array, value: jax.Array) -> None:
    shapes = f"query {query.shape}, key {key.shape}, value {value.shape}"
    if min(query.ndim, key.ndim, value.ndim) < 3:
        raise UsageError(f"Attention takes (*batch, length, heads, width) arrays, but was given {shapes}.")
    if not query.shape[:-3] == key.shape[:-3] == value.shape[:-3]:
        raise UsageError(f"Query, key and value must have the same batch axes: {shapes}.")
    if key.shape[-3:-1] != value.shape[-3:-1]:
        raise UsageError(f"Keys and values must have the same length and heads: {shapes}.")
    if query.shape[-1] != key.shape[-1]:
        raise UsageError(f"Queries and keys must be equally wide: {shapes}.")
    if query.shape[-2] % key.shape[-2]:
        raise UsageError(f"The number of key heads must divide the number of query heads: {shapes}.")
