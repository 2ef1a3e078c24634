"""DiGiugno's Tables 6, 7 and 8 on this machine: memory and time per sample of GPTs and ViTs with neural attention.

    python -m benchmarks.layers --out=benchmarks/results/layers_cpu.json

The paper measures training, with Neural Attention in the first of 8 (GPT, 1024 tokens) or 12 (ViT, 785 tokens) layers.
This program measures loss and gradient, without dropout and optimizer, with Neural Attention in the first layer and in
all layers.
"""

import argparse
import statistics
import sys
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax

from analysis import measurements
from analysis.tables import plain_markdown
from benchmarks import inference, measure
from models.gpt import GPT
from models.vit import ViT
from train import cli, loading
from train.config.schema import Config
from train.run import workdir

# DiGiugno's figures for whole models in training: GB and ms per sample on the authors' GPU.
PAPER = {
    ("gpt", "dot_product"): (1.0, 5.7),
    ("gpt", "neural(dim=2)|dot_product"): (1.4, 7.8),
    ("gpt", "neural(dim=16)|dot_product"): (4.9, 15.8),
    ("gpt", "neural(dim=None)|dot_product"): (8.7, 48.1),
    ("vit", "dot_product"): (0.7, 5.4),
    ("vit", "neural(dim=2)|dot_product"): (1.1, 6.6),
}
DIMS = ("2", "16", "None")
SPECS = ("dot_product", *(f"neural(dim={dim}){rest}" for dim in DIMS for rest in ("|dot_product", "")))
CONFIGS = {"gpt": "configs/gpt_wikitext103.py", "vit": "configs/vit_cifar_neural.py"}
PLAIN = {"model.embedding_dropout": "0.0", "model.dropout": "0.0", "model.attention_dropout": "0.0"}
VOCABULARY, CONTEXT, CLASSES, SIDE = 28_996, 1024, 10, 224
GB = 1e9


@measurements.program(
    __doc__,
    cli.flag("--models", nargs="*", default=["gpt", "vit"], choices=("gpt", "vit"), help="models to measure"),
    cli.flag("--specs", nargs="*", default=SPECS, help="spec strings"),
    cli.flag("--batch", type=cli.count, default=1, help="number of sequences"),
    cli.flag("--implementation", default="auto", help="implementation of every layer"),
    cli.flag("--remat", default="none", help="none, block or dots"),
    measure.PRECISION,
    measure.rounds(5),
    measurements.DEVICE,
)
def main(flags: argparse.Namespace) -> measurements.Measured:
    """Yields the results of each model."""
    result = {"batch": flags.batch, "remat": flags.remat, "precision": flags.precision}
    for model in flags.models:
        result[model] = list(rows(model, flags))
        yield result, f"\n{model}, {workdir.environment()['devices']}\n\n{table(result[model])}"


def rows(model: str, flags: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields seconds and bytes per sample for each spec, compared with the dot-product model."""
    programs = {spec: program(model, spec, flags) for spec in dict.fromkeys(("dot_product", *flags.specs))}
    calls = {spec: compiled.call for spec, compiled in programs.items()}
    times = measure.in_turn(calls, flags.rounds, budget=120.0)
    base = programs["dot_product"]
    for spec, compiled in programs.items():
        yield {
            "attention": spec,
            "seconds_a_sample": statistics.median(times[spec]) / flags.batch,
            "rounds": len(times[spec]),
            "ratio": measure.ratio(times, spec, "dot_product"),
            "temp_bytes_a_sample": compiled.temp / flags.batch,
            "temp_ratio": compiled.temp / base.temp,
            "planned_bytes": compiled.peak,
            "paper": PAPER.get((model, spec)),
        }


def program(model: str, spec: str, flags: argparse.Namespace) -> measure.Program:
    """Compiles loss and gradient of one batch."""
    given = {"model.implementation": flags.implementation, "model.remat": flags.remat}
    given |= PLAIN | {"train.precision": flags.precision}
    config, _ = loading.resolve(f"{CONFIGS[model]}:{spec}", given)
    network, inputs, labels = {"gpt": _gpt, "vit": _vit}[model](config, flags.batch)
    params = jax.jit(network.init)(jax.random.key(0), inputs)

    def loss(params, inputs, labels):
        logits = network.apply(params, inputs)
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, labels))

    return measure.Program.of(jax.value_and_grad(loss), params, inputs, labels)


def _gpt(config: Config, batch: int) -> tuple[GPT, jax.Array, jax.Array]:
    tokens = jax.random.randint(jax.random.key(1), (batch, CONTEXT), 0, VOCABULARY)
    model = config.model.build(VOCABULARY, CONTEXT, dtype=jnp.dtype(config.train.precision))
    return model, tokens, jnp.roll(tokens, -1, axis=1)


def _vit(config: Config, batch: int) -> tuple[ViT, jax.Array, jax.Array]:
    model, (images,) = inference.images(config, batch, side=SIDE, channels=3, classes=CLASSES)
    return model, images, jnp.zeros(batch, int)


def table(rows: list[dict[str, Any]]) -> str:
    """Tabulates time and memory per sample, ratios to the dot-product model, and the paper's own ratios."""
    titles = ("attention", "ms a sample", "× dot_product", "temp GB a sample", "× dot_product", "paper: ms, GB")
    base = next(row["paper"] for row in rows if row["attention"] == "dot_product")

    def cells(row: dict[str, Any]) -> list[str]:
        paper = ""
        if row["paper"]:
            paper = f"{row['paper'][1] / base[1]:.2f}×, {row['paper'][0] / base[0]:.2f}×"
        time = [f"{1e3 * row['seconds_a_sample']:.1f}", f"{row['ratio']['median']:.2f}"]
        memory = [f"{row['temp_bytes_a_sample'] / GB:.3f}", f"{row['temp_ratio']:.2f}"]
        return [f"`{row['attention']}`".replace("|", "\\|"), *time, *memory, paper]

    return plain_markdown(titles, map(cells, rows))


if __name__ == "__main__":
    sys.exit(main())
