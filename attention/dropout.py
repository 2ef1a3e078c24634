"""Dropout whose bits are a hash of a counter: the same for every tile size, sharding and backward pass.

The bits of one element depend on the key and the element's position alone, so nothing has to be stored
between the passes and a tile can draw its own part. Two rounds of a 32-bit finaliser with full avalanche
(C. Wellons' `lowbias32`, a refinement of MurmurHash3's) cost a fraction of threefry on a CPU.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray, UInt32

Seed = UInt32[Array, "2"]


def seed_of(key: PRNGKeyArray) -> Seed:
    """Two words that stand for a JAX random key."""
    return jax.random.bits(key, (2,), jnp.uint32)


def scramble(x: UInt32[Array, "*S"]) -> UInt32[Array, "*S"]:
    """A bijection of 32-bit words with full avalanche (`lowbias32`)."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


def keep(seed: Seed, rate: float, shape: tuple[int, ...]) -> Bool[Array, "*S"]:
    """True with probability 1 - rate, for each element of an array of the given shape.

    The two last axes count within a row word that hashes all axes before them, so no counter overflows
    for arrays of any size with fewer than 2**32 elements in the last two axes.

    Args:
      seed: From `seed_of`.
      rate: Probability of False, in [0, 1).
      shape: At least one axis.

    Returns:
      Booleans of that shape.
    """
    lead, last = shape[:-2], shape[-2:]
    row = jnp.full((1,) * len(shape), seed[0], jnp.uint32)
    for axis in range(len(lead)):
        row = scramble(row + _iota(shape, axis))
    columns = last[-1]
    counter = _iota(shape, len(shape) - 1)
    if len(last) == 2:
        counter = counter + _iota(shape, len(shape) - 2) * jnp.uint32(columns)
    bits = scramble(scramble(counter ^ row) + seed[1])
    return bits >= jnp.uint32(round(rate * 2**32))


def _iota(shape: tuple[int, ...], axis: int) -> UInt32[Array, "*S"]:
    sizes = tuple(size if a == axis else 1 for a, size in enumerate(shape))
    return jax.lax.broadcasted_iota(jnp.uint32, sizes, axis)


def dropout(x: Float[Array, "*S"], rate: float, seed: Seed) -> Float[Array, "*S"]:
    """Zeroes each element with probability `rate` and divides the rest by 1 - rate (Srivastava et al., 2014).

    Args:
      x: Any array.
      rate: Probability of a zero, in [0, 1); 0 returns `x`.
      seed: From `seed_of`.

    Returns:
      An array like `x`, with the mean of `x` over seeds.
    """
    if rate == 0.0:
        return x
    return jnp.where(keep(seed, rate, x.shape), x / (1.0 - rate), jnp.zeros((), x.dtype))
