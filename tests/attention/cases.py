"""Every mechanism in one signature, with the options that are told apart, for the contract that all must keep."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

import attention
from attention.check.subject import WIDTH, Subject, subject_of
from attention.mask import BY_TOKEN, Mask
from attention.recurrences.gated import GatedDelta, GatedLinear
from attention.recurrences.linear import Delta, LinearAttention
from attention.recurrences.log_linear import LogLinear
from attention.recurrences.selective import StateSpace
from attention.scores.alibi import Alibi
from attention.scores.differential import Differential
from attention.scores.dot import DotProduct, ScalableSoftmax
from attention.scores.forgetting import Forgetting
from attention.scores.gaussian import Gaussian
from attention.scores.location import Location
from attention.scores.luong import Bilinear
from attention.scores.pairwise import Additive, Neural
from attention.scores.path import Path
from attention.scores.positional import FactorisedPositional, Positional
from attention.scores.relative import Relative
from attention.scores.soft_cap import Power, SoftCap
from attention.scores.sparse.deepseek import DeepSeekSparse
from attention.scores.sparse.native import NativeSparse
from models.mechanisms import MECHANISMS


def delta(w: dict[str, jax.Array], query: jax.Array, key: jax.Array, value: jax.Array, **options: Any) -> jax.Array:
    """Strengths made of the keys, as a layer makes them of its inputs."""
    safe = jnp.where(jnp.isnan(key), 0.0, key)
    strength = jax.nn.sigmoid(jnp.einsum("...kh,h->...k", safe, w["strength"]))
    return attention.delta_attention(query, key, value, strength, **options)


# Interpreted, which takes long to compile: one case with every option stands for the family.
WITH_PALLAS = ("xla", "chunked", "pallas")
CASES = {
    "dot_product": Subject(lambda w, *arrays, **o: attention.dot_product_attention(*arrays, **o)),
    "dot_product scale": Subject(lambda w, *arrays, **o: attention.dot_product_attention(*arrays, scale=0.7, **o)),
    "neural": subject_of(Neural(4, (5, 3)), implementations=WITH_PALLAS),
    "neural undivided": subject_of(Neural(None, (5, 3), "gelu", scale=True)),
    "neural per head": subject_of(Neural(4, (5, 3), per_head=True)),
    "neural unique": subject_of(Neural(4, (5, 3), pairs="unique")),
    "neural unique per head": subject_of(Neural(4, (5, 3), per_head=True, pairs="unique")),
    "additive": subject_of(Additive(5)),
    "additive per head": subject_of(Additive(5, per_head=True)),
    "luong dot": subject_of(DotProduct(1.0)),
    "luong general": subject_of(Bilinear()),
    "luong general per head": subject_of(Bilinear(per_head=True)),
    "luong concat": subject_of(Additive(5)),
    "gaussian": subject_of(Gaussian()),
    "gaussian sharp": subject_of(Gaussian(0.3)),
    "gaussian as it is": subject_of(Gaussian(0.8, normalise=False)),
    "gaussian unsquared": subject_of(Gaussian(0.5, squared=False)),
    "gaussian decay": subject_of(Gaussian(decay=0.2)),
    "positional": subject_of(Positional()),
    "positional shared": subject_of(Positional(per_head=False)),
    "positional factorised": subject_of(FactorisedPositional(rank=3)),
    "location": subject_of(Location()),
    "linear": subject_of(LinearAttention(), unordered=True),
    "linear relu": subject_of(LinearAttention("relu"), unordered=True),
    "fast weights": subject_of(LinearAttention("identity", False), unordered=True),
    "delta": Subject(delta, {"strength": (WIDTH,)}, masks=frozenset(BY_TOKEN), weighted=False, unordered=False),
    "sigmoid": subject_of(DotProduct(normaliser="sigmoid")),
    "sink": subject_of(DotProduct(normaliser="sink")),
    "sink learned": subject_of(DotProduct(normaliser="sink(learned=True)")),
    "relu_squared": subject_of(DotProduct(normaliser="relu_squared")),
    "none": subject_of(DotProduct(normaliser="none")),
    "scalable_softmax": subject_of(ScalableSoftmax(), normalised=True, weighs=True, positive=True),
    "softpick": subject_of(DotProduct(normaliser="softpick")),
    "power 4": subject_of(Power(4)),
    "sum": subject_of(Gaussian(2.0, normaliser="sum")),
    "hard": subject_of(DotProduct(normaliser="hard")),
    "neural sigmoid": subject_of(Neural(per_head=True, dim=3, normaliser="sigmoid")),
    "neural unique sink": subject_of(Neural(4, (5, 3), pairs="unique", normaliser="sink(learned=True)")),
    "soft_cap": subject_of(SoftCap(1.5)),
    "alibi learned": subject_of(Alibi(learned=True)),
    "relative": subject_of(Relative(8, 16)),
    "relative behind": subject_of(Relative(8, 16, ahead=False)),
    "relative scaled": subject_of(Relative(8, 16, scale=0.7)),
    "forgetting": subject_of(Forgetting()),
    "stick_breaking": subject_of(DotProduct(normaliser="stick_breaking")),
    "moba": subject_of(DotProduct(normaliser="blocks(size=2, top=2)")),
    "native_sparse": subject_of(NativeSparse(2, 2, near=3), unordered=False, equivariant=False),
    "deepseek_sparse": subject_of(
        DeepSeekSparse(heads=3, width=4, top=3), unordered=False, equivariant=False, normalised=True, weighs=True
    ),
    "path": subject_of(Path(), normalised=True, weighs=True, positive=True),
    "differential": subject_of(Differential()),
    "gated_linear": subject_of(GatedLinear(3)),
    "gated_delta layer": subject_of(GatedDelta(2.0, conv=3, gate="norm_first")),
    "state_space layer": subject_of(StateSpace(conv=3, gate="gate_first", skip=True)),
    "log_linear few": subject_of(LogLinear(3)),
}
# Rows whose cases are public functions, above; every other row is here as it is.
PUBLIC = (DotProduct, LinearAttention, Delta, Neural, Additive, Bilinear, Gaussian, Positional, FactorisedPositional)
CASES |= {
    name: subject_of(row.score)
    for name, row in MECHANISMS.items()
    if name not in CASES and type(row.score) not in PUBLIC
}
# (case, implementation) of all that must equal the reference, and of all.
FAST = [(name, which) for name, case in CASES.items() for which in case.implementations]
ALL = [(name, "reference") for name in CASES] + FAST
# Of two sequences of 20 queries and 27 keys; some have no key, and some no query.
SEGMENTS = {
    "query_segments": jnp.repeat(jnp.array([[0, 1, 2], [2, 3, 5]]), jnp.array([9, 8, 3]), axis=1),
    "key_segments": jnp.repeat(jnp.array([[0, 1, 2], [2, 4, 5]]), jnp.array([5, 20, 2]), axis=1),
}
MASKS = {  # of as many
    "all": Mask(),
    "causal": Mask(causal=True),
    "causal before the keys": Mask(causal=True, query_offset=-2),
    "causal window": Mask(causal=True, window=2, query_offset=1),
    "causal window of a cache": Mask(causal=True, window=9, query_offset=5),
    "window": Mask(window=7),
    "traced offset": Mask(causal=True, query_offset=jnp.int32(7)),
    "lengths, one of them 0": Mask(key_lengths=jnp.array([0, 19])),
    "causal lengths": Mask(causal=True, key_lengths=jnp.array([3, 27])),
    "segments": Mask(**SEGMENTS),
    "causal segments": Mask(causal=True, **SEGMENTS),
}


def both_passes(function):
    """A function to what this one gives, and the gradients of its arguments for some gradient of that."""

    def run(*given):
        out, pull = jax.vjp(function, *given)
        return out, pull(jax.tree.map(lambda x: jnp.sin(jnp.arange(x.size)).reshape(x.shape).astype(x.dtype), out))

    return run


def outcome(function, *given):
    """What a function gives, and the gradients of its arguments for some gradient of that."""
    return jax.jit(both_passes(function))(*given)


def assert_close(actual, expected, tolerance):
    """Within a tolerance relative to each array's largest number."""
    actual, expected = (jax.tree.map(lambda x: np.asarray(x, np.float64), x) for x in (actual, expected))
    scaled = [jax.tree.map(lambda x, e: x / max(np.abs(e).max(), 0.1), x, expected) for x in (actual, expected)]
    chex.assert_trees_all_close(*scaled, rtol=0, atol=tolerance)
