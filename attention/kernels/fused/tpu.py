"""Tiles and fast memory of the kernels on TPUs."""

import math
from collections.abc import Sequence
from typing import Any

from attention.kernels.loops.plan import even

MOST_HELD = 2**25  # bytes of columns that a TPU's fast memory holds, twice
OF_A_TILE = 2**25  # bytes for the arrays over a tile of 512 × 512: 32 of them
LARGEST = 512  # queries and keys of a tile


def block_sizes(queries: int, keys: int) -> tuple[int, int]:
    """Chooses a tile's queries and keys, by the compiler's schedules.

    With tiles of 128 × 128, both passes of a causal `alibi` take 0.055, 0.042 and 0.039 cycles a pair on a v5e, at
    1,024, 4,096 and 16,384 tokens; of 256 × 256 0.045, 0.030 and 0.026; of 512 × 512 0.046, 0.026 and 0.021.
    """
    return 8 if queries <= 64 else even(queries, LARGEST, 128), even(keys, LARGEST, 128)


def options(blocks: Sequence[tuple[int, ...]], ordered: bool = False) -> Any:
    """Gives the compiler's options for a kernel whose inputs and outputs have these blocks.

    With `ordered` the tiles of a head's rows run one after another.
    """
    from jax.experimental.pallas import tpu as pltpu

    held = 2 * sum(map(bytes_of, blocks))  # two of each, so that one is loaded meanwhile
    order = "parallel", "parallel", "arbitrary" if ordered else "parallel"
    return pltpu.CompilerParams(dimension_semantics=order, vmem_limit_bytes=held + OF_A_TILE)


def bytes_of(block: tuple[int, ...]) -> int:
    """Counts the bytes of a block of float32 in fast memory, in registers of 8 × 128."""
    *lead, rows, columns = block
    return 4 * math.prod(lead) * (-(-rows // 8) * 8) * (-(-columns // 128) * 128)
