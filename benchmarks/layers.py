"""DiGiugno's Tables 6, 7 and 8 on this machine: memory and time a sample of whole GPTs and ViTs with neural attention.

    python -m benchmarks.layers --out=benchmarks/results/layers_cpu.json

The paper measures training, with Neural Attention in the first of 8 (GPT, 1024 tokens) or 12 (ViT, 785 tokens) layers.
This program measures loss and gradient, without dropout and optimizer, with it in the first layer and in all layers.
"""

import argparse
import dataclasses
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from analysis.tables import plain_markdown
from benchmarks import measure
from models.gpt import GPT, GPTConfig
from models.vit import ViT, ViTConfig
from train import cli
from train.config import loading

# DiGiugno's whole-model figures: GB and ms a sample, in training, on the authors' GPU.
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
PLAIN = {"embedding_dropout": 0.0, "dropout": 0.0, "attention_dropout": 0.0}
VOCABULARY, CONTEXT, CLASSES, SIDE = 28_996, 1024, 10, 224
GB = 1e9


def parser() -> cli.Parser:
    """Returns the parser of the program's flags."""
    parser = cli.Parser(__doc__)
    parser.add_argument("--models", nargs="*", default=["gpt", "vit"], choices=("gpt", "vit"), help="whose sizes")
    parser.add_argument("--specs", nargs="*", default=SPECS, help="spec strings")
    parser.add_argument("--batch", type=cli.count, default=1, help="sequences at a time")
    parser.add_argument("--implementation", default="auto", help="of every layer")
    parser.add_argument("--remat", default="none", help="none, block or dots")
    parser.add_argument("--precision", default="float32", choices=("float32", "bfloat16"), help="of computing")
    parser.add_argument("--rounds", type=cli.count, default=5, help="of measuring, in which all take turns")
    parser.add_argument("--device", default="", choices=measure.DEVICES, help="what jax chooses without it")
    parser.add_argument("--out", type=cli.new_file, help="where the JSON goes")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program and returns its exit code."""
    return cli.run(lambda: run(parser().parse_args(arguments)))


def run(flags: argparse.Namespace) -> None:
    """Measures, prints tables and writes JSON."""
    measure.use(flags.device)
    result = measure.header("layers") | {"batch": flags.batch, "remat": flags.remat, "precision": flags.precision}
    for model in flags.models:
        result[model] = list(rows(model, flags))
        print(f"\n{model}, {result['devices']}\n\n{table(result[model])}", flush=True)
    if flags.out:
        flags.out.write_text(json.dumps(result, indent=1) + "\n")


def rows(model: str, flags: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields seconds and bytes a sample of every spec, each compared with the dot-product model."""
    programs = {spec: program(model, spec, flags) for spec in dict.fromkeys(("dot_product", *flags.specs))}
    calls = {spec: compiled.call for spec, compiled in programs.items()}
    times = measure.in_turn(calls, flags.rounds, budget=120.0)
    base = programs["dot_product"]
    for spec, compiled in programs.items():
        ratio = measure.ratio(times, spec, "dot_product")
        yield {
            "attention": spec,
            "seconds_a_sample": statistics.median(times[spec]) / flags.batch,
            "rounds": len(times[spec]),
            "ratio": dataclasses.asdict(ratio),
            "temp_bytes_a_sample": compiled.temp / flags.batch,
            "temp_ratio": compiled.temp / base.temp,
            "planned_bytes": compiled.peak,
            "paper": PAPER.get((model, spec)),
        }


def program(model: str, spec: str, flags: argparse.Namespace) -> measure.Program:
    """Compiles loss and gradient of one batch."""
    section = loading.load(CONFIGS[model]).to_dict()
    section["model"] |= PLAIN | {"attention": spec, "implementation": flags.implementation, "remat": flags.remat}
    network, inputs, labels = {"gpt": _gpt, "vit": _vit}[model](loading.validate(section).model, flags)
    params = jax.jit(network.init)(jax.random.key(0), inputs)

    def loss(params, inputs, labels):
        logits = network.apply(params, inputs)
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, labels))

    return measure.Program.of(jax.value_and_grad(loss), params, inputs, labels)


def _gpt(config: GPTConfig, flags: argparse.Namespace) -> tuple[GPT, jax.Array, jax.Array]:
    tokens = jax.random.randint(jax.random.key(1), (flags.batch, CONTEXT), 0, VOCABULARY)
    model = config.build(VOCABULARY, CONTEXT, dtype=jnp.dtype(flags.precision))
    return model, tokens, jnp.roll(tokens, -1, axis=1)


def _vit(config: ViTConfig, flags: argparse.Namespace) -> tuple[ViT, jax.Array, jax.Array]:
    images = jax.random.normal(jax.random.key(1), (flags.batch, SIDE, SIDE, 3))
    model = config.build((SIDE, SIDE, 3), CLASSES, dtype=jnp.dtype(flags.precision))
    return model, images, jnp.zeros(flags.batch, int)


def table(rows: list[dict[str, Any]]) -> str:
    """Returns time and memory a sample, ratios to the dot-product model, and the paper's own ratios."""
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
