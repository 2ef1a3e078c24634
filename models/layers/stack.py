"""Applies blocks one after the other, or compiles equal blocks in a row once and scans them.

Parameters keep their names, such as `block_0`: a scan stacks them within the program, so no other code is affected.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax.core.scope import is_filter_empty
from jaxtyping import Array, Float

from attention import Mask
from models.layers.blocks import Block
from models.layers.cache import Cache, PreparedSource


def run(
    blocks: Sequence[Block],
    x: Float[Array, "B L D"],
    mask: Mask | None,
    train: bool,
    caches: Sequence[Cache] | None = None,
    source: Float[Array, "B S E"] | Sequence[PreparedSource] | None = None,
    source_mask: Mask | None = None,
    *,
    scan: bool,
) -> tuple[Float[Array, "B L D"], tuple[Cache, ...] | None]:
    """Applies blocks, in order, to whole sequences, or with caches to the tokens that follow.

    Args:
      blocks: The blocks of one model.
      x: The input of the first block.
      mask: Which token may attend to which.
      train: Whether there is dropout.
      caches: The cache of each block, or None.
      source: The source of the blocks' cross-attention; with caches, what each block has prepared of it.
      source_mask: Which token may attend to which source token.
      scan: Whether to scan neighbours that differ only in their parameters and numbers; this changes nothing but the
        draws of dropout. Blocks that also return initial parameters, attention weights or losses are never scanned.

    Returns:
      The output of the last block, and the caches for the next call.
    """
    if caches is not None:
        kept = []
        for block, cache, prepared in zip(blocks, caches, source or [None] * len(blocks), strict=True):
            x, cache = block(x, mask, train, cache, prepared, source_mask)
            kept.append(cache)
        return x, tuple(kept)
    groups = [[block] for block in blocks]
    if scan and is_filter_empty(blocks[0].scope.mutable):
        groups = [list(group) for _, group in itertools.groupby(blocks, key=lambda block: block.unbind()[0])]
    for group in groups:
        inputs = (mask, train, None, source, source_mask)
        x = _scanned(group, x, inputs) if len(group) > 1 else group[0](x, *inputs)
    return x, None


def _scanned(blocks: Sequence[Block], x: jax.Array, inputs: tuple[Any, ...]) -> jax.Array:
    first, count = blocks[0].unbind()[0], len(blocks)
    params = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(block.variables["params"] for block in blocks))
    drops = blocks[0].has_rng("dropout")
    rngs = {"dropout": jax.random.split(blocks[0].make_rng("dropout"), count)} if drops else {}

    def body(x: jax.Array, layer: tuple[jax.Array, Any, dict[str, jax.Array]]) -> tuple[jax.Array, None]:
        number, params, rngs = layer
        return first.numbered(number).apply({"params": params}, x, *inputs, rngs=rngs), None

    return jax.lax.scan(body, x, (first.attention.layer + jnp.arange(count), params, rngs))[0]
