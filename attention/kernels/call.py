"""The input of every implementation: checked arrays, and the options of the call."""

import dataclasses
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attention.dropout import Seed, seed_of
from attention.errors import UnsupportedError, UsageError, unknown
from attention.forms import Dot, Form
from attention.kernels.arrays import spread_heads
from attention.mask import Mask
from attention.normaliser import SOFTMAX, Normaliser
from attention.options import Options
from attention.parameters import Params

IMPLEMENTATIONS = ("auto", "reference", "xla", "chunked", "cudnn", "pallas")
TILED = ("chunked", "pallas")
SPELLING = re.compile(r"(\w+)\(\s*(\d+)\s*,\s*(\d+)\s*\)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call(Options):
    """A call: its options, checked, and its arrays.

    Attributes:
      score: The `Score`, whose `pair` makes the scores.
      query: Prepared queries, a tree of arrays `(*B, T, N, any)`; None if the score reads none.
      key: Prepared keys, a tree of arrays `(*B, S, K, any)`, or N heads if they depend on the query's; None if the
        score reads none.
      form: The form of the scores that has kernels of its own, or None.
      scores_shape: `(*B, N, T, S)`.
      value: `(*B, S, K, V)`, K divides N.
      dropout_seed: Two words, or None if the rate is 0.
      block: Queries and keys of a tile; None means the implementation's rule.
      normaliser: How scores become weights; it may draw from the key of dropout too.
      params: The arrays of the score and of the normaliser.
    """

    score: Any = None
    query: Any = None
    key: Any = None
    form: Form = None
    scores_shape: tuple[int, ...]
    value: Float[Array, "*B S K V"]
    dropout_seed: Seed | None
    block: tuple[int, int] | None = None
    normaliser: Normaliser = SOFTMAX
    params: Params = dataclasses.field(default_factory=dict)

    @property
    def whole_bias(self) -> jax.Array | None:
        """The bias, and with it that of the keys that a form of dot products has."""
        keys = self.form.key_bias if isinstance(self.form, Dot) else None
        return self.bias if keys is None else keys if self.bias is None else self.bias + keys

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to compute: no queries, keys, heads, sequences or values."""
        return 0 in self.scores_shape or 0 in self.value.shape

    def spread(self) -> "Call":
        """Gives each query head keys and values of its own where keys were prepared once for each query head."""
        keys = jax.tree.leaves(self.key)
        heads = self.scores_shape[-3]
        if all(x.shape[-2] == self.value.shape[-2] for x in keys):
            return self
        return dataclasses.replace(self, key=spread_heads(self.key, heads), value=spread_heads(self.value, heads))

    def allowed(self) -> jax.Array | None:
        """Makes the mask an array that broadcasts to the scores, or None if everything is allowed."""
        return self.mask.materialise(*self.scores_shape[-2:], rank=len(self.scores_shape))

    def flat(self, x: jax.Array | None, trailing: int) -> jax.Array | None:
        """Gives an array of the mask, or the bias, a single batch axis before its trailing axes; None stays.

        That axis is 1 if an array over pairs, with 3 trailing axes, is the same for all sequences.
        """
        if x is None:
            return None
        lead, rest = x.shape[: x.ndim - trailing], x.shape[x.ndim - trailing :]
        if trailing == 3 and math.prod(lead) == 1:
            return x.reshape(1, *rest)
        return jnp.broadcast_to(x, (*self.scores_shape[:-3], *rest)).reshape(-1, *rest)


def common(queries: int, heads: int, value: Float[Array, "*B S K V"], options: Options) -> dict[str, Any]:
    """Checks the mask and the bias, and collects the fields of `Call` that every score has.

    Raises:
      UsageError: the mask or the bias does not fit the scores.
    """
    scores_shape = (*value.shape[:-3], heads, queries, value.shape[-3])
    check_parts(options.mask, options.bias, scores_shape)
    seed = seed_of(options.dropout_key) if options.dropout_rate else None
    return vars(options) | {"scores_shape": scores_shape, "value": value, "dropout_seed": seed}


def check_parts(mask: Mask, bias: jax.Array | None, scores_shape: tuple[int, ...]) -> None:
    """Raises UsageError unless mask and bias fit the scores."""
    *batch, _, queries, keys = scores_shape
    mask.check(tuple(batch), queries, keys)
    for name, array in (("bias", bias), ("dense mask", mask.dense)):
        if array is None:
            continue
        if array.ndim != len(scores_shape):
            raise UsageError(
                f"A {name} needs the scores' rank {len(scores_shape)}, but its shape is {array.shape}; add axes of 1."
            )
        if any(size not in (1, full) for size, full in zip(array.shape, scores_shape, strict=True)):
            raise UsageError(f"A {name} of shape {array.shape} does not broadcast to the scores {scores_shape}.")


def parse_implementation(text: str, what: str = "attention implementation") -> tuple[str, tuple[int, int] | None]:
    """Splits `chunked(128, 256)` into the name of an implementation and the queries and keys of a tile, if given.

    Args:
      text: The implementation, such as `auto`.
      what: Its name in errors.

    Raises:
      UsageError: no mechanism has the implementation, or it has sizes but no tiles.
    """
    sized = SPELLING.fullmatch(text)
    name = sized[1] if sized else text
    if name not in IMPLEMENTATIONS:
        raise unknown(what, text, IMPLEMENTATIONS)
    if not sized:
        return name, None
    block = int(sized[2]), int(sized[3])
    if name not in TILED:
        raise UsageError(f"The {what} {text!r} gives sizes of tiles, which only {' and '.join(TILED)} have.")
    if min(block) < 1:
        raise UsageError(f"The {what} {text!r} asks for empty tiles; give at least 1 query and 1 key.")
    return name, block


def check_implementation(text: str, available: tuple[str, ...], by: str) -> tuple[str, tuple[int, int] | None]:
    """Parses an implementation as `parse_implementation`, and checks that `by` has it.

    Raises:
      UsageError: no mechanism has it.
      UnsupportedError: only other mechanisms have it.
    """
    name, block = parse_implementation(text)
    if name != "auto" and name not in available:
        raise UnsupportedError(f"{by} has no implementation {name!r}; it has auto, {', '.join(available)}.")
    return name, block


def check_rows(what: str, why: str, built: int, mask: Mask, queries: int, keys: int) -> None:
    """Raises UsageError unless a table over `built` positions covers all keys and queries.

    Queries start at the mask's offset, which is not checked if it is traced.
    """
    first = mask.query_offset if isinstance(mask.query_offset, int) else 0
    if first < 0:
        raise UsageError(f"{what} has no position {first}; the mask's query_offset must be at least 0.")
    if max(first + queries, keys) > built:
        raise UsageError(
            f"{what} was built for sequences of at most {built} tokens, but this one has "
            f"{max(first + queries, keys)}; its {why}: build the model at the greater length."
        )


def check_weight(name: str, array: jax.Array, *shapes: tuple[int, ...]) -> None:
    """Raises UsageError unless a weight has one of the shapes; -1 stands for any size."""

    def fits(shape: tuple[int, ...]) -> bool:
        return len(shape) == array.ndim and all(s in (-1, size) for s, size in zip(shape, array.shape, strict=True))

    if not any(map(fits, shapes)):
        valid = " or ".join(str(shape).replace("-1", "any") for shape in shapes)
        raise UsageError(f"The weight {name} must have the shape {valid}, but it has {array.shape}.")


def check_shapes(query: jax.Array, key: jax.Array, value: jax.Array) -> None:
    """Raises UsageError unless the arrays fit together in the layout of `jax.nn`."""
    shapes = f"query {query.shape}, key {key.shape}, value {value.shape}"
    if min(query.ndim, key.ndim, value.ndim) < 3:
        raise UsageError(f"Attention takes (*batch, length, heads, width) arrays, but was given {shapes}.")
    if not query.shape[:-3] == key.shape[:-3] == value.shape[:-3]:
        raise UsageError(f"Query, key and value must have the same batch axes: {shapes}.")
    if key.shape[-3:-1] != value.shape[-3:-1]:
        raise UsageError(f"Keys and values must have the same length and heads: {shapes}.")
    if query.shape[-1] != key.shape[-1]:
        raise UsageError(f"Queries and keys must be equally wide: {shapes}.")
    if query.shape[-2] % key.shape[-2]:
        raise UsageError(f"The number of key heads must divide the number of query heads: {shapes}.")
