"""`implementation='chunked'`: loops over tiles of queries and keys, by XLA; no array over all pairs is stored.

The forward pass runs over blocks of keys with an online softmax (Milakov & Gimelshein 2018). The backward pass keeps
the output and the log-sum-exp of each row, and computes scores and dropout bits again (as FlashAttention does: Dao et
al. 2022). Blocks of keys that no query of a block may see, by causality or window, are not visited.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from attention.dropout import row_words
from attention.forms import MLP, Dot
from attention.kernels.arrays import spread_heads
from attention.kernels.call import Call
from attention.kernels.loops.plan import Rules, Tensors, TilePlan, rule, zeros
from attention.kernels.loops.scores import of_tiles
from attention.kernels.loops.sequences import TiledSequences
from attention.mesh import BATCH, devices


def why_not(call: Call) -> str:
    """Tells why tiles do not support the call, as part of a sentence; '' if they do."""
    reasons = {"it returns no weights": call.return_weights, "it needs at least one of everything": call.is_empty}
    reasons["its normalisers are those that need no whole rows"] = not call.normaliser.in_tiles
    return "; ".join(reason for reason, holds in reasons.items() if holds)


def attend(call: Call) -> tuple[jax.Array, None]:
    """Computes the output `(*B, T, N, V)`, without weights, of a call for which `why_not` has no reason."""
    call = arranged(call)
    weights, score, units = of_tiles(call)
    *batch, heads, queries, _ = call.scores_shape
    mask = call.mask
    size = math.prod(batch)
    words = row_words(call.dropout_seed, (size, heads, queries)) if call.dropout_rate else None
    rules = Rules(
        jnp.asarray(mask.query_offset, jnp.int32),
        call.flat(mask.key_lengths, 0),
        call.flat(mask.query_segments, 1),
        call.flat(mask.key_segments, 1),
        call.flat(mask.dense, 3),
        words,
        jnp.zeros((), jnp.int32),
        jnp.asarray(call.layer, jnp.int32),
    )
    arrays = call.query, call.key, call.value
    query, key, value = jax.tree.map(lambda x: x.reshape(size, *x.shape[len(batch) :]), arrays)
    form = queries, heads, mask.causal, mask.window, call.dropout_rate
    plan = TilePlan(score, call.normaliser, rule(call, score, units), *form)
    out = _attend(plan, Tensors(query, key, value, call.flat(call.bias, 3), weights), rules)
    return out.reshape(*batch, *out.shape[1:]), None


def arranged(call: Call) -> Call:
    """Gives the call with the queries, keys, values and bias of its form."""
    heads = call.scores_shape[-3]
    if isinstance(form := call.form, Dot):
        return dataclasses.replace(call, query=form.query, key=form.key, bias=call.whole_bias)
    if isinstance(form, MLP):
        return dataclasses.replace(call, key=spread_heads(call.key, heads), value=spread_heads(call.value, heads))
    return call.spread()


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(plan: TilePlan, tensors: Tensors, rules: Rules) -> jax.Array:
    return _forward(plan, tensors, rules)[0]


def _forward(plan: TilePlan, tensors: Tensors, rules: Rules) -> tuple[jax.Array, Any]:
    out, log_sums = _of_all(TiledSequences.forward, plan, tensors, rules)
    return out, (tensors, rules, out, log_sums)


def _backward(plan: TilePlan, residuals: Any, gradient: jax.Array) -> tuple[Tensors, None]:
    tensors, rules, out, log_sums = residuals
    d_tensors = gradients(plan, tensors, rules, out, log_sums, gradient, pull=TiledSequences.backward)
    return jax.tree.map(lambda d, x: d.astype(x.dtype), d_tensors, tensors), None


def partial(plan: TilePlan, tensors: Tensors, rules: Rules) -> Any:
    """Gives `TiledSequences.partial` of all sequences."""
    return _of_all(TiledSequences.partial, plan, tensors, rules)


def _of_all(method: Callable, plan: TilePlan, tensors: Tensors, rules: Rules) -> Any:
    """Calls a method of `TiledSequences` on all sequences, group by group."""

    def group(arguments, _):
        tensors_, rules_ = arguments
        return method(TiledSequences(plan, tensors_._replace(weights=tensors.weights), rules_)), None

    return _over_sequences(plan, group, (tensors._replace(weights=None), rules), None)[0]


def gradients(
    plan: TilePlan, tensors: Tensors, rules: Rules, *rows: jax.Array, pull: Callable = TiledSequences.backward_through
) -> Tensors:
    """Computes the gradients of all tensors, at least in float32, by the method `pull`."""
    shared_bias = tensors.bias is not None and len(tensors.bias) < len(rows[-1])

    def group(arguments, sums):
        tensors_, *rest = arguments
        weights, bias = sums
        block = TiledSequences(plan, tensors_._replace(weights=tensors.weights), rest[0])
        if not shared_bias:
            bias = zeros(tensors_.bias)
        *d_arrays, weights, bias = pull(block, *rest[1:], weights, bias)
        return (d_arrays, None if shared_bias else bias), (weights, bias if shared_bias else None)

    sums = zeros((tensors.weights, tensors.bias if shared_bias else None))
    arguments = (tensors._replace(weights=None), rules, *rows)
    (d_arrays, d_bias), (d_weights, d_shared_bias) = _over_sequences(plan, group, arguments, sums)
    return Tensors(*d_arrays, d_shared_bias if shared_bias else d_bias, d_weights)


_attend.defvjp(_forward, _backward)


def _over_sequences(plan: TilePlan, group: Callable, arguments: Any, sums: Any) -> tuple[Any, Any]:
    """Runs `group(arguments, sums) -> (outputs, sums)` over the batch axis, a few sequences at a time.

    Each device over which the mesh in force splits the batch handles its own sequences, so that none has to move.

    Args:
      plan: The plan, whose tiling gives the number of sequences.
      group: Computes a part of the batch.
      arguments: Arrays with a leading batch axis, and others, which are the same for all sequences.
      sums: Sums over the batch, initially zero.
    """
    leaves, tree = jax.tree.flatten(arguments)
    size = max(len(x) for x in leaves if x.ndim)
    shards = math.gcd(size, devices(*BATCH))
    together = next(n for n in range(min(plan.tiling.sequences, size // shards), 0, -1) if size // shards % n == 0)
    batched = [bool(x.ndim) and len(x) == size for x in leaves]

    def group_step(sums, arrays):
        arrays = iter(arrays)
        outputs, sums = group(
            tree.unflatten([next(arrays) if split else x for x, split in zip(leaves, batched, strict=True)]), sums
        )
        return sums, outputs

    def sequence_step(sums, arrays):
        sums, outputs = group_step(sums, [x[None] for x in arrays])
        return sums, jax.tree.map(lambda x: x[0], outputs)

    def run_shard(arrays):
        if together == len(arrays[0]):
            return group_step(sums, arrays)
        if together == 1:  # an axis of 1 would cost XLA a copy of each array
            return jax.lax.scan(sequence_step, sums, arrays)
        grouped = [x.reshape(-1, together, *x.shape[1:]) for x in arrays]
        sums_, outputs = jax.lax.scan(group_step, sums, grouped)
        return sums_, jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), outputs)

    arrays = [x for x, split in zip(leaves, batched, strict=True) if split]
    if shards == 1:
        sums, outputs = run_shard(arrays)
        return outputs, sums
    sums, outputs = jax.vmap(run_shard)([x.reshape(shards, -1, *x.shape[1:]) for x in arrays])
    outputs = jax.tree.map(lambda x: x.reshape(size, *x.shape[2:]), outputs)
    return outputs, jax.tree.map(lambda x: x.sum(0), sums)
