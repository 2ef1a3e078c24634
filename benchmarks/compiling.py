"""The compile time saved by a scan over layers, the memory saved by remat and chunks of logits, and their costs.

    python -m benchmarks.compiling --out=benchmarks/results/compiling_cpu.json

The program compiles loss and gradient of a GPT on random tokens for this device. Memory is that of XLA's temporary
buffers. Compile time is CPU time of all cores, which other programs hardly change.
"""

import argparse
import functools
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from analysis import measurements
from analysis.tables import plain_markdown
from benchmarks import measure
from models.transformer import BLOCKS
from train import cli, loading, losses
from train.config.schema import Config

CONFIG = "configs/gpt_pydoc.py"
OPTIONS = {"model.depth": "12"}
ONE_LAYER = {"model.depth": "1", "model.tied_output": "False"}
# The fields that differ between the programs of a table. Programs of 36 layers are compiled but not run.
DEPTHS = [{"depth": depth, "scan": scan} for depth in (12, 36) for scan in (False, True)]
LAYERS = [{"scan": scan, "remat": remat} for remat in BLOCKS for scan in (False, True)]
CHUNKS = [{"loss_chunk": chunk} for chunk in (0, 64, 256)]


@measurements.program(
    __doc__,
    measure.rounds(5),
    cli.flag("--vocabulary", type=cli.count, default=28_996, help="vocabulary of the chunked loss"),
    cli.flag("--batch", type=cli.count, default=16, help="batch of the chunked loss"),
    cli.flag("--context", type=cli.count, default=1024, help="context of the chunked loss"),
    cli.flag("--time-chunks", action="store_true", help="also run the chunked loss"),
)
def main(flags: argparse.Namespace) -> measurements.Measured:
    """Yields the results for more layers, for twelve layers with each kind of remat, and for a large vocabulary."""
    result = {"depths": measured("model", DEPTHS, OPTIONS), "layers": measured("model", LAYERS, OPTIONS, flags.rounds)}
    sizes = {name: getattr(flags, name) for name in ("vocabulary", "batch", "context")}
    chunks = measured("train", CHUNKS, ONE_LAYER, flags.rounds if flags.time_chunks else 0, **sizes)
    result["chunks"] = [sizes | row for row in chunks]
    yield result, "\n\n".join(map(table, result.values()))


def measured(
    section: str, rows: list[dict[str, Any]], options: dict[str, str], rounds: int = 0, **sizes: int
) -> list[dict[str, Any]]:
    """Adds the measurements of programs to rows of fields; the programs are run if there are rounds.

    Args:
      section: The section of the rows' fields.
      rows: The fields that differ between programs.
      options: The fields of all programs.
      sizes: The sizes of the batch, see `compiled`.
    """
    overrides = [options | {f"{section}.{field}": str(value) for field, value in row.items()} for row in rows]
    programs = [compiled(loading.resolve(CONFIG, of_row)[0], **sizes) for of_row in overrides]
    filled = [
        row | {"compile_seconds": seconds, "temp_bytes": temp}
        for row, (seconds, _, temp) in zip(rows, programs, strict=True)
    ]
    if rounds:
        calls = {str(number): make() for number, (_, make, _) in enumerate(programs)}
        times = measure.in_turn(calls, rounds, budget=60.0)
        for number, row in enumerate(filled):
            row["seconds"] = statistics.median(times[str(number)])
            row["times_the_first"] = measure.ratio(times, str(number), "0")
    return filled


def compiled(config: Config, vocabulary: int = 256, batch: int = 0, context: int = 0) -> tuple[float, Callable, int]:
    """Compiles loss and gradient; returns the CPU seconds, a function that makes calls, and bytes of temporary buffers.

    Args:
      batch: Number of sequences; 0 takes the config's.
      context: Tokens per sequence; 0 takes the config's.
    """
    batch, context = batch or config.data.batch_size, context or config.data.context
    model = config.model.build(vocabulary, context)
    shape = jax.ShapeDtypeStruct((batch, context), jnp.int32)

    def loss(params: dict, tokens: jax.Array) -> jax.Array:
        rngs = {"dropout": jax.random.key(0)}
        output = model.apply({"params": params}, tokens, train=True, method="output", rngs=rngs)
        return jnp.mean(losses.of_tokens(losses.cross_entropy, output, tokens, config.train.loss_chunk))

    params = jax.eval_shape(model.init, jax.random.key(0), shape)["params"]
    started = time.process_time()
    program = jax.jit(jax.value_and_grad(loss)).lower(params, shape).compile()
    seconds = time.process_time() - started

    def call() -> Callable:
        return functools.partial(program, *jax.tree.map(lambda x: jnp.full(x.shape, 0.01, x.dtype), (params, shape)))

    return seconds, call, program.memory_analysis().temp_size_in_bytes


def table(rows: list[dict[str, Any]]) -> str:
    """Writes a table; it has no columns of time if no program was run."""
    options = [name for name in rows[0] if name not in ("compile_seconds", "temp_bytes", "seconds", "times_the_first")]
    titles = [*options, "compile, CPU s", "temp MB", *(("ms", "× first row") if "seconds" in rows[0] else ())]
    return plain_markdown(titles, ([*(row[name] for name in options), *_figures(row)] for row in rows))


def _figures(row: dict[str, Any]) -> tuple[str, ...]:
    memory = (f"{row['compile_seconds']:.1f}", f"{row['temp_bytes'] / 1e6:.1f}")
    if "seconds" not in row:
        return memory
    return (*memory, f"{1000 * row['seconds']:.0f}", f"{row['times_the_first']['median']:.2f}")


if __name__ == "__main__":
    sys.exit(main())
