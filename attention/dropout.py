"""Dropout whose bits are a hash of a counter: the same for every tile size, sharding and backward pass.

The bits of an element depend only on the key and the element's position, so nothing is stored between the passes
and each tile can draw the bits of its elements. An array is a set of rows along its last axis: two words are hashed for
each row, with one more round for each element. The round is `lowbias32` of the hash-prospector project, a bijection of
32-bit words with close to ideal avalanche; on a CPU it costs a fiftieth of threefry.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray, UInt32

Seed = UInt32[Array, "2"]
RowWords = tuple[UInt32[Array, "*R"], UInt32[Array, "*R"]]


def seed_of(key: PRNGKeyArray) -> Seed:
    """Draws two words from a JAX random key."""
    return jax.random.bits(key, (2,), jnp.uint32)


def row_words(seed: Seed, rows: tuple[int, ...]) -> RowWords:
    """Draws two words for each row of an array whose leading axes, all but the last, have the sizes `rows`."""
    return words_of(seed, jnp.arange(math.prod(rows), dtype=jnp.uint32).reshape(rows))


def words_of(seed: Seed | tuple[jax.Array, jax.Array], row: UInt32[Array, "*R"]) -> RowWords:
    """Draws two words for each row; rows are numbered through all axes but the last."""
    first = _scramble(_scramble(row ^ seed[0]) ^ seed[1])
    return first, _scramble(first + jnp.uint32(0x9E3779B9))


def keep_columns(words: RowWords, columns: UInt32[Array, "..."], rate: float) -> Bool[Array, "..."]:
    """Draws True with probability 1 - rate at the given columns of the rows; words and columns broadcast."""
    first, second = words
    x = first + columns
    x = (x ^ (x >> 16)) * jnp.uint32(0x21F0AAAD)
    x = (x ^ (x >> 15) ^ second) * jnp.uint32(0xD35A2D97)
    return x >= jnp.uint32(round(rate * 2**32))


def keep(seed: Seed, rate: float, shape: tuple[int, ...]) -> Bool[Array, "*S"]:
    """Draws True with probability 1 - rate, in (0, 1], for each element of an array with at least one axis."""
    words = jax.tree.map(lambda word: word[..., None], row_words(seed, shape[:-1]))
    columns = jax.lax.broadcasted_iota(jnp.uint32, (1,) * (len(shape) - 1) + shape[-1:], len(shape) - 1)
    return keep_columns(words, columns, rate)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def dropout(x: Float[Array, "*S"], rate: float, seed: Seed) -> Float[Array, "*S"]:
    """Zeroes each element with probability `rate` and divides the rest by 1 - rate (Srivastava et al., 2014).

    The mean over seeds is `x`. The backward pass draws the same bits again instead of storing them.

    Args:
      x: An array of at least one axis.
      rate: Probability of a zero, in [0, 1).
      seed: The words that `seed_of` returns.
    """
    return jnp.where(keep(seed, rate, x.shape), x / (1.0 - rate), jnp.zeros((), x.dtype))


def _forward(x: jax.Array, rate: float, seed: Seed) -> tuple[jax.Array, Seed]:
    return dropout(x, rate, seed), seed


def _backward(rate: float, seed: Seed, gradient: jax.Array) -> tuple[jax.Array, None]:
    return dropout(gradient, rate, seed), None


dropout.defvjp(_forward, _backward)


def _scramble(x: UInt32[Array, "*R"]) -> UInt32[Array, "*R"]:
    x = (x ^ (x >> 16)) * jnp.uint32(0x21F0AAAD)
    x = (x ^ (x >> 15)) * jnp.uint32(0xD35A2D97)
    return x ^ (x >> 15)
