"""Any function of a pair in one kernel, forward and backward, on GPUs (Pallas, by Triton) and TPUs (Mosaic).

`Score.pair` is taken apart (`programs`): what depends on one token alone is computed before, by XLA. A kernel has the
rows of one tile, passes over the columns, and lowers the rest of the program to planes of (rows, columns) (`planes`).
Rows are queries in the forward pass, and keys in the backward pass. There a TPU, which takes a head's tiles of keys one
after another, sums the gradients of queries too, if they fit in its fast memory; else another pass has queries as rows.
Each sum has one order, so results are the same every time.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from attention import mesh
from attention.forms import At
from attention.kernels import pairs
from attention.kernels.arrays import precise, score_dtype, spread_heads
from attention.kernels.call import Call
from attention.kernels.fused import programs, tpu
from attention.kernels.fused.planes import lowers
from attention.kernels.fused.programs import BOTH, COLUMNS, HEAD, ROWS, Kind, Parts
from attention.kernels.fused.tiles import FusedPlan, FusedRules, Pass, backward_kernel, forward_kernel
from attention.kernels.sight import plan_of
from attention.mesh import BATCH, HEADS, devices, on_each_device, sequences_and_heads
from attention.parameters import Sizes

MOST_NUMBERS = 128  # parameters of a head whose gradients a row of pairs holds
MOST_WIDE = 256  # the widest vectors of a token
GPU_BLOCK = 64, 64  # queries and keys of a tile, not chosen by measuring
# Whether Triton, Mosaic or the interpreter lowers an equation.
LOWERS = {
    "gpu": functools.partial(lowers, missing=frozenset({"expm1", "round", "reduce_prod"})),
    "tpu": functools.partial(lowers, missing=frozenset({"reduce_prod"})),
    "interpret": lowers,
}


class FusedArrays(NamedTuple):
    """The arrays of a call; the axes of sequences and heads, and those of tokens, may be 1.

    Attributes:
      given: What the program of a pair reads: `(B, N, T or S or 1, ...)`.
      value: `(B, K, S, V)`.
      normaliser: The arrays of the normaliser, `(1, N, 1)`.
    """

    given: tuple[jax.Array, ...]
    value: jax.Array
    normaliser: dict[str, jax.Array]


@functools.cache
def _parts(score: Any, heads: int, depth: int, kinds: tuple[Kind, ...], tree: Any, leaves: tuple[Any, ...]) -> Parts:
    """Traces `pair` for one query and one key, and takes it apart."""

    def pair(*arrays: jax.Array) -> jax.Array:
        of = jax.tree.unflatten(tree, arrays)
        at = At(of["i"], of["j"], of["head"], heads, of["layer"], depth)
        params = of["shared"] | of["own"] | of["over_queries"] | of["over_keys"]
        found = pairs.one_number(score, params, of["query"], of["key"], at)
        return precise(jnp.asarray(found))

    return programs.split(programs.trace(pair, *leaves), kinds)


def _inputs(call: Call) -> tuple[Parts, tuple[Kind, ...], list[jax.Array]]:
    """Gives the parts of the program, and its inputs with what each depends on; axes `(B, N, L)` may be 1."""
    *batch, heads, queries, keys = call.scores_shape
    size = math.prod(batch)
    shared, own, tables = jax.tree.map(precise, pairs.split_params(call))
    over_queries = {name: x[None, :, :, 0] for name, x in tables.items() if x.shape[1] > 1 or not x.shape[2] > 1}
    others = call.normaliser.parameters(Sizes(1, 1, 1, 1))

    def by_head(x: jax.Array) -> jax.Array:
        x = x if programs.is_float(x) else precise(x)  # whole numbers are numbers in every implementation
        return x.reshape(size, *x.shape[len(batch) :]).swapaxes(1, 2)

    query, key = jax.tree.map(by_head, (call.query, call.key))
    arrays = {
        "shared": {name: x[None, None, None] for name, x in shared.items() if name not in others},
        "own": {name: x[None, :, None] for name, x in own.items()},
        "over_queries": over_queries,
        "over_keys": {name: x[None, :, 0] for name, x in tables.items() if name not in over_queries},
        "query": query,
        "key": key,
        "i": (call.mask.query_offset + jnp.arange(queries, dtype=jnp.int32))[None, None],
        "j": jnp.arange(keys, dtype=jnp.int32)[None, None],
        "head": jnp.arange(heads, dtype=jnp.int32)[None, :, None],
        "layer": jnp.asarray(call.layer, jnp.int32).reshape(1, 1, 1),
    }
    rows, columns = (HEAD, ROWS), (HEAD, COLUMNS)
    depends: dict[str, Sequence[str]] = {"own": (HEAD,), "head": (HEAD,), "over_queries": rows, "over_keys": columns}
    depends |= {"query": (ROWS,), "i": (ROWS,), "key": (COLUMNS,), "j": (COLUMNS,)}
    leaves, tree = jax.tree.flatten(arrays)
    kinds = tuple(frozenset(depends.get(name, ())) for name in sorted(arrays) for _ in jax.tree.leaves(arrays[name]))
    shapes = tuple(jax.ShapeDtypeStruct(x.shape[3:], _wide(x).dtype) for x in leaves)
    return _parts(call.score, heads, call.depth, kinds, tree, shapes), kinds, leaves


def _before(parts: Parts, kinds: Sequence[Kind], inputs: Sequence[Any], heads: int) -> list[Any]:
    """Computes what the tile reads from the inputs of a program, once for each token; axes `(B, N, L)` may be 1."""
    found: list[Any] = [inputs[source] if source >= 0 else None for source in parts.sources]
    for side in (ROWS, COLUMNS, None):
        numbers = [i for i in parts.of(side) if parts.sources[i] < 0]
        if not numbers:
            continue
        by_head = any(HEAD in parts.kinds[i] for i in numbers)
        known = frozenset({side} - {None}) | (frozenset({HEAD}) if by_head or side == ROWS else frozenset())
        some = [_wide(x) if kind <= known else None for x, kind in zip(inputs, kinds, strict=True)]
        if by_head and side == COLUMNS:
            some = jax.tree.map(lambda x: x if x.shape[1] == 1 else spread_heads(x, heads, 1), some)
        computed = _mapped(functools.partial(parts.before, known), 3)(some)
        for i in numbers:
            found[i] = computed[i]
    return found


def _wide(x: jax.Array) -> jax.Array:
    """Casts numbers to at least float32; indices stay."""
    return precise(x) if programs.is_float(x) else x


def _mapped(function: Callable, axes: int) -> Callable:
    """Maps a function of a list of arrays, or None, over leading axes, some of which may be 1."""
    if not axes:
        return function
    inner = _mapped(function, axes - 1)

    def run(arrays: list[jax.Array | None]) -> Any:
        axes = [None if x is None or len(x) == 1 else 0 for x in arrays]
        arrays = [x[0] if x is not None and axis is None else x for x, axis in zip(arrays, axes, strict=True)]
        if all(axis is None for axis in axes):
            return jax.tree.map(lambda x: x[None], inner(arrays))
        return jax.vmap(inner, [axes])(arrays)

    return run


def why_not(call: Call, platform: str = "") -> str:
    """Gives the reasons why there is no kernel for the call on a platform, or on this machine's; '' if there is."""
    platform = platform or platform_here()
    if not platform:
        return "it needs a TPU or an NVIDIA GPU of the Ampere generation or a later one"
    batch, groups = math.prod(call.scores_shape[:-3]), call.value.shape[-2]
    tables = pairs.split_params(call)[2]
    reasons = {
        "it returns no weights": call.return_weights,
        "it needs at least one of everything": call.is_empty,
        "its normalisers are those that need no whole rows": not call.normaliser.in_tiles,
        "it adds no bias": call.bias is not None,
        "it takes no dense mask": call.mask.dense is not None,
        "it has no tables over pairs": any(x.shape[1] > 1 and x.shape[2] > 1 for x in tables.values()),
        f"{batch} sequences do not divide among {devices(*BATCH)} devices": batch % devices(*BATCH),
        f"{groups} heads do not divide among {devices(*HEADS)} devices": groups % devices(*HEADS),
        "float64 is for CPUs": platform != "interpret" and jnp.dtype(jnp.float64) in _dtypes(call),
        **_reasons_of_blocks(call.block, platform),
        f"values are at most {MOST_WIDE} wide": call.value.shape[-1] > MOST_WIDE,
    }
    if reason := "; ".join(reason for reason, holds in reasons.items() if holds):
        return reason
    parts = _inputs(call.spread())[0]
    return _why_no_program(parts, platform) or _why_no_memory(call, parts, platform)


def _dtypes(call: Call) -> set[Any]:
    return {x.dtype for x in jax.tree.leaves((call.value, call.query, call.key, call.params))}


def _reasons_of_blocks(block: tuple[int, int] | None, platform: str) -> dict[str, bool]:
    if not block or platform == "interpret":
        return {}
    powers = any(size & (size - 1) or size < 16 for size in block)
    return {
        f"on a GPU its tiles are powers of two from 16 on, not {block}": platform == "gpu" and powers,
        f"on a TPU its tiles are multiples of 128 queries and keys, not {block}": platform == "tpu"
        and any(size % 128 for size in block),
    }


def _why_no_memory(call: Call, parts: Parts, platform: str) -> str:
    widths = [sum(map(parts.size, parts.of(side))) for side in (ROWS, COLUMNS)]
    tokens = max(call.scores_shape[-2:])
    too_many = platform == "tpu" and tpu.bytes_of((tokens, max(widths) + call.value.shape[-1])) > tpu.MOST_HELD
    return f"a TPU's fast memory does not hold {tokens:,} such tokens" if too_many else ""


def _why_no_program(parts: Parts, platform: str) -> str:
    gradient = _gradient(parts)
    primitive = programs.unsupported(parts.tile, LOWERS[platform]) or programs.unsupported(
        gradient.tile, LOWERS[platform]
    )
    numbers = sum(map(parts.size, parts.of(None)))
    widest = max((parts.size(i) for side in (ROWS, COLUMNS) for i in parts.of(side)), default=0)
    reasons = {
        f"it does not lower {primitive!r} of this pair": bool(primitive),
        "it does not lower the gradient of a maximum of sums": programs.compares_sums(gradient.tile),
        f"a pair may read {MOST_NUMBERS} numbers of its head, not {numbers}": numbers > MOST_NUMBERS,
        f"a pair may read {MOST_WIDE} numbers of a token, not {widest}": widest > MOST_WIDE,
    }
    return "; ".join(reason for reason, holds in reasons.items() if holds)


@functools.cache
def _gradient(parts: Parts) -> Parts:
    """Takes apart the program of the score and its gradients, whose first input is the score's gradient."""
    return programs.split(programs.gradient_of(parts), (BOTH, *parts.kinds))


def platform_here() -> str:
    """Names the platform of the kernels for what is compiled for, on a GPU from the Ampere generation on."""
    return mesh.kernel_platform(mesh.compute_capability() >= (8, 0))


def attend(call: Call, platform: str = "") -> tuple[jax.Array, None]:
    """Computes the output `(*B, T, N, V)`, without weights, of a call for which `why_not` has no reason."""
    call = call.spread()
    *batch, heads, queries, _ = call.scores_shape
    parts, kinds, inputs = _inputs(call)
    platform = platform or platform_here()
    lengths = call.scores_shape[-2:]
    block = call.block or (GPU_BLOCK if platform == "gpu" else tpu.block_sizes(*lengths))
    plan = FusedPlan(
        backward=call.block or tpu.backward_sizes(*lengths),
        parts=parts,
        normaliser=call.normaliser,
        segmented=call.mask.query_segments is not None,
        sums=jnp.promote_types(score_dtype(call.value), parts.tile.out_avals[0].dtype),
        **plan_of(call, block, platform),
    )
    names = call.normaliser.parameters(Sizes(1, 1, 1, 1))
    arrays = FusedArrays(
        tuple(_before(parts, kinds, inputs, heads)),
        call.value.reshape(-1, *call.value.shape[-3:]).swapaxes(1, 2),
        {name: precise(call.params[name])[None, :, None] for name in names},
    )
    rules = _rules(call)
    specs = jax.tree.map(sequences_and_heads, (arrays, rules))
    out = on_each_device(functools.partial(_attend, plan), (arrays, rules), specs, specs[1].numbers)
    return out.swapaxes(1, 2).reshape(*batch, queries, heads, -1), None


def _rules(call: Call) -> FusedRules:
    mask, (*batch, heads, _, keys) = call.mask, call.scores_shape
    size = math.prod(batch)
    lengths = jnp.full(size, keys) if mask.key_lengths is None else call.flat(mask.key_lengths, 0)
    seed = jnp.zeros(2, jnp.uint32) if call.dropout_seed is None else call.dropout_seed
    sequence = jnp.arange(size * heads, dtype=jnp.int32).reshape(size, heads)
    numbers = jnp.asarray(mask.query_offset), lengths[:, None], *jax.lax.bitcast_convert_type(seed, jnp.int32), sequence
    numbers = jnp.stack([jnp.broadcast_to(x, (size, heads)).astype(jnp.int32) for x in numbers], -1)
    counts, segments = None, (None, None)
    if call.normaliser.counts:
        allowed = call.allowed()
        allowed = jnp.broadcast_to(True if allowed is None else allowed, call.scores_shape)
        counts = jnp.maximum(allowed.sum(-1), 1).astype(precise(call.value).dtype).reshape(size, heads, -1)
    if mask.query_segments is not None:
        segments = tuple(call.flat(x, 1).astype(jnp.int32)[:, None] for x in (mask.query_segments, mask.key_segments))
    return FusedRules(numbers[:, :, None], counts, *segments)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(plan: FusedPlan, arrays: FusedArrays, rules: FusedRules) -> jax.Array:
    return _forward(plan, arrays, rules)[0]


def _forward(plan: FusedPlan, arrays: FusedArrays, rules: FusedRules) -> tuple[jax.Array, Any]:
    tile = Pass(plan, plan.parts, arrays.given, rules, plan.block, by_key=False)
    tile.add("value", arrays.value, COLUMNS)
    if rules.counts is not None:
        tile.add("counts", rules.counts, ROWS)
    for name, x in arrays.normaliser.items():
        tile.add(name, x, None)
    width = tile.width(arrays.value.shape[-1])
    out, row = tile.launch("pair_out", forward_kernel, [(width, arrays.value.dtype), (1, plan.sums)])
    out = out[..., : arrays.value.shape[-1]]
    return out, (arrays, rules, out, row[..., 0])


def _backward(plan: FusedPlan, residuals: Any, gradient: jax.Array) -> tuple[FusedArrays, None]:
    arrays, rules, out, row = residuals
    through_sum = jnp.sum(precise(gradient) * precise(out), -1)
    scaled = (gradient / (1 - plan.rate)).astype(gradient.dtype)
    parts = _gradient(plan.parts)
    given = _before(parts, (BOTH, *plan.parts.kinds), (None, *arrays.given), rules.numbers.shape[1])

    def begun(block: tuple[int, int], by_key: bool) -> Pass:
        tile = Pass(plan, parts, given, rules, block, by_key)
        for name, x in {"row": row, "through_sum": through_sum, "gradient": scaled}.items():
            tile.add(name, x, ROWS)
        tile.add("value", arrays.value, COLUMNS)
        return tile

    kinds, learned = plan.parts.kinds, plan.parts.learned
    of_queries, of_keys = ([i for i in learned if side in kinds[i]] for side in (ROWS, COLUMNS))
    one = None if plan.platform == "gpu" else begun(plan.backward, by_key=True)
    if one and one.held(map(plan.parts.size, of_queries)) <= tpu.MOST_SUMMED:
        rows = [i for i in learned if i not in of_queries]
        found, d_value = _gradients("pair_d_all", one, arrays, rows, of_queries)
    else:
        rows = [i for i in learned if i not in of_keys]
        found, _ = _gradients("pair_d_query", begun(plan.block, by_key=False), arrays, rows)
        others, d_value = _gradients("pair_d_key", begun(plan.block, by_key=True), arrays, of_keys)
        found |= others
    spread = jax.tree.map(lambda x: jnp.broadcast_to(x, row.shape), arrays.normaliser)
    normaliser = plan.normaliser.parameter_gradients(spread, row, through_sum)
    normaliser = {name: x.sum((0, 2), keepdims=True) for name, x in normaliser.items()}
    given = tuple(found.get(i) for i in range(len(arrays.given)))
    return FusedArrays(given, d_value, normaliser), None


_attend.defvjp(_forward, _backward)


def _gradients(
    name: str, tile: Pass, arrays: FusedArrays, of_rows: list[int], of_columns: Sequence[int] = ()
) -> tuple[dict[int, jax.Array], Any]:
    """Runs a kernel; gives the gradients of some arrays of the program, by number, and the values' if rows are keys."""
    parts, width = tile.plan.parts, arrays.value.shape[-1]
    outputs = {i: output for output, i in enumerate(parts.learned, 1)}
    widths = [tile.width(parts.size(i)) for i in of_rows] + [tile.width(width)] * tile.by_key
    kernel = functools.partial(backward_kernel, [outputs[i] for i in of_rows], widths, [outputs[i] for i in of_columns])
    rows = [(width, tile.plan.sums) for width in widths]
    results = tile.launch(name, kernel, rows, [parts.size(i) for i in of_columns])
    d_value = _to(arrays.value, results.pop(len(of_rows))[..., :width]) if tile.by_key else None
    numbers = zip((*of_rows, *of_columns), results, strict=True)
    return {i: _to(arrays.given[i], x[..., : parts.size(i)]) for i, x in numbers}, d_value


def _to(x: jax.Array, gradient: jax.Array) -> jax.Array:
    """Sums a gradient `(B, N, L, size)` over an array's axes of size 1, and over query heads that share a head."""
    batch, heads, length = x.shape[:3]
    gradient = gradient.reshape(len(gradient), heads, -1, *gradient.shape[2:]).sum(2)
    axes = [axis for axis, size in ((0, batch), (2, length)) if size == 1]
    return gradient.sum(axes, keepdims=True).reshape(x.shape).astype(x.dtype)
