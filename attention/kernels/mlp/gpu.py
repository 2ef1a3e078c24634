"""The pairwise family on Hopper GPUs: Pallas kernels for Mosaic GPU, with products in `wgmma`, which later GPUs lack.

It calls `plgpu.kernel`, because `pl.pallas_call` on a GPU lowers through Triton by default (jax 0.10 and 0.11), and its
option for Mosaic is deprecated.

A warpgroup has 64 rows, of queries or of keys, and passes over the columns in tiles. Everything about a pair is
elementwise on (64, columns) registers, for one hidden unit after another (`layers.py`); powers are of 2, of scores
times log₂ e. Only products with values and with the output's gradient run on tensor cores. Those take bfloat16: float32
is split into three bfloat16 terms, which hold all its bits, and the six products of terms that matter are summed in
float32.

The backward pass has keys as rows. Where queries have few units, it also sums over rows, for all gradients at once;
some warpgroups then share the keys of a head, and each has a sum of its own. Else another pass has queries as rows.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from attention.kernels.mlp.layers import factors_of
from attention.kernels.mlp.network import Fixed, Network, Operands, PairPlan
from attention.kernels.mlp.warpgroup import (
    HELD,
    LOWEST,
    ROWS,
    InRegisters,
    InShared,
    TileRows,
    columns_of,
    count_sums,
    transforms_of,
    zeros,
)

BLOCK = (ROWS, ROWS)  # lengths are padded to multiples; tiles of columns are at most as wide
WIDEST = 128  # the widest values whose sums fit in registers
MOST = 65_535  # sequences, and heads, of a launch
FEW = 8  # units of queries whose gradients the keys' pass sums too
BUSY = 264  # warpgroups of that pass, more only for more sequences and heads: the two that an SM of an H100 holds


def block_sizes(queries: int, keys: int, network: Network) -> tuple[int, int]:
    """Gives a tile's number of queries and of keys, the same for all lengths."""
    return BLOCK


def holds(network: Network) -> bool:
    """Tells whether the gradients of units and weights fit in 64 KB of shared memory."""
    return count_sums(network, weighs=True) <= 256


def forward(plan: PairPlan, operands: Operands, fixed: Fixed) -> tuple[jax.Array, jax.Array]:
    """Computes the output `(B, N, T', V)` and log-sum-exp `(B, N, T')`."""
    shape = operands.query.shape[:3]
    value = _widened(operands.value)
    inputs = _inputs(plan, operands, fixed) | _parts("value", value)
    outputs = {"out": (*shape, value.shape[-1]), "log_sum": shape}
    kernel = functools.partial(_forward_kernel, value.shape[-1])
    out, log_sums = _launch(kernel, shape[-1], plan=plan, inputs=inputs, outputs=outputs, held={})
    return out[..., : operands.value.shape[-1]].astype(operands.value.dtype), log_sums


def backward(
    plan: PairPlan, operands: Operands, fixed: Fixed, out: jax.Array, log_sums: jax.Array, gradient: jax.Array
) -> Operands:
    """Computes the gradients of all operands."""
    network, value_type = plan.network, operands.value.dtype
    through_sum = jnp.sum(gradient.astype(jnp.float32) * out.astype(jnp.float32), -1)
    value, gradient = _widened(operands.value), _widened(gradient)
    inputs = _inputs(plan, operands, fixed) | {"log_sum": log_sums, "through_sum": through_sum}
    inputs |= _parts("value", value) | _parts("gradient", gradient)
    (*lead, queries, units), keys, width = operands.query.shape, *value.shape[2:]
    launch = functools.partial(_launch, plan=plan, inputs=inputs)
    of_keys = {"d_key": (*lead, units, keys), "d_value": (*lead, keys, width)}
    by_key, held = functools.partial(_key_kernel, width), _parts("value", value)
    if units <= FEW:
        groups = min(keys // ROWS, -(-BUSY // math.prod(lead)))
        outputs = of_keys | {"d_weights": (*lead, network.size, keys), "d_query": (*lead, groups, units, queries)}
        d_key, d_value, d_weights, d_query = launch(by_key, keys, outputs=outputs, held=held, groups=groups)
        d_query = d_query.sum(2)
    else:
        d_key, d_value = launch(by_key, keys, outputs=of_keys, held=held)
        outputs = {"d_query": (*lead, units, queries), "d_weights": (*lead, network.size, queries)}
        d_query, d_weights = launch(_query_kernel, queries, outputs=outputs, held=_parts("gradient", gradient))
    of_units, of_weights = factors_of(network, inputs["weights"])
    return operands._replace(
        query=(d_query * of_units[None, ..., None]).mT,
        key=d_key * of_units[None, ..., None],
        value=d_value[..., : operands.value.shape[-1]].astype(value_type),
        weights=_unflat(network, d_weights.sum((0, -1)) * of_weights, operands.weights),
    )


def _unflat(network: Network, flat: jax.Array, weights: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
    """Reshapes the gradients `(N, P)` of all weights to the weights' shapes, summed where heads share them."""
    start, gradients = 0, []
    for (rows, columns), weight in zip(network.shapes, weights, strict=True):
        stop = start + rows * columns
        by_head = flat[:, start:stop].reshape(-1, rows, columns)
        gradients.append(by_head if len(weight) > 1 else by_head.sum(0, keepdims=True))
        start = stop
    return tuple(gradients)


def _widened(x: jax.Array) -> jax.Array:
    """Pads `x` with zeros to a multiple of 64 columns, as shared memory needs."""
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % 64)])


def _parts(name: str, x: jax.Array) -> dict[str, jax.Array]:
    """Cuts an input as `cut` does, with a rounding that XLA keeps: it leaves out conversions to bfloat16 and back."""
    rest, parts = x, {}
    for index in range(1 if x.dtype == jnp.bfloat16 else 3):
        part = jax.lax.reduce_precision(rest, 8, 7)
        parts[f"{name}_{index}"], rest = part.astype(jnp.bfloat16), rest - part
    return parts


def cut(x: jax.Array, parts: int) -> list[jax.Array]:
    """Cuts `x` into bfloat16 arrays whose sum it is, up to rounding if there are fewer than three."""
    whole, cuts = x, []
    for _ in range(parts):
        cuts.append(whole.astype(jnp.bfloat16))
        whole = whole - cuts[-1].astype(whole.dtype)
    return cuts


def _inputs(plan: PairPlan, operands: Operands, fixed: Fixed) -> dict[str, jax.Array]:
    flat = [weight.reshape(len(weight), -1) for weight in operands.weights]
    inputs = {
        "offset": fixed.offset,
        "lengths": fixed.lengths,
        "seed": fixed.seed,
        "sequence": fixed.sequence,
        "query": operands.query.mT,
        "key": operands.key,
        "weights": jnp.concatenate(flat, axis=1),
    }
    if fixed.query_segments is not None:
        inputs |= {"query_segments": fixed.query_segments[..., 0], "key_segments": fixed.key_segments[:, 0]}
    return inputs


def _launch(
    kernel: Callable,
    rows: int,
    *,
    plan: PairPlan,
    inputs: dict[str, jax.Array],
    outputs: dict[str, tuple[int, ...]],
    held: dict[str, jax.Array],
    groups: int = 0,
) -> Sequence[jax.Array]:
    """Runs a kernel for each sequence, head and 64 of so many rows.

    Args:
      outputs: The shapes of the float32 outputs.
      held: The inputs of which a tile of rows is in shared memory.
      groups: How many warpgroups share the rows of a head; 0 means one for each 64 rows.
    """
    weighs, transforms = "d_weights" in outputs, transforms_of(plan)
    sums = count_sums(plan.network, weighs)
    many = sums > HELD and "out" not in outputs  # a forward pass sums none
    shared = [plgpu.SMEM((sums, ROWS), jnp.float32)] if many else []
    tiles = [plgpu.SMEM((ROWS, x.shape[-1]), x.dtype, transforms=transforms) for x in held.values()]

    def body(*refs):
        names = (*inputs, *outputs)
        ref = dict(zip(names, refs[: len(names)], strict=True))
        loaded, (*memory, barriers) = refs[len(names) :][: len(held)], refs[len(names) :][len(held) :]
        b, n, group = (jax.lax.axis_index(axis) for axis in ("batch", "heads", "groups"))

        def run(tile: Any) -> None:
            for index, (name, there) in enumerate(zip(held, loaded, strict=True)):
                source = ref[name].at[b, n, pl.ds(tile * ROWS, ROWS)]
                plgpu.copy_gmem_to_smem(source, there, barriers.at[index])
            for index in range(len(held)):
                plgpu.barrier_wait(barriers.at[index])
            kind = InShared if memory else InRegisters
            kernel(TileRows(plan, ref, b, n, tile, group), loaded, kind(plan.network, weighs, *memory))

        if not groups:
            return run(group)
        _clear(ref["d_query"].at[b, n, group])

        def next_tile(step: Any, _: None) -> None:
            run(group + step * groups)
            plgpu.commit_smem()  # before the next tile takes the memory's place

        jax.lax.fori_loop(0, pl.cdiv(rows // ROWS - group, groups), next_tile, None)

    body.__name__ = f"pair_{next(iter(outputs))}"  # what compilers and profiles call it
    call = plgpu.kernel(
        body,
        out_type=[jax.ShapeDtypeStruct(shape, jnp.float32) for shape in outputs.values()],
        scratch_types=[*tiles, *shared, plgpu.Barrier(num_barriers=max(1, len(held)))],
        grid=(*inputs["query"].shape[:2], groups or rows // ROWS),
        grid_names=("batch", "heads", "groups"),
        compiler_params=plgpu.CompilerParams(
            lowering_semantics=plgpu.LoweringSemantics.Lane,
            approx_math=plan.network.activation == "relu",  # of the powers; a tanh would lose half its digits
            reduction_scratch_bytes=128 * columns_of(plan.network, plan.rounded),
        ),
    )
    return call(*inputs.values())


def _clear(d_query: Any) -> None:
    """Fills a warpgroup's gradient of the queries' units `(M, T)` with zeros."""

    def clear(step: Any, _: None) -> None:
        for unit in range(d_query.shape[0]):
            d_query[unit, pl.ds(step * ROWS, ROWS)] = zeros()

    jax.lax.fori_loop(0, d_query.shape[1] // ROWS, clear, None)


def _products(terms: int) -> list[tuple[int, int]]:
    """Lists the pairs of terms to multiply; the sum of all others is below float32's last bit."""
    return [(i, j) for i in range(terms) for j in range(terms - i)]


def _add_product(total: jax.Array, weights: jax.Array, wide: Sequence[Any]) -> jax.Array:
    """Adds weights `(64, C)` times wide tiles `(C, V)` to the total."""
    terms = cut(weights, len(wide))

    def compute(acc):
        for i, j in _products(len(wide)):
            plgpu.wgmma(acc, terms[i], wide[j])

    return pl.run_state(compute)(plgpu.ACC.init(total))


def _outer_product(rows: Sequence[Any], wide: Sequence[Any], columns: int) -> jax.Array:
    """Multiplies row tiles `(64, V)` by transposed wide tiles `(C, V)`."""

    def compute(acc):
        for i, j in _products(len(wide)):
            plgpu.wgmma(acc, rows[i], wide[j].T)
        return acc[...]

    return pl.run_scoped(compute, plgpu.ACC((ROWS, columns), jnp.float32))


def _forward_kernel(width: int, rows: TileRows, *_) -> None:
    def visit(tile, wide, carry):
        total, highest, share = carry
        scores = tile.masked(tile.layers().scores()[0])
        higher = jnp.maximum(highest, scores.max(1))
        shrink, shares = jnp.exp2(highest - higher), jnp.exp2(scores - tile.down(higher))
        share = share * shrink + shares.sum(1)
        total = total * jax.lax.broadcast_in_dim(shrink, total.shape, (0,))
        return _add_product(total, tile.dropped(shares), wide), higher, share

    # Half of the lowest score, so that a row without allowed keys has weights exp(lowest - half) = 0.
    total, highest, share = rows.loop(True, "value", visit, (zeros(width), zeros() + LOWEST / 2, zeros()))
    share = jnp.where(share == 0, 1.0, share)
    rows.store("out", total / jax.lax.broadcast_in_dim(share, total.shape, (0,)))
    rows.store("log_sum", highest + jnp.log2(share))


def _query_kernel(rows: TileRows, gradient: Sequence[Any], sums: Any) -> None:
    def visit(tile, wide, carry):
        layers, here = tile.layers(), sums.of(carry)
        scores, held = layers.scores()
        shares = jnp.exp2(tile.masked(scores) - tile.down(rows.vector("log_sum")))
        d_shares = tile.dropped(_outer_product(gradient, wide, tile.columns))
        d_scores = shares * (d_shares - tile.down(rows.vector("through_sum")))
        layers.gradients(d_scores, held, here.add_unit, here.add_weight)
        return here.after

    sums.store(rows, rows.loop(True, "value", visit, sums.start()), "d_query", "d_weights")


def _key_kernel(width: int, rows: TileRows, value: Sequence[Any], sums: Any) -> None:
    """Also sums the gradients of weights and of the queries' units if there are outputs for them."""

    def visit(tile, wide, carry):
        total, before = carry
        layers, here = tile.layers(), sums.of(before)
        scores, held = layers.scores()
        shares = jnp.exp2(tile.masked(scores) - tile.vector("log_sum"))
        total = _add_product(total, tile.dropped(shares), wide)
        d_shares = tile.dropped(_outer_product(value, wide, tile.columns))

        def unit(m: Any, x: jax.Array) -> None:
            if "d_query" in rows.ref:
                tile.add_along_rows("d_query", m, x)
            here.add_unit(m, x)

        layers.gradients(shares * (d_shares - tile.vector("through_sum")), held, unit, here.add_weight)
        return total, here.after

    total, after = rows.loop(False, "gradient", visit, (zeros(width), sums.start()))
    rows.store("d_value", total)
    sums.store(rows, after, "d_key", "d_weights")
