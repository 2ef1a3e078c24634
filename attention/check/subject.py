"""A mechanism in one signature, with small inputs and with what the contract expects of it."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.dtypes import canonicalize_dtype

from attention.defining.named import attend
from attention.mask import BY_TOKEN, Mask
from attention.parameters import Sizes
from attention.recurrences.recurrence import Recurrence
from attention.score import Mixer, Score

HEADS, WIDTH, LENGTH = 4, 6, 9
SIZES = Sizes(HEADS * WIDTH, HEADS, WIDTH, LENGTH)
EVERY_MASK = frozenset({"causal", "window", "key_lengths", "segments", "dense"})
Arrays = tuple[jax.Array, jax.Array, jax.Array]


@dataclasses.dataclass(frozen=True, eq=False)
class Subject:
    """One mechanism with one choice of options.

    Attributes:
      call: Maps (weights, query, key, value, **options) to what the function returns.
      shapes: The shapes of its weights; LENGTH is the most tokens.
      implementations: Those that must serve it, besides `reference`.
      masks: Kinds that it honours.
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
        """Draws weights; biases are positive, so that no ReLU is dead for all pairs."""
        draw, dtype = np.random.default_rng(seed), canonicalize_dtype(dtype)
        drawn = {name: draw.standard_normal(shape) for name, shape in self.shapes.items()}
        return {n: jnp.asarray(np.abs(x) + 0.3 if "bias" in n else x, dtype) for n, x in drawn.items()}

    def mask(self, mask: Mask | None = None) -> Mask:
        """Makes a mask causal too where the case needs that."""
        mask = mask or Mask()
        return dataclasses.replace(mask, causal=True) if self.needs_causal else mask

    def run(self, implementation: str, arrays: Arrays, weights: dict, mask: Mask | None = None, **options: Any) -> Any:
        """Computes the output alone, without compilation of the whole."""
        return self.call(weights, *arrays, mask=self.mask(mask), implementation=implementation, **options)

    def outcome(
        self, implementation: str, arrays: Arrays, weights: dict, mask: Mask | None = None, *, direction=None, **options
    ) -> tuple[jax.Array, Any]:
        """Computes the output, and the gradients of output · direction for weights, query, key and value.

        It is compiled once for each kind of mask and options; what they hold may change.
        """
        if direction is None:
            direction = np.random.default_rng(11).standard_normal((*arrays[0].shape[:-1], arrays[2].shape[-1]))
        rate, direction = options.pop("dropout_rate", 0.0), direction.astype(arrays[0].dtype)
        return self._compiled(implementation, rate)(weights, *arrays, self.mask(mask), direction, options)

    @functools.lru_cache(maxsize=1024)  # noqa: B019  cases live as long as the program
    def _compiled(self, implementation: str, rate: float) -> Callable[..., Any]:
        dropped = {"dropout_rate": rate} if rate else {}

        def scalar(weights, query, key, value, mask, direction, options):
            options = {"mask": mask, "implementation": implementation} | dropped | options
            out = self.call(weights, query, key, value, **options)
            return jnp.sum(out * direction), out

        def run(*arguments):
            (_, out), gradients = jax.value_and_grad(scalar, argnums=(0, 1, 2, 3), has_aux=True)(*arguments)
            return out, gradients

        return jax.jit(run)


def subject_of(score: Mixer, **options: Any) -> Subject:
    """Makes the case of a mechanism with its own arrays; gates are projected from the keys, head after head."""
    shapes = {name: declared.shape for name, declared in score.arrays(SIZES).items()}

    def call(weights, query, key, value, **more):
        source = jnp.repeat(key, HEADS // key.shape[-2], -2)
        return attend(score, weights, query, key, value, source=source.reshape(*source.shape[:-2], -1), **more)

    recurrent, pairs = isinstance(score, Recurrence), type(score).attend is Score.attend
    normaliser, traits, placed = score.normaliser.partition("(")[0], score.traits, tells_positions(score)
    alone = traits.one_sequence or (not recurrent and (traits.causal or placed))
    ordered = recurrent or alone or normaliser in ("stick_breaking", "blocks")
    expected = {
        "implementations": tuple(name for name in score.implementations if name in ("xla", "chunked")),
        "used": tuple(place for place, reads in enumerate((traits.reads_query, traits.reads_key, True)) if reads),
        "normalised": pairs and normaliser in ("softmax", "sum", "hard", "blocks"),
        "weighs": pairs or recurrent,
        "positive": recurrent or (pairs and normaliser not in ("relu_squared", "softpick", "none", "hard", "blocks")),
        "unordered": not ordered,
        "equivariant": not alone,
    }
    return Subject(
        call,
        shapes,
        masks=frozenset(BY_TOKEN) if recurrent else EVERY_MASK,
        weighted=not recurrent,
        needs_causal=traits.causal,
        score=score,
        **expected | options,
    )


def tells_positions(score: Mixer) -> bool:
    """Tells whether a score gives equal queries and keys other numbers at other places."""
    if not isinstance(score, Score) or score.traits.causal:
        return False
    draw, plain = np.random.default_rng(0).standard_normal, dataclasses.replace(score, normaliser="none")
    weights = {name: jnp.asarray(draw(p.shape)) for name, p in plain.arrays(SIZES).items()}
    same = jnp.broadcast_to(draw((HEADS, WIDTH)), (1, LENGTH, HEADS, WIDTH))
    options = {"source": jnp.ones((1, LENGTH, HEADS * WIDTH)), "implementation": "reference", "return_weights": True}
    _, scores = attend(plain, weights, same, same, same, **options)
    return bool(jnp.ptp(scores, axis=(-2, -1)).max() > 1e-6)


def inputs(
    queries: int = LENGTH,
    keys: int = LENGTH,
    key_heads: int = HEADS,
    dtype: Any = jnp.float64,
    batch: tuple[int, ...] = (2,),
    seed: int = 0,
) -> Arrays:
    """Draws query, key and value."""
    shapes = [(*batch, queries, HEADS, WIDTH), (*batch, keys, key_heads, WIDTH), (*batch, keys, key_heads, WIDTH)]
    draw = np.random.default_rng(seed)  # JAX's would compile a program for each shape
    return tuple(jnp.asarray(draw.standard_normal(shape), canonicalize_dtype(dtype)) for shape in shapes)


def causal_mask(lengths: tuple[int, int] = (LENGTH - 3, LENGTH)) -> Mask:
    """Makes a causal mask, with the real keys of each of two sequences."""
    return Mask(causal=True, key_lengths=jnp.array(lengths))


def dense_mask(*hidden: int) -> Mask:
    """Makes a dense mask whose hidden rows see nothing, with a window and segments that hide nothing."""
    nothing = jnp.zeros((2, LENGTH), int)
    dense = jnp.ones((2, HEADS, LENGTH, LENGTH), bool).at[:, :, list(hidden)].set(False)
    return Mask(dense=dense, window=LENGTH, query_segments=nothing, key_segments=nothing)
