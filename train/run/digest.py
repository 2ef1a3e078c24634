"""Digests that show whether a checkpoint was read bit for bit as it was written, which Orbax does not check."""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Shaped, UInt32

from attention.errors import UsageError


class DamagedError(UsageError):
    """A checkpoint does not hold what was written."""


@jax.jit
def is_finite(x: Shaped[Array, "..."]) -> Bool[Array, ""]:
    """Tells whether all numbers of an array are finite; only floating-point numbers may not be."""
    return jnp.isfinite(x).all() if jnp.issubdtype(x.dtype, jnp.inexact) else jnp.array(True)


@jax.jit
def digest(x: Shaped[Array, "..."]) -> UInt32[Array, ""]:
    """Sums, modulo 2**32, a hash of each 32-bit word and its place in the array.

    A sum of integers does not depend on the order, so it is the same on any mesh and with any number of processes. The
    hash is a bijection of the word, so a change within one word is always noticed; any other change goes unnoticed once
    in 2**32 times.
    """
    words = _words(x)
    place = jnp.zeros(words.shape, jnp.uint32)
    for axis in range(words.ndim):
        stride = math.prod(words.shape[axis + 1 :]) % 2**32
        place += jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis) * jnp.uint32(stride)
    return jnp.sum(_mix(words + place * jnp.uint32(0x9E3779B9)), dtype=jnp.uint32)


def digests(tree: Any) -> dict[str, int]:
    """Digests every array of a tree, by its path, such as `params/head/kernel`."""
    return {name: int(value) for name, value in _each_leaf(digest, tree)}


def not_finite(tree: Any) -> list[str]:
    """Lists the paths of a tree's arrays in which a number is not finite."""
    return [name for name, finite in _each_leaf(is_finite, tree) if not finite]


def _each_leaf(function: Callable[[jax.Array], jax.Array], tree: Any) -> Iterator[tuple[str, Any]]:
    """Yields the path of every array and, on the host, the function's value.

    They are computed one by one, since many programs on all devices at once would deadlock where the devices are
    threads of a CPU with fewer cores.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        yield jax.tree_util.keystr(path, simple=True, separator="/"), jax.device_get(function(leaf))


def verify(tree: Any, written: Mapping[str, int]) -> None:
    """Raises DamagedError if the digest of an array differs from the one that was written."""
    changed = [name for name, value in digests(tree).items() if written.get(name) != value]
    if changed:
        raise DamagedError(f"{len(changed)} arrays are not as they were written, such as {changed[0]}")


def seal(content: dict[str, Any]) -> dict[str, Any]:
    """Adds a checksum to JSON values, for `unseal`."""
    return {"content": content, "sha256": _sha256(content)}


def unseal(sealed: Any) -> dict[str, Any]:
    """Returns what `seal` was given; raises DamagedError if it has changed since."""
    if not isinstance(sealed, Mapping) or sealed.get("sha256") != _sha256(sealed.get("content")):
        raise DamagedError("the metadata are not as they were written")
    return sealed["content"]


def _sha256(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _words(x: jax.Array) -> jax.Array:
    """Views an array as words of 32 bits, two words for each number of 64 bits."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    if x.dtype == bool:
        return x.astype(jnp.uint32)
    bits = 8 * min(x.dtype.itemsize, 4)
    return jax.lax.bitcast_convert_type(x, jnp.dtype(f"uint{bits}")).astype(jnp.uint32)


def _mix(word: jax.Array) -> jax.Array:
    """Hashes words with the finaliser of MurmurHash3."""
    word = (word ^ (word >> 16)) * jnp.uint32(0x85EBCA6B)
    word = (word ^ (word >> 13)) * jnp.uint32(0xC2B2AE35)
    return word ^ (word >> 16)
