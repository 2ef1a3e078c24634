"""Hosseini's Table 4 on this machine: seconds for 5,000 samples, for each mechanism in the model of each task.

    python -m benchmarks.inference --out=benchmarks/results/inference_cpu.json

In a round each mechanism in turn passes over all samples, batch by batch; ratios are to dot-product attention in the
same round. Models are those of the configs with random weights, and samples are random and of full length. Translation
reads source and target at once, as in training, and generates nothing. With fewer `--samples` the seconds are those of
the fewer samples: nothing is scaled up.
"""

import argparse
import dataclasses
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from analysis.tables import plain_markdown
from benchmarks import measure
from train import cli
from train.config import loading
from train.config.schema import Config

MECHANISMS = ("dot_product", "optimised", "efficient", "super")
HEADS = (1, 4, 8)
# Hosseini's seconds on an Apple M2, by heads, in the order of MECHANISMS.
PAPER = {
    "vit_mnist": {1: (4.43, 4.19, 3.78, 4.21), 4: (5.27, 5.22, 4.71, 5.07), 8: (6.89, 6.37, 6.10, 6.65)},
    "vit_cifar100": {
        1: (34.84, 33.36, 31.50, 33.69),
        4: (46.06, 44.17, 42.16, 44.47),
        8: (62.08, 60.63, 58.60, 60.73),
    },
    "classify_imdb": {
        1: (0.114, 0.109, 0.101, 0.112),
        4: (0.183, 0.176, 0.170, 0.178),
        8: (0.266, 0.262, 0.256, 0.264),
    },
    "classify_amazon": {1: (1.02, 1.00, 0.93, 0.99), 4: (1.77, 1.72, 1.66, 1.74), 8: (2.84, 2.77, 2.70, 2.77)},
}

Inputs = tuple[jax.Array, ...]
Make = Callable[[Config, int], tuple[nn.Module, Inputs]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program and returns its exit code."""
    return cli.run(lambda: run(parser().parse_args(arguments)))


def run(flags: argparse.Namespace) -> None:
    """Measures, prints tables, and writes JSON after each group of models."""
    measure.use(flags.device)
    result = measure.header("inference") | {"samples": flags.samples, "precision": flags.precision, "rows": []}
    for task in flags.tasks:
        for heads in flags.heads:
            for batch in flags.batches:
                rows = list(measured(task, heads, batch, flags))
                result["rows"] += rows
                print(table(rows), flush=True)
                if flags.out:
                    flags.out.write_text(json.dumps(result, indent=1) + "\n")


def parser() -> cli.Parser:
    """Returns the parser of the program's flags."""
    parser = cli.Parser(__doc__)
    parser.add_argument(
        "--tasks",
        nargs="*",
        default=list(TASKS),
        choices=TASKS,
        metavar="TASK",
        help=f"whose models: {', '.join(TASKS)}",
    )
    parser.add_argument("--attention", nargs="*", default=MECHANISMS, help="beside dot_product")
    parser.add_argument("--heads", nargs="*", type=cli.count, default=HEADS, help="of the layer")
    parser.add_argument("--batches", nargs="*", type=cli.count, default=(1, 64), help="samples at a time")
    parser.add_argument("--samples", type=cli.count, default=5000, help="of a pass; the last batch is filled up")
    parser.add_argument("--rounds", type=cli.count, default=5, help="of measuring, in which all take turns")
    parser.add_argument("--budget", type=float, default=600.0, help="seconds for one model, three rounds at least")
    parser.add_argument("--precision", default="float32", choices=("float32", "bfloat16"), help="of computing")
    parser.add_argument("--device", default="", choices=measure.DEVICES, help="what jax chooses without it")
    parser.add_argument("--out", type=cli.new_file, help="where the JSON goes")
    return parser


def measured(task: str, heads: int, batch: int, flags: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields the seconds of a pass with each mechanism, and their ratio to dot-product attention."""
    specs = tuple(dict.fromkeys(("dot_product", *flags.attention)))
    passes = {spec: whole_pass(task, spec, heads, batch, flags) for spec in specs}
    times = measure.in_turn(passes, flags.rounds, flags.budget)
    paper = dict(zip(MECHANISMS, PAPER.get(task, {}).get(heads, ()), strict=False))
    for spec in specs:
        yield {
            "task": task,
            "attention": spec,
            "heads": heads,
            "batch": batch,
            "samples": flags.samples,
            "rounds": len(times[spec]),
            "seconds": statistics.median(times[spec]),
            "least": min(times[spec]),
            "greatest": max(times[spec]),
            "ratio": dataclasses.asdict(measure.ratio(times, spec, "dot_product")),
            "paper_seconds": paper.get(spec),
        }


def whole_pass(task: str, spec: str, heads: int, batch: int, flags: argparse.Namespace) -> Callable[[], Any]:
    """Returns a function that runs all samples through a compiled model, one batch after the other."""
    config = config_of(task, spec, heads, flags.precision)
    count = -(-flags.samples // batch)
    network, inputs = TASKS[task](config, count * batch)
    batches = [tuple(x[i * batch : (i + 1) * batch] for x in inputs) for i in range(count)]
    params = jax.jit(network.init)(jax.random.key(0), *batches[0])
    compiled = jax.jit(network.apply).lower(params, *batches[0]).compile()

    def run() -> jax.Array:
        for arrays in batches:
            out = jax.block_until_ready(compiled(params, *arrays))
        return out

    return run


def config_of(task: str, spec: str, heads: int, precision: str) -> Config:
    """Returns the config of a task, with one mechanism in all its layers."""
    plain = loading.load(f"configs/{task}.py:{spec}").to_dict()
    plain["model"]["heads"] = heads
    plain["train"]["precision"] = precision
    return loading.validate(plain)


def images(side: int, channels: int, classes: int) -> Make:
    """Returns a function that makes a model and square images to classify."""

    def make(config: Config, samples: int) -> tuple[nn.Module, Inputs]:
        shape = (side, side, channels)
        model = config.model.build(shape, classes, dtype=jnp.dtype(config.train.precision))
        return model, (jax.random.normal(jax.random.key(1), (samples, *shape)),)

    return make


def texts(vocabulary: int, classes: int) -> Make:
    """Returns a function that makes a model and texts to classify, as long as the config's context."""

    def make(config: Config, samples: int) -> tuple[nn.Module, Inputs]:
        length = config.data.context
        model = config.model.build(vocabulary, classes, length, dtype=jnp.dtype(config.train.precision))
        return model, (_tokens(vocabulary, samples, length), jnp.full(samples, length))

    return make


def pairs(vocabulary: int) -> Make:
    """Returns a function that makes a model and pairs of sentences, as long as the config allows."""

    def make(config: Config, samples: int) -> tuple[nn.Module, Inputs]:
        source, target = config.data.source_length, config.data.target_length
        sizes = (vocabulary, vocabulary, source, target)
        model = config.model.build(*sizes, dtype=jnp.dtype(config.train.precision))
        tokens = [_tokens(vocabulary, samples, length) for length in (source, target)]
        return model, (tokens[0], jnp.full(samples, source), tokens[1])

    return make


def _tokens(vocabulary: int, samples: int, length: int) -> jax.Array:
    return jax.random.randint(jax.random.key(length), (samples, length), 1, vocabulary)


TASKS: dict[str, Make] = {
    "vit_mnist": images(32, 1, 10),
    "vit_cifar100": images(32, 3, 100),
    "classify_imdb": texts(20_000, 2),
    "classify_amazon": texts(20_000, 5),
    "translate_europarl": pairs(15_000),
}


def table(rows: list[dict[str, Any]]) -> str:
    """Returns a row for each model, heads and batch: ratios to dot_product with range, and the paper's in brackets.

    Args:
      rows: Rows that all have the same mechanisms; dot_product is the first of each group.
    """
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["task"], row["heads"], row["batch"], f"{row['samples']:,}"), []).append(row)
    specs = [f"`{row['attention']}`".replace("|", "\\|") for row in next(iter(groups.values()))[1:]]
    titles = ("model", "heads", "batch", "samples", "`dot_product`, s", *(f"{spec}, ×" for spec in specs))
    lines = [
        (*group, f"{base['seconds']:.3f}", *(_ratio(row, base["paper_seconds"]) for row in others))
        for group, (base, *others) in groups.items()
    ]
    return plain_markdown(titles, lines)


def _ratio(row: dict[str, Any], base: float | None) -> str:
    ratio, paper = row["ratio"], row["paper_seconds"]
    span = f"{ratio['median']:.3f}, {ratio['least']:.3f} to {ratio['greatest']:.3f}"
    return f"{span} ({paper / base:.3f})" if paper and base else span


if __name__ == "__main__":
    sys.exit(main())
