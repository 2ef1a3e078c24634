"""`implementation='cudnn'`: the fused kernels of cuDNN, through `jax.nn.dot_product_attention`."""

import jax
import jax.numpy as jnp

from attention.errors import UnsupportedError
from attention.kernels.call import DotCall


def why_not(call: DotCall) -> str:
    """What about this call cuDNN cannot do, as part of a sentence; empty where it can."""
    head_width = call.query.shape[-1]
    reasons = {
        f"it needs an NVIDIA GPU and this is {jax.default_backend()}": jax.default_backend() != "gpu",
        f"it computes in bfloat16 or float16, not {call.query.dtype}": call.query.dtype
        not in (jnp.bfloat16, jnp.float16),
        f"a head must be a multiple of 8 wide and at most 128, not {head_width}": head_width % 8 or head_width > 128,
        "values must be as wide as keys": call.value.shape[-1] != head_width,
        "with a mask or bias it needs even numbers of queries and keys": (call.mask.parts() or call.bias is not None)
        and any(length % 2 for length in call.scores_shape[-2:]),
        "it would round the bias to the queries' dtype": call.bias is not None and call.bias.dtype != call.query.dtype,
        "it drops no attention weights": call.dropout_rate > 0,
        "it returns no weights": call.return_weights,
        "it wants one batch axis": call.query.ndim != 4,
    }
    return "; ".join(reason for reason, holds in reasons.items() if holds)


def dot(call: DotCall) -> tuple[jax.Array, None]:
    """Output `(B, T, N, H)`; no weights.

    Raises:
      UnsupportedError: naming everything about the call that cuDNN cannot do.
    """
    if reason := why_not(call):
        raise UnsupportedError(f"implementation='cudnn' cannot do this call: {reason}; use 'xla' or 'auto'.")
    allowed = call.allowed()
    # A mask that broadcasts over queries is refused by cuDNN's bias path, so it is spelt out.
    spelt = None if allowed is None else jnp.broadcast_to(allowed, (*allowed.shape[:-2], *call.scores_shape[-2:]))
    out = jax.nn.dot_product_attention(
        call.query, call.key, call.value, call.bias, spelt, scale=call.scale, implementation="cudnn"
    )
    if allowed is None:
        return out, None
    attends = jnp.moveaxis(spelt.any(-1, keepdims=True), -3, -2)
    return jnp.where(attends, out, jnp.zeros((), out.dtype)), None
