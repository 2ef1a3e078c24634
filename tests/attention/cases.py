"""Every public attention function with weights, in one signature, for the contract that all must keep."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

import attention
from attention.check.subject import HEADS, LENGTH, WIDTH, Subject, subject_of
from attention.mask import BY_TOKEN
from attention.recurrences.gated import GatedDelta, GatedLinear
from attention.recurrences.linear import Delta, LinearAttention
from attention.recurrences.log_linear import LogLinear
from attention.recurrences.selective import StateSpace
from attention.scores.alibi import Alibi
from attention.scores.differential import Differential
from attention.scores.dot import DotProduct, ScalableSoftmax
from attention.scores.forgetting import Forgetting
from attention.scores.gaussian import Gaussian
from attention.scores.luong import Bilinear
from attention.scores.pairwise import Additive, Neural
from attention.scores.path import Path
from attention.scores.positional import FactorisedPositional, Positional
from attention.scores.relative import Relative
from attention.scores.soft_cap import Power, SoftCap
from attention.scores.sparse.deepseek import DeepSeekSparse
from attention.scores.sparse.native import NativeSparse
from models.mechanisms import MECHANISMS


def neural(
    lead: tuple[int, ...] = (),
    down: tuple[int, ...] | None = (),
    implementations: tuple[str, ...] = ("xla", "chunked"),
    **options: Any,
) -> Subject:
    """Two hidden layers of 5 and 3 units; `lead` are the leading axes of the layers, `down` of the projections."""
    dim = WIDTH if down is None else 4
    widths = (2 * dim, 5, 3, 1)
    shapes = {f"kernel_{i}": (*lead, widths[i], widths[i + 1]) for i in range(3)}
    shapes |= {f"bias_{i}": (*lead, widths[i + 1]) for i in range(3)}
    if down is not None:
        for side in ("query", "key"):
            shapes |= {f"down_kernel_{side}": (*down, WIDTH, dim), f"down_bias_{side}": (*down, dim)}

    def call(w, query, key, value, **more):
        layers = [(w[f"kernel_{i}"], w[f"bias_{i}"]) for i in range(3)]
        projections = [] if down is None else [(w[f"down_kernel_{s}"], w[f"down_bias_{s}"]) for s in ("query", "key")]
        return attention.neural_attention(query, key, value, layers, projections, **options, **more)

    unique = options.get("pairs") == "unique"
    return Subject(call, shapes, implementations, unordered=not unique, equivariant=not unique)


def additive(lead: tuple[int, ...] = ()) -> Subject:
    shapes = {"query_kernel": (*lead, WIDTH, 5), "key_kernel": (*lead, WIDTH, 5), "hidden_bias": (*lead, 5)}
    return Subject(
        lambda w, *arrays, **o: attention.additive_attention(*arrays, **w, **o), shapes | {"vector": (*lead, 5)}
    )


def luong(form: str, **shapes: tuple[int, ...]) -> Subject:
    return Subject(lambda w, *arrays, **o: attention.luong_attention(*arrays, form, **w, **o), shapes)


def gaussian(implementations: tuple[str, ...] = ("xla",), **options: Any) -> Subject:
    """Values of their own, so that all arrays have gradients that can be told apart."""
    return Subject(
        lambda w, *arrays, **o: attention.gaussian_attention(*arrays, **w, **options, **o),
        {},
        implementations,
        unordered="decay" not in options,
        equivariant="decay" not in options,
        needs_causal="decay" in options,
    )


def positional(lead: tuple[int, ...], factorised: bool = False) -> Subject:
    """Of the queries only their number counts, and of the keys nothing."""
    shapes = (
        {"rows": (*lead, LENGTH, 3), "columns": (*lead, LENGTH, 3)}
        if factorised
        else {"table": (*lead, LENGTH, LENGTH)}
    )

    def call(w, query, key, value, **options):
        table = attention.factorised_table(**w) if factorised else w["table"]
        return attention.positional_attention(value, table, queries=query.shape[-3], **options)

    return Subject(call, shapes, grouped=False, unordered=False, equivariant=False, used=(2,))


def location(w: dict[str, jax.Array], query: jax.Array, key: jax.Array, value: jax.Array, **options: Any) -> jax.Array:
    """Of the keys nothing counts."""
    return attention.location_attention(query, value, w["kernel"], w["kernel_bias"], **options)


def linear(**options: Any) -> Subject:
    return Subject(
        lambda w, *arrays, **o: attention.linear_attention(*arrays, **options, **o),
        masks=frozenset(BY_TOKEN),
        weighted=False,
    )


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
    "neural": neural(implementations=WITH_PALLAS),
    "neural undivided": neural(down=None, activation="gelu", scale=0.5),
    "neural per head": neural((HEADS,), (HEADS,)),
    "neural unique": neural((LENGTH, LENGTH), (), pairs="unique"),
    "neural unique per head": neural((HEADS, LENGTH, LENGTH), (HEADS,), pairs="unique"),
    "additive": additive(),
    "additive per head": additive((HEADS,)),
    "luong dot": luong("dot"),
    "luong general": luong("general", kernel=(WIDTH, WIDTH)),
    "luong general per head": luong("general", kernel=(HEADS, WIDTH, WIDTH)),
    "luong concat": luong("concat", kernel=(2 * WIDTH, 5), hidden_bias=(5,), vector=(5,)),
    "gaussian": gaussian(("xla", "chunked")),
    "gaussian sharp": gaussian(("xla", "chunked"), sigma=0.3),
    "gaussian as it is": gaussian(("xla", "chunked"), normalise=False, sigma=0.8),
    "gaussian unsquared": gaussian(("xla", "chunked"), squared=False, sigma=0.5),
    "gaussian decay": gaussian(("xla", "chunked"), decay=0.2),
    "positional": positional((HEADS,)),
    "positional shared": positional(()),
    "positional factorised": positional((HEADS,), factorised=True),
    "location": Subject(
        location, {"kernel": (WIDTH, LENGTH), "kernel_bias": (LENGTH,)}, grouped=False, unordered=False, used=(0, 2)
    ),
    "linear": linear(),
    "linear relu": linear(feature="relu"),
    "fast weights": linear(feature="identity", normalise=False),
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


def assert_close(actual, expected, tolerance):
    """Within a tolerance relative to each array's largest number."""
    actual, expected = (jax.tree.map(lambda x: np.asarray(x, np.float64), x) for x in (actual, expected))
    scaled = [jax.tree.map(lambda x, e: x / max(np.abs(e).max(), 0.1), x, expected) for x in (actual, expected)]
    chex.assert_trees_all_close(*scaled, rtol=0, atol=tolerance)
