"""A Llama of 100 M parameters: decoding with a cache and a training step, here and in Hugging Face's transformers.

    python -m benchmarks.llama --against=transformers --out=benchmarks/results/llama_cpu.json
    python -m benchmarks.llama --parts=training --against=transformers --against=transformers_compiled

All contestants have the same random weights and take turns in every round. Decoding is greedy, and compiling is not
counted. Opponents need requirements-parity.txt.
"""

import argparse
import dataclasses
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from analysis import measurements
from analysis.tables import plain_markdown
from benchmarks import measure
from benchmarks.train_step import COMPILED, plain_step
from models.gpt import GPT
from train import cli, loading, losses
from train.config.schema import Config
from train.generation.decoding import Sampling, generate

CONFIG = "configs/gpt_modern_pydoc.py:dot_product(kv_heads=4)"
SIZES = {"model.depth": "12", "model.width": "768", "model.heads": "12", "model.mlp": "2048", "model.dropout": "0.0"}
AGAINST = ("transformers", f"transformers{COMPILED}")
BUDGET = 120.0  # seconds for each contestant

Decode = Callable[[np.ndarray, int], np.ndarray]
Step = Callable[[np.ndarray, np.ndarray], float]


@measurements.program(
    __doc__,
    cli.flag(
        "--against",
        action="append",
        choices=AGAINST,
        help="an opponent; may be given again",
    ),
    cli.flag(
        "--parts", nargs="*", default=["decoding", "training"], choices=("decoding", "training"), help="what to measure"
    ),
    cli.flag("--prompt", type=cli.count, default=16, help="tokens per prompt"),
    cli.flag("--tokens", type=cli.count, default=64, help="tokens decoded after the prompt"),
    cli.flag("--batches", nargs="*", type=cli.count, default=(1, 16), help="numbers of prompts decoded together"),
    cli.flag("--sequences", type=cli.count, default=2, help="sequences in a training step"),
    cli.flag("--length", type=cli.count, default=256, help="tokens per sequence of a training step"),
    cli.flag("--vocabulary", type=cli.count, default=32_000, help="size of the vocabulary"),
    measure.rounds(3),
    cli.OVERRIDES,
)
def main(flags: argparse.Namespace) -> measurements.Measured:
    """Yields the results of decoding, then those of training."""
    others = flags.against or []
    result = measure.with_versions(("torch", "transformers") if others else (), "requirements-parity.txt")
    config, _ = loading.resolve(CONFIG, SIZES | flags.overrides)
    model = config.model.build(flags.vocabulary, max(flags.length, flags.prompt + flags.tokens))
    params = jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))["params"]
    result |= {"model": dataclasses.asdict(config.model), "parameters": sum(x.size for x in jax.tree.leaves(params))}
    if "decoding" in flags.parts:
        result |= {"prompt": flags.prompt, "tokens": flags.tokens, "decoding": []}
        for row in decodings(model, params, flags):
            result["decoding"].append(row)
            yield result, table(result["decoding"][-1:])
    if "training" in flags.parts:
        result["training"] = training(config, model, params, flags)
        yield result, training_table(result["training"])


def decodings(model: GPT, params: dict, flags: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields for each batch the contestants' tokens per second, the opponents' ratios, and the speed of our steps.

    A step writes one token per sequence; its time includes its share of reading the prompts. It reads the bytes of all
    weights; those of the caches, which are fewer, are not counted.
    """
    calls = {"bench": ours(model, params)} | {
        name: twins().decoding_of(twins().loaded(params, model), name.endswith(COMPILED))
        for name in flags.against or ()
    }
    roof, weights = measure.Roof.measured(jnp.float32), measure.bytes_of(params)
    for batch in flags.batches:
        prompts = tokens_of(model, batch, flags.prompt)
        written: dict[str, np.ndarray] = {}
        runs = {name: lambda name=name: written.update({name: calls[name](prompts, flags.tokens)}) for name in calls}  # noqa: B023
        times = measure.in_turn(runs, flags.rounds, BUDGET)
        seconds = measure.medians(times)
        yield {
            "batch": batch,
            "tokens_per_second": {name: batch * flags.tokens / x for name, x in seconds.items()},
            "times_faster": ratios(times),
            "same_tokens": min(float(np.mean(written["bench"] == tokens)) for tokens in written.values()),
            **roof.of_step(seconds["bench"] / flags.tokens, weights, batch),
        }


def twins() -> Any:
    """Imports the module of the opponents, which needs PyTorch."""
    return importlib.import_module("benchmarks.peers.llama_torch")


def tokens_of(model: GPT, batch: int, length: int) -> np.ndarray:
    """Draws random tokens `(batch, length)`."""
    return np.random.default_rng(0).integers(0, model.vocabulary, (batch, length))


def ours(model: GPT, params: dict) -> Decode:
    """Makes our greedy decoding: a function of prompts `(B, T)` and the number of new tokens."""

    def decode(prompts: np.ndarray, tokens: int) -> np.ndarray:
        rows = generate(model, params, list(prompts), tokens, Sampling(temperature=0), jax.random.key(0))
        return np.stack(rows)[:, prompts.shape[1] :]

    return decode


def ratios(times: measure.Times) -> dict[str, measure.Ratio]:
    """Computes each opponent's time as a multiple of ours."""
    return {name: measure.ratio(times, name, "bench") for name in times if name != "bench"}


def training(config: Config, model: GPT, params: dict, flags: argparse.Namespace) -> dict[str, Any]:
    """Measures steps of plain AdamW on the same batch, without dropout: tokens per second, ratios and losses."""
    rate = config.optimizer.learning_rate
    steps = {"bench": step_here(config, model, params)} | {
        name: twins().make_step(params, model, rate, name.endswith(COMPILED)) for name in flags.against or ()
    }
    read = tokens_of(model, flags.sequences, flags.length)
    targets = np.roll(read, -1, axis=1)
    loss_of: dict[str, list[float]] = {name: [] for name in steps}
    runs = {name: lambda name=name: loss_of[name].append(steps[name](read, targets)) for name in steps}
    times = measure.in_turn(runs, flags.rounds, BUDGET)
    return {
        "sequences": flags.sequences,
        "length": flags.length,
        "tokens_per_second": {name: read.size / seconds for name, seconds in measure.medians(times).items()},
        "times_faster": ratios(times),
        "losses": loss_of,
    }


def step_here(config: Config, model: GPT, params: dict) -> Step:
    """Makes our training step: a function of tokens and next tokens, both (B, T), that returns the mean loss."""

    def loss(params: dict, batch: tuple, key: jax.Array | None) -> dict[str, jax.Array]:
        read, targets = batch
        logits = model.apply({"params": params}, read, True, rngs={"dropout": key})
        measures = losses.of_examples(losses.in_nats(logits, targets), jnp.ones(targets.shape))
        return jax.tree.map(jnp.sum, measures)

    take = plain_step(config, loss, params)
    return lambda *arrays: take(tuple(x.astype(np.int32) for x in arrays))


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Tabulates the speed of decoding for each batch."""
    names = list(rows[0]["tokens_per_second"])
    faster = (f"× {name}" for name in names[1:])
    titles = ("batch", *(f"{name}, tokens/s" for name in names), *faster, "ms a step", "weights GB/s")
    return plain_markdown((*titles, "of bandwidth", "of FLOP/s"), map(_cells, rows))


def _cells(row: dict[str, Any]) -> list[str]:
    speeds = (f"{speed:,.1f}" for speed in row["tokens_per_second"].values())
    shares = (f"{100 * row[name]:.0f} %" for name in ("of_bandwidth", "of_flops"))
    figures = (f"{row['milliseconds_a_step']:.1f}", f"{row['gigabytes_per_second']:.1f}", *shares)
    return [str(row["batch"]), *speeds, *map(measure.spread, row["times_faster"].values()), *figures]


def training_table(result: dict[str, Any]) -> str:
    """Tabulates the speed of each contestant's training steps."""
    rows = (
        (name, f"{speed:,.0f}", measure.spread(result["times_faster"].get(name)))
        for name, speed in result["tokens_per_second"].items()
    )
    return plain_markdown(("", "tokens/s", "times as long as the bench"), rows)


if __name__ == "__main__":
    sys.exit(main())
