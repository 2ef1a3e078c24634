"""`implementation='pallas'` of dot products: JAX's splash attention, a kernel for TPUs; on a CPU it is interpreted.

Tiles that causality or a window exclude are skipped, and the backward pass recomputes the weights.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from attention import mesh
from attention.forms import Dot
from attention.kernels.call import Call
from attention.kernels.loops.plan import even
from attention.mesh import BATCH, CONTEXT, HEADS, devices, free_axes, on_each_device, sequences_and_heads
from attention.normaliser import SOFTMAX

LANES = 128  # tiles are multiples of it
LARGEST = 512  # queries and keys of a tile; 1,024 takes as many cycles
# Most tiles of keys for which the backward pass is one kernel, which writes a gradient of all queries for each of them.
# Two kernels take a quarter more cycles.
MOST_PARTS = 8
# Fewest queries and keys for which `auto` takes the kernel: the shortest length at which the compiler's figures have it
# ahead of XLA (benchmarks/README.md). Below, it was not compiled, and much of a tile may be padding.
FEWEST = 256


def why_not(call: Call) -> str:
    """Tells why the kernel does not support the call, as part of a sentence; '' if it does."""
    if not isinstance(form := call.form, Dot):
        return "its scores are dot products"
    platform, mask = mesh.platform(), call.mask
    queries, keys = call.scores_shape[-2:]
    batch, kv_heads = math.prod(call.scores_shape[:-3]), form.key.shape[-2]
    over_batch, over_heads = devices(*BATCH), devices(*HEADS)
    odd = {str(x.dtype) for x in (form.query, form.key, call.value)} - {"float32", "bfloat16"}
    near = mask.causal or mask.window > 0
    sharp = form.scale > 1 and math.frexp(form.scale)[0] != 0.5 and form.query.dtype == jnp.bfloat16
    reasons = {
        "it has no queries, keys, heads, sequences or values": call.is_empty,
        f"bfloat16 queries times {form.scale:g} would round scores that are this sharp": sharp,
        f"its dot products need a TPU and this is {platform}": platform == "gpu",
        "its weights are those of the softmax": call.normaliser != SOFTMAX,
        "it adds no bias": call.whole_bias is not None,
        "it takes no dense mask": mask.dense is not None,
        "it drops no attention weights": call.dropout_rate > 0,
        "it returns no weights": call.return_weights,
        "it has no choice of precision": form.precision is not None,
        f"it holds float32 or bfloat16, not {' and '.join(sorted(odd))}": bool(odd),
        "causality and windows need as many queries as keys, at the same positions": near
        and not mask.in_step(queries, keys),
        f"its tiles are multiples of {LANES} queries and keys, not {call.block}": call.block is not None
        and any(size % LANES for size in call.block),
        "tokens are split among devices": devices(*CONTEXT) > 1,
        f"{batch} sequences do not divide among {over_batch} devices": bool(batch % over_batch),
        f"{kv_heads} heads of keys do not divide among {over_heads} devices": bool(kv_heads % over_heads),
    }
    return "; ".join(reason for reason, holds in reasons.items() if holds)


def attend(call: Call) -> tuple[jax.Array, None]:
    """Computes the output `(*B, T, N, V)`, without weights, of a call for which `why_not` has no reason."""
    form = call.form
    queries, keys = call.scores_shape[-2:]
    block = call.block or tuple(even(size, LARGEST, LANES) for size in (queries, keys))
    kind = jnp.result_type(form.query, form.key, call.value)
    query, key, value = (
        _whole_tiles(x.astype(kind).reshape(-1, *x.shape[-3:]).swapaxes(1, 2), size)
        for x, size in ((form.query * form.scale, block[0]), (form.key, block[1]), (call.value, block[1]))
    )
    run = functools.partial(_on_a_device, block, call.mask.causal, call.mask.window)
    arrays = query, key, value, _segments(call, query.shape[-2], key.shape[-2])
    specs = jax.tree.map(sequences_and_heads, arrays[:3]), jax.tree.map(lambda x: P(free_axes(*BATCH)), arrays[3])
    out = on_each_device(run, arrays, (*specs[0], specs[1]), specs[0][0])
    out = out.swapaxes(1, 2)[:, :queries].reshape(*form.query.shape[:-1], -1)
    return _without_blind(call, out), None


def _whole_tiles(x: jax.Array, size: int) -> jax.Array:
    return jnp.pad(x, ((0, 0), (0, 0), (0, -x.shape[-2] % size), (0, 0)))


def _segments(call: Call, queries: int, keys: int) -> tuple[jax.Array, jax.Array] | None:
    """Numbers the segments of queries `(B, T')` and keys `(B, S')`, padding as its own; None if all are one."""
    mask, (real_queries, real_keys) = call.mask, call.scores_shape[-2:]
    padded = keys > real_keys and not mask.causal  # causality hides padding, which comes last
    if not ({"key_lengths", "segments"} & mask.parts() or padded):
        return None
    batch = math.prod(call.scores_shape[:-3])
    rows, columns = (
        jnp.zeros((batch, size), jnp.int32) if x is None else call.flat(x, 1).astype(jnp.int32)
        for x, size in ((mask.query_segments, real_queries), (mask.key_segments, real_keys))
    )
    if mask.key_lengths is not None:
        nobody = jnp.iinfo(jnp.int32).min
        columns = jnp.where(jnp.arange(real_keys)[None] < call.flat(mask.key_lengths, 0)[:, None], columns, nobody)
    rows = jnp.pad(rows, ((0, 0), (0, queries - real_queries)))
    return rows, jnp.pad(columns, ((0, 0), (0, keys - real_keys)), constant_values=jnp.iinfo(jnp.int32).min)


def _without_blind(call: Call, out: jax.Array) -> jax.Array:
    """Sets the output of queries that see no key to zero; the kernel gives them the mean of some values."""
    if not {"key_lengths", "segments"} & call.mask.parts():
        return out
    seen = call.allowed().any(-1)  # (*B, 1 or N, 1 or T)
    return jnp.where(jnp.moveaxis(seen, -2, -1)[..., None], out, jnp.zeros((), out.dtype))


def _on_a_device(block, causal, window, query, key, value, segments) -> jax.Array:
    """Runs the kernel on `(B, N, T, H)`, `(B, K, S, H)` and `(B, K, S, V)`, and returns `(B, N, T, V)`."""
    # Pallas takes longer to import than JAX, so it waits for a use.
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    mask = _mask((query.shape[-2], key.shape[-2]), causal, window)
    rows, across = block
    one = key.shape[-2] // across <= MOST_PARTS
    forward, backward = (rows, across, across), (rows, across, across, *(() if one else block))
    kernel = splash.make_splash_mha_single_device(
        masks.MultiHeadMask([mask] * query.shape[1]),
        block_sizes=splash.BlockSizes(*forward, *backward, use_fused_bwd_kernel=one),
        interpret=mesh.platform() == "cpu",
    )
    if segments is None:
        return jax.vmap(kernel)(query, key, value)
    return jax.vmap(lambda q, k, v, ids: kernel(q, k, v, splash.SegmentIds(*ids)))(query, key, value, segments)


@functools.cache  # JAX compiles a kernel again for every new mask, even an equal one
def _mask(shape: tuple[int, int], causal: bool, window: int) -> Any:
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    if not (causal or window):
        return masks.FullMask(shape)
    return masks.LocalMask(shape, (window - 1 if window else None, 0 if causal else window - 1), 0)
