"""The compile time that a scan over layers saves, the memory that remat and chunks of logits save, and their cost.

    python -m benchmarks.compiling --out=benchmarks/results/compiling_cpu.json

It compiles loss and gradient of a GPT on random tokens for this device; memory is that of XLA's temporary buffers. The
compile time is in seconds of all cores, which other programs hardly change.
"""

import argparse
import dataclasses
import functools
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from analysis.tables import plain_markdown
from benchmarks import measure
from models.transformer import BLOCKS
from train import cli, losses
from train.config import loading
from train.config.schema import Config

CONFIG = "configs/gpt_pydoc.py"
OPTIONS = {"model.depth": "12"}
LAYERS = [(scan, remat) for remat in BLOCKS for scan in (False, True)]
DEEPER = 36  # layers of programs that are compiled but not run
CHUNKS = (0, 64, 256)


def parser() -> cli.Parser:
    """Returns the parser of the program's flags."""
    parser = cli.Parser(__doc__)
    parser.add_argument("--rounds", type=cli.count, default=5, help="of measuring, in which all take turns")
    parser.add_argument("--vocabulary", type=cli.count, default=28_996, help="of the chunked loss")
    parser.add_argument("--batch", type=cli.count, default=16, help="of the chunked loss")
    parser.add_argument("--context", type=cli.count, default=1024, help="of the chunked loss")
    parser.add_argument("--time-chunks", action="store_true", help="run the chunked loss too, not only compile it")
    parser.add_argument("--out", type=cli.new_file, help="where the JSON goes")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program and returns its exit code."""
    return cli.run(lambda: run(parser().parse_args(arguments)))


def run(flags: argparse.Namespace) -> None:
    """Measures, prints tables and writes JSON."""
    result = measure.header("compiling") | {"depths": depths(), "layers": layers(flags.rounds)}
    sizes = (flags.vocabulary, flags.batch, flags.context)
    result["chunks"] = chunks(*sizes, flags.rounds if flags.time_chunks else 0)
    print(markdown(result))
    if flags.out:
        flags.out.write_text(json.dumps(result, indent=2) + "\n")


def depths() -> list[dict[str, Any]]:
    """Measures more layers, one after the other or scanned."""
    rows = [{"depth": depth, "scan": scan} for depth in (int(OPTIONS["model.depth"]), DEEPER) for scan in (False, True)]
    configs = [
        loading.resolve(CONFIG, OPTIONS | {f"model.{name}": str(v) for name, v in row.items()})[0] for row in rows
    ]
    return measured(rows, [compiled(config, 256, config.data.batch_size, config.data.context) for config in configs], 0)


def layers(rounds: int) -> list[dict[str, Any]]:
    """Measures twelve layers, one after the other or scanned, with each kind of remat."""
    config, _ = loading.resolve(CONFIG, OPTIONS)
    models = {(scan, remat): dataclasses.replace(config.model, scan=scan, remat=remat) for scan, remat in LAYERS}
    configs = {key: dataclasses.replace(config, model=model) for key, model in models.items()}
    programs = {
        key: compiled(config, 256, config.data.batch_size, config.data.context) for key, config in configs.items()
    }
    rows = [{"scan": scan, "remat": remat} for scan, remat in programs]
    return measured(rows, list(programs.values()), rounds)


def chunks(vocabulary: int, batch: int, context: int, rounds: int) -> list[dict[str, Any]]:
    """Measures one layer and a large vocabulary, for several numbers of tokens whose logits are computed at a time."""
    config, _ = loading.resolve(CONFIG, OPTIONS | {"model.depth": "1", "model.tied_output": "False"})
    configs = [dataclasses.replace(config, train=dataclasses.replace(config.train, loss_chunk=c)) for c in CHUNKS]
    programs = [compiled(config, vocabulary, batch, context) for config in configs]
    sizes = {"vocabulary": vocabulary, "batch": batch, "context": context}
    return measured([sizes | {"loss_chunk": chunk} for chunk in CHUNKS], programs, rounds)


def compiled(config: Config, vocabulary: int, batch: int, context: int) -> tuple[float, Callable, int]:
    """Returns CPU seconds to trace and compile loss and gradient, a maker of calls, and bytes of temporary buffers."""
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
    arguments = lambda: jax.tree.map(lambda x: jnp.full(x.shape, 0.01, x.dtype), (params, shape))  # noqa: E731
    return seconds, lambda: functools.partial(program, *arguments()), program.memory_analysis().temp_size_in_bytes


def measured(rows: list[dict[str, Any]], programs: list[tuple], rounds: int) -> list[dict[str, Any]]:
    """Adds the figures of their programs to the rows; without rounds no program is run."""
    for row, (seconds, _, temp) in zip(rows, programs, strict=True):
        row |= {"compile_seconds": seconds, "temp_bytes": temp}
    if rounds:
        calls = {str(number): make() for number, (_, make, _) in enumerate(programs)}
        times = measure.in_turn(calls, rounds, budget=60.0)
        for number, row in enumerate(rows):
            row["seconds"] = statistics.median(times[str(number)])
            row["times_the_first"] = dataclasses.asdict(measure.ratio(times, str(number), "0"))
    return rows


def markdown(result: dict[str, Any]) -> str:
    """Returns all tables."""
    return "\n\n".join(table(result[name]) for name in ("depths", "layers", "chunks"))


def table(rows: list[dict[str, Any]]) -> str:
    """Returns one of the tables; it has no columns of time where no program was run."""
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
