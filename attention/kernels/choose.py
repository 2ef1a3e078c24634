"""Which implementation computes a call: of an ordered list the first that can, and for `auto` that pays."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from attention.errors import UnsupportedError
from attention.forms import MLP, Dot
from attention.kernels import cudnn, fused, loops, mlp, reference, ring, splash, xla
from attention.kernels.arrays import score_dtype
from attention.kernels.call import Call, check_implementation, common
from attention.mesh import CONTEXT, compute_capability, devices, kernels_left_out, platform
from attention.options import Options
from attention.parameters import Params

# Most bytes of scores for which `auto` takes XLA on a GPU or TPU. Both passes hold up to four arrays of that size
# (scores, weights and the gradients of both), and 4 GiB is a quarter of the memory of a TPU v5e. On an H200, XLA
# trains as fast as tiles at 2 GiB, and slower beyond.
MOST = 2**30
# MLPs on pairs whose kernel for Hopper GPUs `auto` takes, by the units of their layers: those that a record of such a
# GPU shows to be right, and faster than tiles by XLA; a test holds them against it.
FASTER_ON_GPU = frozenset({(2, 1), (64,)})  # neural(dim=2), and additive with heads of 64
FUSED_ON_GPU = True  # whether the record shows the kernels of any function of a pair to be right and faster in training
SHORTEST, WIDEST = 1024, 128  # the fewest queries and keys, and the widest values, that were measured there
NAMED = {
    "reference": (reference,),
    "xla": (xla,),
    "chunked": (ring, loops),
    "cudnn": (cudnn,),
    "pallas": (splash, mlp, fused),
    "auto": (ring, cudnn, splash, mlp, fused, loops, xla),
}
INSTEAD = {"cudnn": "'xla' or 'auto'", "pallas": "'chunked' or 'auto'", "chunked": "'xla' or 'auto'"}


def attend(score: Any, params: Params, query: Any, key: Any, value: jax.Array, options: Options) -> Any:
    """Computes what `Score.attend` returns.

    Raises:
      UnsupportedError: the named implementation cannot do the call; the error has every reason.
    """
    name, block = check_implementation(options.implementation, score.implementations, score.title)
    queries, heads = jax.tree.leaves(query)[0].shape[value.ndim - 3 : value.ndim - 1]
    query, key = query if score.traits.reads_query else None, key if score.traits.reads_key else None
    form = score.form(params, query, key)
    if isinstance(form, Dot) and form.key_bias is not None and devices(*CONTEXT) > 1:
        form = None  # a ring adds no bias
    call = Call(
        score=score,
        query=query,
        key=key,
        form=form,
        block=block,
        normaliser=score.weighing,
        params=params,
        **common(queries, heads, value, options),
    )
    out, weights = choose(call, name).attend(call)
    return (out.astype(value.dtype), weights) if options.return_weights else out.astype(value.dtype)


def choose(call: Call, name: str) -> Any:
    """Gives the module of the implementation.

    Raises:
      UnsupportedError: none that the name stands for can do the call.
    """
    reasons = []
    for module in NAMED[name]:
        if name == "auto" and not _pays(module, call):
            continue
        if not (reason := module.why_not(call)):
            return module
        reasons.append(reason)
    last = {Dot: 0, MLP: 1}.get(type(call.form), -1) if len(reasons) > 2 else -1
    raise UnsupportedError(f"implementation={name!r} cannot do this call: {reasons[last]}; use {INSTEAD[name]}.")


def _pays(module: Any, call: Call) -> bool:
    """Tells whether an implementation that can do a call is the best choice for what is compiled for."""
    here, form = platform(), call.form
    if module in (splash, mlp, fused) and kernels_left_out():
        return False
    if module is splash:
        return here == "tpu" and min(call.scores_shape[-2:]) >= splash.FEWEST
    if module is mlp:
        return here == "tpu" or (_was_measured(call) and isinstance(form, MLP) and mlp.units(call) in FASTER_ON_GPU)
    if module is fused:
        pays = (FUSED_ON_GPU and _was_measured(call)) or (here == "tpu" and form is None)
        return pays and not isinstance(form, MLP) and _reads_contents(call)
    if module is loops:
        # On a CPU the cache decides; elsewhere one large product for each batch beats many small ones while it fits.
        small = here != "cpu" and isinstance(form, Dot) and _score_bytes(call) <= MOST
        return not small and (form is not None or _reads_contents(call))
    return True


def _was_measured(call: Call) -> bool:
    """Tells whether a call is like those of the record of a Hopper GPU."""
    dtype, width = call.value.dtype, call.value.shape[-1]
    if isinstance(call.form, Dot):
        dtype = jnp.promote_types(dtype, call.form.query.dtype)
    like_it = dtype == jnp.bfloat16 and width <= WIDEST and min(call.scores_shape[-2:]) >= SHORTEST
    return like_it and compute_capability()[:1] == (9,) and devices(*CONTEXT) == 1


def _reads_contents(call: Call) -> bool:
    """Tells whether scores read queries or keys; if not, XLA computes the weights once for the whole batch."""
    return call.score.traits.reads_query or call.score.traits.reads_key


def _score_bytes(call: Call) -> int:
    """Gives the bytes that all scores take on each device."""
    return math.prod(call.scores_shape) * jnp.dtype(score_dtype(call.form.query)).itemsize // devices()
