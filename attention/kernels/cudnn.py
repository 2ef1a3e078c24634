"""`implementation='cudnn'`: the fused kernels of cuDNN, through `jax.nn.dot_product_attention`."""

from typing import Any

import jax
import jax.numpy as jnp

from attention import mesh
from attention.forms import Dot
from attention.kernels.call import Call
from attention.mesh import BATCH, devices, in_replicas
from attention.normaliser import SOFTMAX

# Where half of the last block of keys is empty, and neither a causal mask nor lengths end it, the kernel of Hopper GPUs
# takes scores of 0 there. Beside scores below -88 their weights exceed float32, and the query's gradient is NaN
# (pytorch#196678; seen with cuDNN 9.19 on an H200, with a mask spelt out and without one).
BLOCK = 128


def why_not(call: Call) -> str:
    """Tells why cuDNN does not support the call, as part of a sentence; '' if it does."""
    if not isinstance(form := call.form, Dot):
        return "its scores are dot products"
    head_width, platform = form.query.shape[-1], mesh.platform()
    queries, keys = call.scores_shape[-2:]
    dtype, *other_dtypes = (x.dtype for x in (form.query, form.key, call.value))
    reasons = {
        f"it needs an NVIDIA GPU and this is {platform}": platform != "gpu",
        "it needs an NVIDIA GPU of the Ampere generation or a later one": platform == "gpu"
        and mesh.compute_capability() < (8, 0),
        f"it computes in bfloat16 or float16, not {dtype}": dtype not in (jnp.bfloat16, jnp.float16),
        f"queries of {dtype} need keys and values of it, not {other_dtypes[0]} and {other_dtypes[1]}": any(
            other != dtype for other in other_dtypes
        ),
        f"a head must be a multiple of 8 wide and at most 128, not {head_width}": head_width % 8 or head_width > 128,
        "values must be as wide as keys": call.value.shape[-1] != head_width,
        # JAX requires it for gradients with a bias, and treats every call as one (jax 0.10).
        f"it needs even numbers of queries and keys, not {queries} and {keys}": bool(queries % 2 or keys % 2),
        "it would round the bias to the queries' dtype": (bias := call.whole_bias) is not None and bias.dtype != dtype,
        f"{keys} keys leave half a block of 128, where its gradients may be NaN": _leaves_half_a_block(call),
        "its weights are those of the softmax": call.normaliser != SOFTMAX,
        "it drops no attention weights": call.dropout_rate > 0,
        "it returns no weights": call.return_weights,
        "it wants one batch axis": call.value.ndim != 4,
        # JAX's `vmap` rule supports neither key lengths nor masks, nor operands with the new axis elsewhere (jax 0.10).
        "JAX cannot give it replicas": in_replicas(),
    }
    return "; ".join(reason for reason, holds in reasons.items() if holds)


def _leaves_half_a_block(call: Call) -> bool:
    """Tells whether keys fill half of their last block, and neither a causal mask nor lengths end them there.

    Beside a bias this is not known to help. Lengths of our own would need JAX's `vmap` rule (see `why_not`).
    """
    ended = call.whole_bias is None and bool(call.mask.parts()) and _has_mask(call)
    return call.scores_shape[-1] % BLOCK == BLOCK // 2 and not ended


def _has_mask(call: Call) -> bool:
    """Tells whether cuDNN supports this mask natively, without an array over all pairs.

    Lengths would have to be split over devices as the batch is, which nothing ensures on a mesh.
    """
    native = {"causal": call.mask.in_step(*call.scores_shape[-2:]), "key_lengths": devices(*BATCH) == 1}
    return all(native.get(kind, False) for kind in call.mask.parts())


def attend(call: Call) -> tuple[jax.Array, None]:
    """Computes the output `(B, T, N, H)`, without weights, of a call for which `why_not` has no reason."""
    options, attends = _own_mask(call) if _has_mask(call) else _spelt_mask(call)
    form, bias = call.form, call.whole_bias
    bias = None if bias is None else _spelt(call, bias)
    out = jax.nn.dot_product_attention(
        form.query, form.key, call.value, bias, scale=form.scale, implementation="cudnn", **options
    )
    return out if attends is None else jnp.where(attends, out, jnp.zeros((), out.dtype)), None


def _spelt(call: Call, x: jax.Array) -> jax.Array:
    """Broadcasts `x` to all queries and keys, because cuDNN does not."""
    return jnp.broadcast_to(x, (*x.shape[:-2], *call.scores_shape[-2:]))


def _spelt_mask(call: Call) -> tuple[dict[str, Any], jax.Array]:
    """Writes the mask out as an array, and finds the queries that may attend to some key."""
    spelt = _spelt(call, call.allowed())
    return {"mask": spelt}, jnp.moveaxis(spelt.any(-1, keepdims=True), -3, -2)


def _own_mask(call: Call) -> tuple[dict[str, Any], jax.Array | None]:
    """Chooses cuDNN's native options for the mask, and finds the sequences with keys; None if all have some.

    Sequences without keys are given one, so that their gradients have no division by zero.
    """
    causal, lengths = {"is_causal": call.mask.causal}, call.mask.key_lengths
    if lengths is None:
        return causal, None
    lengths = jnp.broadcast_to(lengths, call.scores_shape[:1]).astype(jnp.int32)
    given = jnp.clip(lengths, 1, call.scores_shape[-1])
    return causal | {"key_value_seq_lengths": given}, (lengths > 0)[:, None, None, None]
