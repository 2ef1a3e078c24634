"""Runs blocks one after the other, and runs of equal blocks as one block that is compiled once and scanned.

Parameters keep their names, `block_0` and so on: a scan stacks them within the program, so no other code is affected.
"""

import contextlib
import dataclasses
import hashlib
import itertools
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.core.scope import is_filter_empty
from jaxtyping import Array, Float, Int, Key, UInt32

Path = tuple[str | int, ...]


def run(blocks: Sequence[nn.Module], x: Float[Array, "B L D"], *inputs: Any, scan: bool) -> Float[Array, "B L D"]:
    """Returns `x` after all blocks.

    Args:
      blocks: The blocks of one model in order. Each is called as `block(x, *inputs)`.
      x: The input of the first block.
      inputs: Further inputs, the same for every block.
      scan: Whether to scan runs of blocks that differ only in their parameters. Results and dropout are the same.
        Nothing is scanned while blocks return more than their output (initial parameters, attention weights).
    """
    if not scan or not is_filter_empty(blocks[0].scope.mutable):
        for block in blocks:
            x = block(x, *inputs)
        return x
    unbound = [block.unbind()[0] for block in blocks]
    for _, places in itertools.groupby(range(len(blocks)), key=lambda place: unbound[place]):
        x = _run_of_like([blocks[place] for place in places], x, inputs)
    return x


def dropout_key(module: nn.Module) -> Key[Array, ""]:
    """Returns `module.make_rng("dropout")`; within a scan the key that the block would have without the scan."""
    place = _PLACE.get()
    return module.make_rng("dropout") if place is None else place.key(module)


def layer_of(module: nn.Module) -> int | Int[Array, ""]:
    """Returns `module.layer`, the number of its block; within a scan, where all have the first one's, their own."""
    place = _PLACE.get()
    return module.layer if place is None else module.layer + place.index


def _run_of_like(blocks: Sequence[nn.Module], x: jax.Array, inputs: tuple[Any, ...]) -> jax.Array:
    if len(blocks) == 1:
        return blocks[0](x, *inputs)
    block = blocks[0].unbind()[0]
    rngs = {name: lazy.rng for name, lazy in blocks[0].scope.rngs.items()}
    paths = tuple(block.scope.rngs["dropout"].suffix for block in blocks) if "dropout" in rngs else ()

    def body(x: jax.Array, numbered: tuple[Any, jax.Array]) -> tuple[jax.Array, None]:
        params, index = numbered
        with _placed(_Place(paths, index)):
            return block.apply({"params": params}, x, *inputs, rngs=rngs), None

    params = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(block.variables["params"] for block in blocks))
    return jax.lax.scan(body, x, (params, jnp.arange(len(blocks))))[0]


@dataclasses.dataclass(frozen=True)
class _Place:
    """The block of a run that is being computed.

    Attributes:
      paths: For each block of the run, the path that Linen folds into its keys.
      index: The index of the block in the run.
    """

    paths: tuple[Path, ...]
    index: jax.Array

    def key(self, module: nn.Module) -> jax.Array:
        """Returns the next key of a module within the block."""
        scope = module.scope
        scope.rng_counters["dropout"] += 1
        lazy, count = scope.rngs["dropout"], scope.rng_counters["dropout"]
        words = jnp.stack([_word((*path, *lazy.suffix, count)) for path in self.paths])
        return jax.random.fold_in(lazy.rng, words[self.index])


_PLACE: ContextVar[_Place | None] = ContextVar("place", default=None)


@contextlib.contextmanager
def _placed(place: _Place) -> Iterator[None]:
    token = _PLACE.set(place)
    try:
        yield
    finally:
        _PLACE.reset(token)


def _word(path: Path) -> UInt32[Array, ""]:
    """Returns the word that Linen (`flax.core.scope`) folds into a key; Linen itself needs a static path."""
    digest = hashlib.sha1()
    for part in path:
        digest.update(b"\00" * flax.config.flax_fix_rng_separator)
        digest.update(part.encode() if isinstance(part, str) else part.to_bytes((part.bit_length() + 7) // 8, "big"))
    return jnp.uint32(int.from_bytes(digest.digest()[:4], "big"))
