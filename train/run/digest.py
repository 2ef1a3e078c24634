"""Digests: what was read back is bit for bit what was written, or it is damaged. Orbax checks no tensor's bytes."""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Shaped, UInt32

from attention.errors import UsageError


class DamagedError(UsageError):
    """What was read is not what was written."""


@jax.jit
def digest(x: Shaped[Array, "..."]) -> UInt32[Array, ""]:
    """The sum, modulo 2**32, of a hash of each 32-bit word with its place in the array.

    A sum of integers is the same in any order, so on any mesh and in any number of processes. The hash is a bijection
    of the word, so a change within one word is always noticed; any other goes unnoticed once in 2**32 times.
    """
    words = _words(x)
    place = jnp.zeros(words.shape, jnp.uint32)
    for axis in range(words.ndim):
        stride = math.prod(words.shape[axis + 1 :]) % 2**32
        place += jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis) * jnp.uint32(stride)
    return jnp.sum(_mix(words + place * jnp.uint32(0x9E3779B9)), dtype=jnp.uint32)


def digests(tree: Any) -> dict[str, int]:
    """The digest of every array of a tree, by its path such as `params/head/kernel`."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    # One after the other: many programs at once, each on all devices, wait for each other for ever where devices are
    # threads of a CPU with fewer cores.
    values = [jax.device_get(digest(leaf)) for _, leaf in leaves]
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves]
    return {name: int(value) for name, value in zip(names, values, strict=True)}


def verify(tree: Any, written: Mapping[str, int]) -> None:
    """Raises DamagedError where an array of a tree is not the one whose digest was written."""
    changed = [name for name, value in digests(tree).items() if written.get(name) != value]
    if changed:
        raise DamagedError(f"{len(changed)} arrays are not as they were written, such as {changed[0]}")


def seal(content: dict[str, Any]) -> dict[str, Any]:
    """JSON values together with their checksum, for `unseal`."""
    return {"content": content, "sha256": _sha256(content)}


def unseal(sealed: Any) -> dict[str, Any]:
    """The content of what `seal` made; raises DamagedError where that has changed since."""
    if not isinstance(sealed, Mapping) or sealed.get("sha256") != _sha256(sealed.get("content")):
        raise DamagedError("the metadata are not as they were written")
    return sealed["content"]


def _sha256(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _words(x: jax.Array) -> jax.Array:
    """The bits of an array as words of 32 bits, two where its numbers are twice as long."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    if x.dtype == bool:
        return x.astype(jnp.uint32)
    bits = 8 * min(x.dtype.itemsize, 4)
    return jax.lax.bitcast_convert_type(x, jnp.dtype(f"uint{bits}")).astype(jnp.uint32)


def _mix(word: jax.Array) -> jax.Array:
    """The finaliser of MurmurHash3."""
    word = (word ^ (word >> 16)) * jnp.uint32(0x85EBCA6B)
    word = (word ^ (word >> 13)) * jnp.uint32(0xC2B2AE35)
    return word ^ (word >> 16)
