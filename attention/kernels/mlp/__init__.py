"""`implementation='pallas'` of the MLP on pairs: tiles of queries and keys with an online softmax, in Pallas.

No array over queries × keys is stored but the gradient of a bias. The backward pass keeps the output and each row's
log-sum-exp and recomputes scores, weights and dropout bits tile by tile (FlashAttention-2: Dao 2023), in one kernel, or
on GPUs in two where queries have many units. Tiles that causality, a window or key lengths exclude are skipped. TPUs
run the kernels of `tpu`, Hopper GPUs those of `gpu`; on a CPU the kernels of `tpu` are interpreted.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from attention import mesh
from attention.forms import MLP
from attention.kernels.arrays import precise, spread_heads
from attention.kernels.call import Call
from attention.kernels.mlp.network import Fixed, Network, Operands, PairPlan
from attention.kernels.sight import plan_of
from attention.mesh import BATCH, HEADS, devices, free_axes, on_each_device, sequences_and_heads
from attention.normaliser import SOFTMAX

LOG_E = math.log2(math.e)  # scores times it are the exponents of powers of 2, which all kernels take


def why_not(call: Call, platform: str = "") -> str:
    """Tells why the platform, or this machine, does not support the call; '' if it does."""
    if not isinstance(call.form, MLP):
        return "its scores are those of an MLP on pairs"
    platform = platform or platform_here()
    batch, heads = math.prod(call.scores_shape[:-3]), call.scores_shape[-3]
    over_batch, over_heads = devices(*BATCH), devices(*HEADS)
    odd = [str(x.dtype) for x in (call.query, call.value) if x.dtype not in (jnp.float32, jnp.bfloat16)]
    reasons = {
        "it needs a TPU or an NVIDIA GPU of the Hopper generation": not platform,
        "its weights are those of the softmax": call.normaliser != SOFTMAX,
        "it returns no weights": call.return_weights,
        "it needs at least one of everything": call.is_empty,
        f"{batch} sequences do not divide among {over_batch} devices": batch % over_batch,
        f"{heads} heads do not divide among {over_heads} devices": heads % over_heads,
        f"its kernels hold float32 or bfloat16, not {' and '.join(dict.fromkeys(odd))}": platform != "interpret"
        and bool(odd),
    } | (_reasons_of_a_gpu(call) if platform == "gpu" else _reasons_of_a_tpu(call))
    return "; ".join(reason for reason, holds in reasons.items() if holds)


def _reasons_of_a_tpu(call: Call) -> dict[str, bool]:
    block = call.block or (128, 128)
    return {f"its tiles are multiples of 128 queries and keys, not {block}": bool(block[0] % 128 or block[1] % 128)}


def _reasons_of_a_gpu(call: Call) -> dict[str, bool]:
    kernels, network = _kernels("gpu"), _network(call)
    launched = max(math.prod(call.scores_shape[:-3]) // devices(*BATCH), call.scores_shape[-3] // devices(*HEADS))
    return {
        "on a GPU it adds no bias": call.bias is not None,
        "on a GPU it takes no dense mask": call.mask.dense is not None,
        f"on a GPU its network has at most two layers, not {len(network.units)}": len(network.units) > 2,
        f"on a GPU the gradients of {network.units[0]} units and {network.size} weights do not fit in 64 KB": not (
            kernels.holds(network)
        ),
        f"on a GPU its tiles are {kernels.BLOCK}, not {call.block}": call.block not in (None, kernels.BLOCK),
        f"on a GPU there are at most {kernels.MOST:,} sequences or heads on a device, not {launched:,}": launched
        > kernels.MOST,
        f"on a GPU values are at most {kernels.WIDEST} wide": call.value.shape[-1] > kernels.WIDEST,
    }


def platform_here() -> str:
    """Names the platform whose kernels suit what is being compiled, on a GPU those of the Hopper generation."""
    return mesh.kernel_platform(mesh.compute_capability()[:1] == (9,))


def attend(call: Call, block: tuple[int, int] | None = None, platform: str = "") -> tuple[jax.Array, None]:
    """Computes the output `(*B, T, N, V)`, without weights, of a call for which `why_not` has no reason.

    Args:
      block: Queries and keys of a tile; by default the rule's. On a GPU they are fixed.
      platform: `tpu`, `gpu` or `interpret`; by default this machine's.
    """
    heads = call.scores_shape[-3]
    call = dataclasses.replace(call, key=spread_heads(call.key, heads), value=spread_heads(call.value, heads))
    platform = platform or platform_here()
    kernels = _kernels(platform)
    block = block or call.block or kernels.block_sizes(*call.scores_shape[-2:], _network(call))
    rounded = call.value.dtype == jnp.bfloat16
    plan = PairPlan(network=_network(call), rounded=rounded, **plan_of(call, block, platform))
    out = _on_mesh(plan, _operands(call, plan), _fixed(call, plan))
    out = jnp.swapaxes(out, 1, 2)[:, : plan.queries]
    return out.reshape(*call.scores_shape[:-3], *out.shape[1:]), None


def units(call: Call) -> tuple[int, ...]:
    """Gives the units of each layer."""
    return (call.query.shape[-1], *(kernel.shape[-1] for kernel, _ in call.form.layers))


def _network(call: Call) -> Network:
    return Network(units(call), tuple(bias is not None for _, bias in call.form.layers), call.form.activation)


def _operands(call: Call, plan: PairPlan) -> Operands:
    per_head = call.form.vector.ndim == 2
    layers = [x for kernel, bias in call.form.layers for x in (kernel.mT, None if bias is None else bias[..., None])]
    weights = [precise(x) for x in (*layers, precise(call.form.vector)[..., None] * LOG_E) if x is not None]
    query, key, value = (x.reshape(-1, *x.shape[-3:]).swapaxes(1, 2) for x in (call.query, call.key, call.value))
    return Operands(
        query=_padded(precise(query), plan, {-2: 0}),
        key=_padded(precise(key).mT, plan, {-1: 1}),
        value=_padded(value, plan, {-2: 1}),
        weights=tuple(x if per_head else x[None] for x in weights),
        bias=None if call.bias is None else _padded(call.flat(precise(call.bias) * LOG_E, 3), plan, {-2: 0, -1: 1}),
    )


def _fixed(call: Call, plan: PairPlan) -> Fixed:
    mask, (batch, heads) = call.mask, (math.prod(call.scores_shape[:-3]), call.scores_shape[-3])
    lengths = jnp.full(batch, plan.keys) if mask.key_lengths is None else call.flat(mask.key_lengths, 0)
    segments = [None, None]
    if mask.query_segments is not None:
        segments = [call.flat(x, 1).astype(jnp.int32) for x in (mask.query_segments, mask.key_segments)]
        segments = [_padded(segments[0][..., None], plan, {-2: 0}), _padded(segments[1][:, None], plan, {-1: 1})]
    return Fixed(
        dense=None if mask.dense is None else _padded(call.flat(mask.dense, 3), plan, {-2: 0, -1: 1}).astype(jnp.int8),
        query_segments=segments[0],
        key_segments=segments[1],
        offset=jnp.asarray(mask.query_offset, jnp.int32).reshape(1),
        lengths=lengths.astype(jnp.int32),
        seed=jnp.zeros(2, jnp.uint32) if call.dropout_seed is None else call.dropout_seed,
        sequence=jnp.arange(batch * heads, dtype=jnp.uint32).reshape(batch, heads),
    )


def _padded(x: jax.Array, plan: PairPlan, axes: dict[int, int]) -> jax.Array:
    """Pads the axes of queries (0) or keys (1) with zeros to whole tiles; a shared axis of size 1 stays."""
    lengths, ends = (plan.queries, plan.keys), [(0, 0)] * x.ndim
    for axis, side in axes.items():
        if x.shape[axis] == lengths[side] > 1 or len(axes) == 1:
            ends[axis] = (0, -lengths[side] % plan.block[side])
    return jnp.pad(x, ends)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(plan: PairPlan, operands: Operands, fixed: Fixed) -> jax.Array:
    return _forward(plan, operands, fixed)[0]


def _kernels(platform: str):
    """Imports the platform's kernels at their first use, because Pallas takes longer to import than JAX."""
    if platform == "gpu":
        from attention.kernels.mlp import gpu as kernels
    else:
        from attention.kernels.mlp import tpu as kernels
    return kernels


def _forward(plan: PairPlan, operands: Operands, fixed: Fixed):
    out, log_sums = _kernels(plan.platform).forward(plan, operands, fixed)
    return out, (operands, fixed, out, log_sums)


def _backward(plan: PairPlan, residuals, gradient: jax.Array):
    found = _kernels(plan.platform).backward(plan, *residuals, gradient)
    scaled = jax.tree.map(lambda x: x / LOG_E, found)  # 2ˢ has the gradient 2ˢ / log₂ e
    return scaled._replace(value=found.value), None


_attend.defvjp(_forward, _backward)


def _on_mesh(plan: PairPlan, operands: Operands, fixed: Fixed) -> jax.Array:
    batch, heads = free_axes(*BATCH), free_axes(*HEADS)
    specs = jax.tree.map(sequences_and_heads, (operands, fixed))
    by_head = tuple(P(heads if len(x) > 1 else ()) for x in operands.weights)
    by_sequence = {
        name: P(batch if len(x) > 1 else ())
        for name, x in fixed._asdict().items()
        if name in ("lengths", "query_segments", "key_segments") and x is not None
    }
    specs = specs[0]._replace(weights=by_head), specs[1]._replace(offset=P(), seed=P(), **by_sequence)
    return on_each_device(functools.partial(_attend, plan), (operands, fixed), specs, specs[0].query)
