"""Tiles and fast memory of the kernels on TPUs."""

import math
from collections.abc import Sequence
from typing import Any

from attention.kernels.loops.plan import even

MOST_HELD = 2**25  # bytes of columns that a TPU's fast memory holds, twice
OF_A_TILE = 2**25  # bytes for the arrays over a tile of 256 × 512: 64 of them
WASTED = (1, 3, 5)  # blocks of 128 queries of which tiles of 256 would waste more than they save


def block_sizes(queries: int, keys: int) -> tuple[int, int]:
    """Chooses a tile's queries and keys, by the compiler's schedules.

    With tiles of 128 × 128, both passes of a causal `alibi` take 0.067, 0.055 and 0.052 cycles a pair on a v5e, at
    1,024, 4,096 and 16,384 tokens; of 256 × 256 0.051, 0.036 and 0.032; of 256 × 512 0.051, 0.031 and 0.026.
    """
    rows = 8 if queries <= 64 else 128 if -(-queries // 128) in WASTED else 256
    return rows, even(keys, 512, 128)


def options(blocks: Sequence[tuple[int, ...]]) -> Any:
    """Gives the compiler's options for a kernel whose inputs and outputs have these blocks."""
    from jax.experimental.pallas import tpu as pltpu

    held = 2 * sum(map(bytes_of, blocks))  # two of each, so that one is loaded meanwhile
    return pltpu.CompilerParams(dimension_semantics=("parallel",) * 3, vmem_limit_bytes=held + OF_A_TILE)


def bytes_of(block: tuple[int, ...]) -> int:
    """Counts the bytes of a block of float32 in fast memory, in registers of 8 × 128."""
    *lead, rows, columns = block
    return 4 * math.prod(lead) * (-(-rows // 8) * 8) * (-(-columns // 128) * 128)
