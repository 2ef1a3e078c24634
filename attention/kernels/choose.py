"""Which kernel computes a call: the fastest that supports it, or the one that its implementation names."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from attention.errors import UnsupportedError
from attention.forms import DotForm, PairNetwork
from attention.kernels import chunked, cudnn, pair_pallas, pairs, reference, ring, tiles, xla
from attention.kernels.call import Call, DotCall, PairCall, ScoreCall, check_implementation, common
from attention.kernels.reference import score_dtype, spread_heads
from attention.kernels.tpu import splash
from attention.mesh import CONTEXT, devices, kernels_left_out, platform
from attention.options import Options
from attention.parameters import Params

# Most bytes of scores for which `auto` takes XLA on a GPU or TPU. Both passes hold up to four arrays of that size
# (scores, weights and the gradients of both), and 4 GiB is a quarter of the memory of a TPU v5e. Not measured.
MOST = 2**30
# Networks on pairs whose kernel for Hopper GPUs `auto` takes, by the units of their layers: those that a record of such
# a GPU shows to be right, and faster than tiles by XLA. There is no record yet; a test holds them against it.
FASTER_ON_GPU: frozenset[tuple[int, ...]] = frozenset()

Kernel = Callable[[Any], tuple[jax.Array, jax.Array | None]]


def attend(score: Any, params: Params, query: Any, key: Any, value: jax.Array, options: Options) -> Any:
    """Returns what `Score.attend` returns."""
    name, block = check_implementation(options.implementation, score.implementations, score.title)
    queries, heads = jax.tree.leaves(query)[0].shape[value.ndim - 3 : value.ndim - 1]
    query, key = query if score.reads_query else None, key if score.reads_key else None
    fields = common(queries, heads, value, options) | {"block": block, "normaliser": score.weighing, "params": params}
    call = _call(score, params, query, key, fields, name)
    out, weights = _kernel(call, name)(call)
    return (out.astype(value.dtype), weights) if options.return_weights else out.astype(value.dtype)


def _call(score: Any, params: Params, query: Any, key: Any, fields: dict[str, Any], name: str) -> Call:
    """Returns the call in the form that most kernels compute, or as `pair` defines it where no other form is wanted."""
    form = None if name == "reference" else score.as_dot(params, query, key)
    if isinstance(form, DotForm) and form.key_bias is not None and devices(*CONTEXT) > 1:
        form = None  # a ring adds no bias
    empty = 0 in fields["scores_shape"] or 0 in fields["value"].shape
    in_tiles = score.weighing.in_tiles and not (fields["return_weights"] or empty)
    if form is None and name not in ("reference", "xla") and in_tiles:
        form = score.as_network(params)
    if isinstance(form, DotForm):
        return _dot(form, fields)
    if isinstance(form, PairNetwork):
        return _network(form, query, key, fields)
    value = fields["value"]
    if any(x.shape[-2] != value.shape[-2] for x in jax.tree.leaves(key)):  # keys were prepared once a query head
        heads = fields["scores_shape"][-3]
        key, fields = spread_heads(key, heads), fields | {"value": spread_heads(value, heads)}
    return ScoreCall(score=score, query=query, key=key, **fields)


def _dot(form: DotForm, fields: dict[str, Any]) -> DotCall:
    if form.key_bias is not None:
        fields = fields | {"bias": form.key_bias if fields["bias"] is None else fields["bias"] + form.key_bias}
    return DotCall(query=form.query, key=form.key, scale=form.scale, precision=form.precision, **fields)


def _network(form: PairNetwork, query: jax.Array, key: jax.Array, fields: dict[str, Any]) -> PairCall:
    heads = query.shape[-2]
    fields = fields | {"value": spread_heads(fields["value"], heads)}
    return PairCall(query=query, key=spread_heads(key, heads), **form._asdict(), **fields)


def _kernel(call: Call, name: str) -> Kernel:
    if name in ring.NAMES and devices(*CONTEXT) > 1 and not ring.why_not(call):
        return ring.attend
    if isinstance(call, DotCall):
        named = {"xla": xla.dot, "chunked": chunked.attend, "cudnn": cudnn.dot, "pallas": splash.attend}
        return _best_dot(call) if name == "auto" else named[name]
    if isinstance(call, PairCall):
        named = {"chunked": chunked.attend, "pallas": pair_pallas.pair}
        return named[("pallas" if _kernel_pays(call) else "chunked") if name == "auto" else name]
    named = {"reference": by_definition, "xla": xla.pair, "chunked": chunked.attend}
    if name == "auto":
        shared = not (call.score.reads_query or call.score.reads_key)  # then XLA computes the weights once a batch
        return xla.pair if shared or tiles.why_not(call) else chunked.attend
    if name not in named:
        raise UnsupportedError(
            f"implementation={name!r} cannot do this call: it returns no weights; use 'xla' or 'auto'."
        )
    return named[name]


def by_definition(call: ScoreCall) -> tuple[jax.Array, jax.Array]:
    """Returns output and weights by the definitions, one pair and one row at a time."""
    return reference.weigh_values(call, pairs.scores(call))


def _kernel_pays(call: PairCall) -> bool:
    """Returns whether the Pallas kernel of a network on pairs is the best choice for what is compiled for."""
    here, units = pair_pallas.platform_here(), (call.query.shape[-1], *(kernel.shape[-1] for kernel, _ in call.layers))
    measured = here == "tpu" or (here == "gpu" and units in FASTER_ON_GPU)
    return measured and not (kernels_left_out() or pair_pallas.why_not(call))


def _best_dot(call: DotCall) -> Kernel:
    if not cudnn.why_not(call):
        return cudnn.dot
    long = min(call.scores_shape[-2:]) >= splash.FEWEST
    if platform() == "tpu" and long and not (kernels_left_out() or splash.why_not(call)):
        return splash.attend
    # On a CPU the cache decides; elsewhere one large product for each batch beats many small ones while it fits.
    small = platform() != "cpu" and _score_bytes(call) <= MOST
    return xla.dot if small or tiles.why_not(call) else chunked.attend


def _score_bytes(call: DotCall) -> int:
    """Returns the bytes that all scores take on each device."""
    return math.prod(call.scores_shape) * jnp.dtype(score_dtype(call.query)).itemsize // devices()
