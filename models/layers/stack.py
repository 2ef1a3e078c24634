"""Runs blocks one after the other, and runs of equal blocks as one block that is compiled once and scanned.

Parameters keep their names, `block_0` and so on: a scan stacks them within the program, so no other code is affected.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax.core.scope import is_filter_empty
from jaxtyping import Array, Float

from models.layers.blocks import Block


def run(blocks: Sequence[Block], x: Float[Array, "B L D"], *inputs: Any, scan: bool) -> Float[Array, "B L D"]:
    """Applies blocks, in order.

    Args:
      blocks: The blocks of one model. Each is called as `block(x, *inputs)`.
      x: The input of the first block.
      inputs: Further inputs, the same for every block.
      scan: Whether to scan runs of blocks that differ only in their parameters and numbers. The function is the same
        but for the draws of dropout. Nothing is scanned while blocks return more than their output (initial
        parameters, attention weights, losses of layers).
    """
    runs = [[block] for block in blocks]
    if scan and is_filter_empty(blocks[0].scope.mutable):
        runs = [list(like) for _, like in itertools.groupby(blocks, key=lambda block: block.unbind()[0])]
    for like in runs:
        x = _scanned(like, x, inputs) if len(like) > 1 else like[0](x, *inputs)
    return x


def _scanned(blocks: Sequence[Block], x: jax.Array, inputs: tuple[Any, ...]) -> jax.Array:
    first, count = blocks[0].unbind()[0], len(blocks)
    params = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(block.variables["params"] for block in blocks))
    drops = blocks[0].has_rng("dropout")
    rngs = {"dropout": jax.random.split(blocks[0].make_rng("dropout"), count)} if drops else {}

    def body(x: jax.Array, layer: tuple[jax.Array, Any, dict[str, jax.Array]]) -> tuple[jax.Array, None]:
        number, params, rngs = layer
        return first.numbered(number).apply({"params": params}, x, *inputs, rngs=rngs), None

    return jax.lax.scan(body, x, (first.attention.layer + jnp.arange(count), params, rngs))[0]
