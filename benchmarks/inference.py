"""Hosseini's Table 4 on this machine: seconds for 5,000 samples, for each mechanism in the model of each task.

    python -m benchmarks.inference --out=benchmarks/results/inference_cpu.json

In each round, every mechanism passes over all samples, batch by batch; ratios are to dot-product attention in the same
round. Models are those of the configs with random weights; samples are random and of full length. Translation reads
source and target at once, as in training, and generates nothing. Seconds are those of `--samples`, not scaled up.
"""

import argparse
import functools
import itertools
import statistics
import sys
from collections.abc import Callable, Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from analysis import measurements
from analysis.tables import plain_markdown
from benchmarks import measure
from train import cli, loading
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
            "ratio": measure.ratio(times, spec, "dot_product"),
            "paper_seconds": paper.get(spec),
        }


def whole_pass(task: str, spec: str, heads: int, batch: int, flags: argparse.Namespace) -> Callable[[], Any]:
    """Makes a function that runs all samples through a compiled model, one batch after the other."""
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
    """Makes the config of a task with one mechanism in all layers."""
    overrides = {"model.heads": str(heads), "train.precision": precision}
    return loading.resolve(f"configs/{task}.py:{spec}", overrides)[0]


def images(config: Config, samples: int, *, side: int, channels: int, classes: int) -> tuple[nn.Module, Inputs]:
    """Makes a model and square images to classify."""
    shape = (side, side, channels)
    model = config.model.build(shape, classes, dtype=jnp.dtype(config.train.precision))
    return model, (jax.random.normal(jax.random.key(1), (samples, *shape)),)


def texts(config: Config, samples: int, *, vocabulary: int, classes: int) -> tuple[nn.Module, Inputs]:
    """Makes a model and texts to classify, as long as the config's context."""
    length = config.data.context
    model = config.model.build(vocabulary, classes, length, dtype=jnp.dtype(config.train.precision))
    return model, (_tokens(vocabulary, samples, length), jnp.full(samples, length))


def pairs(config: Config, samples: int, *, vocabulary: int) -> tuple[nn.Module, Inputs]:
    """Makes a model and pairs of sentences, as long as the config allows."""
    lengths = config.data.source_length, config.data.target_length
    model = config.model.build(vocabulary, vocabulary, *lengths, dtype=jnp.dtype(config.train.precision))
    source, target = (_tokens(vocabulary, samples, length) for length in lengths)
    return model, (source, jnp.full(samples, lengths[0]), target)


def _tokens(vocabulary: int, samples: int, length: int) -> jax.Array:
    return jax.random.randint(jax.random.key(length), (samples, length), 1, vocabulary)


TASKS: dict[str, Callable[[Config, int], tuple[nn.Module, Inputs]]] = {
    "vit_mnist": functools.partial(images, side=32, channels=1, classes=10),
    "vit_cifar100": functools.partial(images, side=32, channels=3, classes=100),
    "classify_imdb": functools.partial(texts, vocabulary=20_000, classes=2),
    "classify_amazon": functools.partial(texts, vocabulary=20_000, classes=5),
    "translate_europarl": functools.partial(pairs, vocabulary=15_000),
}


def table(rows: list[dict[str, Any]]) -> str:
    """Writes a row for each model, heads and batch: ratios to dot_product with ranges, and the paper's in brackets.

    Args:
      rows: Rows in groups with the same mechanisms, dot_product first.
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


WHOSE = f"the models' tasks: {', '.join(TASKS)}"


@measurements.program(
    __doc__,
    cli.flag("--tasks", nargs="*", default=list(TASKS), choices=TASKS, metavar="TASK", help=WHOSE),
    cli.flag("--attention", nargs="*", default=MECHANISMS, help="mechanisms besides dot_product"),
    cli.flag("--heads", nargs="*", type=cli.count, default=HEADS, help="numbers of heads"),
    cli.flag("--batches", nargs="*", type=cli.count, default=(1, 64), help="numbers of samples in a batch"),
    cli.flag("--samples", type=cli.count, default=5000, help="samples in a pass; the last batch is filled up"),
    measure.rounds(5),
    cli.flag("--budget", type=float, default=600.0, help="seconds for a model, but at least three rounds"),
    measure.PRECISION,
    measurements.DEVICE,
)
def main(flags: argparse.Namespace) -> measurements.Measured:
    """Yields the seconds of each group of models."""
    result = {"samples": flags.samples, "precision": flags.precision, "rows": []}
    for task, heads, batch in itertools.product(flags.tasks, flags.heads, flags.batches):
        rows = list(measured(task, heads, batch, flags))
        result["rows"] += rows
        yield result, table(rows)


if __name__ == "__main__":
    sys.exit(main())
