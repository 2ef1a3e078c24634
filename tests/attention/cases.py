"""Every public attention function with weights, in one signature, for the contract that all must keep."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.dtypes import canonicalize_dtype

import attention
from attention import Mask
from attention.forms import At, Tokens
from attention.parameters import Sizes
from attention.recurrences.gated import GatedDelta, GatedLinear
from attention.recurrences.linear import Delta, LinearAttention
from attention.recurrences.recurrence import Recurrence
from attention.recurrences.selective import StateSpace
from attention.score import Mixer, Score
from attention.scores.alibi import Alibi
from attention.scores.differential import Differential
from attention.scores.dot import DotProduct
from attention.scores.forgetting import Forgetting
from attention.scores.gaussian import Gaussian
from attention.scores.luong import Bilinear
from attention.scores.native_sparse import NativeSparse
from attention.scores.pairwise import Additive, Neural
from attention.scores.positional import FactorisedPositional, Positional
from attention.scores.relative import Relative
from attention.scores.soft_cap import SoftCap
from models.mechanisms import MECHANISMS

HEADS, WIDTH, LENGTH = 4, 6, 9
EVERY_MASK = frozenset({"causal", "window", "key_lengths", "segments", "dense"})
BY_POSITION = frozenset({"causal", "key_lengths"})


@dataclasses.dataclass(frozen=True)
class Case:
    """One function with one choice of options.

    Attributes:
      call: From (weights, query, key, value, **options) to what the function returns.
      shapes: Of its weights; LENGTH is the most tokens.
      implementations: Those that must serve it, besides `reference`.
      masks: Kinds that it honours.
      grouped: Whether fewer key heads than query heads are supported.
      normalised: Whether the weights of a row sum to 1.
      weighted: Whether it scores pairs, so that its weights can be dropped.
      unordered: Whether the order of keys (with their values) does not matter.
      equivariant: Whether permuting queries permutes outputs.
      needs_causal: Whether it raises without a causal mask.
      used: Which of query, key and value count.
      weighs: Whether the output is the weights times the values.
      positive: Whether every allowed key has a weight above 0.
      score: What it calls, unless it is a public function.
    """

    call: Callable[..., Any]
    shapes: dict[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    implementations: tuple[str, ...] = ("xla", "chunked")
    masks: frozenset[str] = EVERY_MASK
    grouped: bool = True
    normalised: bool = True
    weighted: bool = True
    unordered: bool = True
    equivariant: bool = True
    needs_causal: bool = False
    used: tuple[int, ...] = (0, 1, 2)
    weighs: bool = True
    positive: bool = True
    score: Mixer | None = None

    @property
    def fixed(self) -> bool:
        """Whether LENGTH is the most tokens."""
        return any(LENGTH in shape for shape in self.shapes.values())

    def weights(self, dtype: Any = jnp.float64, seed: int = 7) -> dict[str, jax.Array]:
        """Random weights; biases are positive, so that no ReLU is dead for all pairs."""
        draw, dtype = np.random.default_rng(seed), canonicalize_dtype(dtype)
        drawn = {name: draw.standard_normal(shape) for name, shape in self.shapes.items()}
        return {n: jnp.asarray(np.abs(x) + 0.3 if "bias" in n else x, dtype) for n, x in drawn.items()}


def neural(
    lead: tuple[int, ...] = (),
    down: tuple[int, ...] | None = (),
    implementations: tuple[str, ...] = ("xla", "chunked"),
    **options: Any,
) -> Case:
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
    return Case(call, shapes, implementations, unordered=not unique, equivariant=not unique)


def additive(lead: tuple[int, ...] = ()) -> Case:
    shapes = {"query_kernel": (*lead, WIDTH, 5), "key_kernel": (*lead, WIDTH, 5), "hidden_bias": (*lead, 5)}
    return Case(
        lambda w, *arrays, **o: attention.additive_attention(*arrays, **w, **o), shapes | {"vector": (*lead, 5)}
    )


def luong(form: str, **shapes: tuple[int, ...]) -> Case:
    return Case(lambda w, *arrays, **o: attention.luong_attention(*arrays, form, **w, **o), shapes)


def gaussian(implementations: tuple[str, ...] = ("xla",), **options: Any) -> Case:
    """Values of their own, so that all arrays have gradients that can be told apart."""
    return Case(
        lambda w, *arrays, **o: attention.gaussian_attention(*arrays, **w, **options, **o),
        {},
        implementations,
        unordered="decay" not in options,
        equivariant="decay" not in options,
        needs_causal="decay" in options,
    )


def positional(lead: tuple[int, ...], factorised: bool = False) -> Case:
    """Of the queries only their number counts, and of the keys nothing."""
    shapes = (
        {"rows": (*lead, LENGTH, 3), "columns": (*lead, LENGTH, 3)}
        if factorised
        else {"table": (*lead, LENGTH, LENGTH)}
    )

    def call(w, query, key, value, **options):
        table = attention.factorised_table(**w) if factorised else w["table"]
        return attention.positional_attention(value, table, queries=query.shape[-3], **options)

    return Case(call, shapes, grouped=False, unordered=False, equivariant=False, used=(2,))


def location(w: dict[str, jax.Array], query: jax.Array, key: jax.Array, value: jax.Array, **options: Any) -> jax.Array:
    """Of the keys nothing counts."""
    return attention.location_attention(query, value, w["kernel"], w["kernel_bias"], **options)


def linear(**options: Any) -> Case:
    return Case(
        lambda w, *arrays, **o: attention.linear_attention(*arrays, **options, **o), masks=BY_POSITION, weighted=False
    )


def delta(w: dict[str, jax.Array], query: jax.Array, key: jax.Array, value: jax.Array, **options: Any) -> jax.Array:
    """Strengths made of the keys, as a layer makes them of its inputs."""
    safe = jnp.where(jnp.isnan(key), 0.0, key)
    strength = jax.nn.sigmoid(jnp.einsum("...kh,h->...k", safe, w["strength"]))
    return attention.delta_attention(query, key, value, strength, **options)


def of(score: Mixer, **options: Any) -> Case:
    """Any score through `attention.attend`, with its own arrays; gates are projected from the keys, head after head."""
    sizes = Sizes(HEADS * WIDTH, HEADS, WIDTH, LENGTH)
    shapes = {name: declared.shape for name, declared in score.arrays(sizes).items()}

    def call(w, query, key, value, **more):
        source = jnp.repeat(key, HEADS // key.shape[-2], -2)
        return attention.attend(score, w, query, key, value, source=source.reshape(*source.shape[:-2], -1), **more)

    recurrent, sums = isinstance(score, Recurrence), not isinstance(score, Differential | NativeSparse)
    normaliser = score.normaliser.partition("(")[0]
    ordered = recurrent or score.traits.causal or normaliser in ("stick_breaking", "blocks") or _tells_positions(score)
    alone = score.traits.one_sequence if recurrent else score.traits.causal or _tells_positions(score)
    return Case(
        call,
        shapes,
        tuple(name for name in score.implementations if name in ("xla", "chunked")),
        masks=BY_POSITION if recurrent else EVERY_MASK,
        normalised=sums and normaliser in ("softmax", "sum", "hard", "blocks"),
        weighted=not recurrent,
        weighs=sums,
        positive=sums and normaliser not in ("relu_squared", "none", "hard", "blocks"),
        needs_causal=score.traits.causal,
        score=score,
        **{"unordered": not ordered, "equivariant": not alone} | options,
    )


def _tells_positions(score: Mixer) -> bool:
    """Whether it has tables over positions, or `pair` gives the same query and key another number elsewhere."""
    if not isinstance(score, Score) or type(score).pair is Score.pair:
        return False
    declared = score.parameters(Sizes(HEADS * WIDTH, HEADS, WIDTH, LENGTH))
    if any({"queries", "keys"} & {*p.over} for p in declared.values()):
        return True
    draw = np.random.default_rng(0).standard_normal
    whole = {name: jnp.asarray(draw(p.shape)) for name, p in declared.items()}
    part = {name: x[0] if declared[name].over else x for name, x in whole.items()}
    query, key = (
        jax.tree.map(
            lambda x: x[0, 0],
            prepare(whole, jnp.asarray(draw((1, HEADS, WIDTH))), Tokens(0, jnp.ones((1, HEADS * WIDTH)))),
        )
        for prepare in (score.prepare_query, score.prepare_key)
    )
    place, head = jnp.arange(8), jnp.int32(0)
    near, far = (score.pair(part, query, key, At(place[i], place[1], head, HEADS, 0, 1)) for i in (1, 7))
    return bool(near != far)


# Interpreted, which takes long to compile: one case with every option stands for the family.
WITH_PALLAS = ("xla", "chunked", "pallas")
CASES = {
    "dot_product": Case(lambda w, *arrays, **o: attention.dot_product_attention(*arrays, **o)),
    "dot_product scale": Case(lambda w, *arrays, **o: attention.dot_product_attention(*arrays, scale=0.7, **o)),
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
    "location": Case(
        location, {"kernel": (WIDTH, LENGTH), "kernel_bias": (LENGTH,)}, grouped=False, unordered=False, used=(0, 2)
    ),
    "linear": linear(),
    "linear relu": linear(feature="relu"),
    "fast weights": linear(feature="identity", normalise=False),
    "delta": Case(delta, {"strength": (WIDTH,)}, masks=BY_POSITION, weighted=False, unordered=False),
    "sigmoid": of(DotProduct(normaliser="sigmoid")),
    "sink": of(DotProduct(normaliser="sink")),
    "sink learned": of(DotProduct(normaliser="sink(learned=True)")),
    "relu_squared": of(DotProduct(normaliser="relu_squared")),
    "none": of(DotProduct(normaliser="none")),
    "sum": of(Gaussian(2.0, normaliser="sum")),
    "hard": of(DotProduct(normaliser="hard")),
    "neural sigmoid": of(Neural(per_head=True, dim=3, normaliser="sigmoid")),
    "neural unique sink": of(Neural(4, (5, 3), pairs="unique", normaliser="sink(learned=True)")),
    "soft_cap": of(SoftCap(1.5)),
    "alibi learned": of(Alibi(learned=True)),
    "relative": of(Relative(8, 16)),
    "relative behind": of(Relative(8, 16, ahead=False)),
    "relative scaled": of(Relative(8, 16, scale=0.7)),
    "forgetting": of(Forgetting()),
    "stick_breaking": of(DotProduct(normaliser="stick_breaking")),
    "moba": of(DotProduct(normaliser="blocks(size=2, top=2)")),
    "native_sparse": of(NativeSparse(2, 2, near=3), unordered=False, equivariant=False),
    "differential": of(Differential()),
    "gated_linear": of(GatedLinear(3)),
    "gated_delta layer": of(GatedDelta(2.0, conv=3, gate="norm_first")),
    "state_space layer": of(StateSpace(conv=3, gate="gate_first", skip=True)),
}
# Rows whose cases are public functions, above; every other row is here as it is.
PUBLIC = (DotProduct, LinearAttention, Delta, Neural, Additive, Bilinear, Gaussian, Positional, FactorisedPositional)
CASES |= {
    name: of(row.score) for name, row in MECHANISMS.items() if name not in CASES and type(row.score) not in PUBLIC
}
# (case, implementation) of all that must equal the reference, and of all.
FAST = [(name, which) for name, case in CASES.items() for which in case.implementations]
ALL = [(name, "reference") for name in CASES] + FAST
WEIGHTED = [(name, which) for name, which in ALL if CASES[name].weighted and which not in ("chunked", "pallas")]


def mask_of(case: Case, mask: Mask | None = None) -> Mask:
    """The mask, causal too where the case needs that."""
    mask = mask or Mask()
    return dataclasses.replace(mask, causal=True) if case.needs_causal else mask


def inputs(queries=LENGTH, keys=LENGTH, key_heads=HEADS, dtype=jnp.float64, batch=(2,), seed=0):
    shapes = [(*batch, queries, HEADS, WIDTH), (*batch, keys, key_heads, WIDTH), (*batch, keys, key_heads, WIDTH)]
    draw = np.random.default_rng(seed)  # JAX's would compile a program for each shape
    return tuple(jnp.asarray(draw.standard_normal(shape), canonicalize_dtype(dtype)) for shape in shapes)


def causal_mask(lengths: tuple[int, int] = (LENGTH - 3, LENGTH)) -> Mask:
    """Causal, with the real keys of each of two sequences."""
    return Mask(causal=True, key_lengths=jnp.array(lengths))


def dense_mask(*hidden: int) -> Mask:
    """Dense, with window and segments that hide nothing, and with rows that see nothing."""
    nothing = jnp.zeros((2, LENGTH), int)
    dense = jnp.ones((2, HEADS, LENGTH, LENGTH), bool).at[:, :, list(hidden)].set(False)
    return Mask(dense=dense, window=LENGTH, query_segments=nothing, key_segments=nothing)


def outcome(name, implementation, arrays, weights, mask=None, *, direction=None, **options) -> tuple[jax.Array, Any]:
    """Output, and gradients of output · direction with respect to weights, query, key and value.

    It is compiled once for each kind of mask and options; what they hold may change.
    """
    if direction is None:
        direction = np.random.default_rng(11).standard_normal((*arrays[0].shape[:-1], arrays[2].shape[-1]))
    rate = options.pop("dropout_rate", 0.0)
    mask = mask_of(CASES[name], mask)
    return _compiled(name, implementation, rate)(weights, *arrays, mask, direction.astype(arrays[0].dtype), options)


@functools.cache
def _compiled(name: str, implementation: str, rate: float) -> Callable[..., Any]:
    dropped = {"dropout_rate": rate} if rate else {}

    def scalar(weights, query, key, value, mask, direction, options):
        options = {"mask": mask, "implementation": implementation} | dropped | options
        out = CASES[name].call(weights, query, key, value, **options)
        return jnp.sum(out * direction), out

    def run(*arguments):
        (_, out), gradients = jax.value_and_grad(scalar, argnums=(0, 1, 2, 3), has_aux=True)(*arguments)
        return out, gradients

    return jax.jit(run)


def assert_close(actual, expected, tolerance):
    """Within a tolerance relative to each array's largest number."""
    actual, expected = (jax.tree.map(lambda x: np.asarray(x, np.float64), x) for x in (actual, expected))
    scaled = [jax.tree.map(lambda x, e: x / max(np.abs(e).max(), 0.1), x, expected) for x in (actual, expected)]
    chex.assert_trees_all_close(*scaled, rtol=0, atol=tolerance)
