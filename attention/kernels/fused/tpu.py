"""Tiles and fast memory of the kernels on TPUs."""

import math
from collections.abc import Sequence
from typing import Any

from attention.kernels.loops.plan import even

MOST_HELD = 2**25  # bytes of columns that a TPU's fast memory holds, twice
MOST_SUMMED = 3 * 2**23  # bytes of columns, and of sums for them, beside the tiles of a pass that has all gradients
FEWEST = 2**25  # bytes for the arrays over a tile, at least
WASTED = (1, 3, 5)  # blocks of 128 queries of which tiles of 256 would waste more than they save


def block_sizes(queries: int, keys: int) -> tuple[int, int]:
    """Chooses the forward pass's tile, its queries and keys, by the compiler's schedules.

    With tiles of 128 × 128, a causal `alibi` takes 0.023, 0.018 and 0.017 cycles a pair on a v5e, at 1,024, 4,096 and
    16,384 tokens; of 256 × 256 0.020, 0.013 and 0.012; of 256 × 512 0.015, 0.009 and 0.007. Of 512 × 512 it takes a
    sixth more, and on a v6e 7 % less.
    """
    rows = 8 if queries <= 64 else 128 if -(-queries // 128) in WASTED else 256
    return rows, even(keys, 512, 128)


def backward_sizes(queries: int, keys: int) -> tuple[int, int]:
    """Chooses the tile of the pass that has all gradients.

    There tiles of 256 × 512 take a tenth more cycles than of 512 × 512 on a v5e, and a fifth more on a v6e.
    """
    return 8 if queries <= 64 else even(queries, 512, 128), even(keys, 512, 128)


def options(blocks: Sequence[tuple[int, ...]], tile: tuple[int, int], ordered: bool) -> Any:
    """Gives the compiler's options for a kernel.

    Args:
      blocks: The blocks of its inputs and outputs.
      tile: Its rows and columns; 64 arrays of them fit.
      ordered: Whether the tiles of a head's rows run one after another.
    """
    from jax.experimental.pallas import tpu as pltpu

    held = 2 * sum(map(bytes_of, blocks))  # two of each, so that one is loaded meanwhile
    order = "parallel", "parallel", "arbitrary" if ordered else "parallel"
    limit = held + max(FEWEST, 64 * bytes_of(tile))
    return pltpu.CompilerParams(dimension_semantics=order, vmem_limit_bytes=limit)


def bytes_of(block: tuple[int, ...]) -> int:
    """Counts the bytes of a block of float32 in fast memory, in registers of 8 × 128."""
    *lead, rows, columns = block
    return 4 * math.prod(lead) * (-(-rows // 8) * 8) * (-(-columns // 128) * 128)
