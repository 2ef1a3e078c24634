"""Generation with a cache, compared with running the whole context again for each token; and the cache's size.

    python -m benchmarks.decoding --config.model.width=512 --config.model.heads=8 --out=benchmarks/results/decoding.json

With each mechanism, a language model starts from one token and generates up to `--length`. Running the context again
takes as many forward passes of that length, of which a few are timed. The result has the median, least and greatest
ratio of the rounds.
"""

import argparse
import dataclasses
import statistics
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from analysis import measurements
from analysis.tables import plain_markdown
from attention.errors import UsageError
from benchmarks import measure
from models.gpt import GPT, GPTConfig
from models.mechanisms import MECHANISMS
from train import cli, loading
from train.generation.decoding import Sampling, generate


@measurements.program(
    __doc__,
    cli.flag("--config", default="configs/gpt_pydoc.py", metavar="FILE[:ARGUMENT]", help="the model"),
    cli.flag("--attention", action="append", help="a mechanism; may be given again; default all"),
    cli.flag("--length", type=cli.count, default=1024, help="tokens that are generated, or in the context run again"),
    cli.flag("--batch", type=cli.count, default=1, help="number of sequences"),
    cli.flag("--vocabulary", type=cli.count, default=260, help="size of the vocabulary"),
    measure.rounds(3),
    cli.OVERRIDES,
)
def main(flags: argparse.Namespace) -> measurements.Measured:
    """Yields the results of all mechanisms."""
    # Learned positions also work for mechanisms without queries and keys.
    config = loading.resolve(flags.config, {"model.positions": "learned"} | flags.overrides)[0].model
    if not isinstance(config, GPTConfig):
        raise UsageError(f"--config={flags.config} is not a language model, so it cannot generate; give one of a GPT.")
    sizes = {"model": dataclasses.asdict(config), "length": flags.length, "batch": flags.batch}
    models = {
        attention: GPT(dataclasses.replace(config, attention=attention), flags.vocabulary, flags.length)
        for attention in flags.attention or MECHANISMS
    }
    for model in models.values():  # refuses all mistakes before anything is measured
        jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
    mechanisms = {attention: measured(model, flags.batch, flags.rounds) for attention, model in models.items()}
    yield sizes | {"mechanisms": mechanisms}, table(mechanisms)


def measured(model: GPT, batch: int, rounds: int) -> dict[str, Any]:
    """Measures both ways in turn, round by round, and counts the bytes of all layers' caches."""
    tokens, prompts = model.length - 1, [np.array([0])] * batch
    params = model.init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))["params"]
    context = jnp.zeros((batch, model.length), jnp.int32)
    again = jax.jit(lambda params, context: jnp.argmax(model.apply({"params": params}, context)[:, -1], axis=-1))
    ways = {
        "cached": lambda: generate(model, params, prompts, tokens, Sampling(temperature=0), jax.random.key(0)),
        "again": lambda: again(params, context),
    }
    times = measure.in_turn(ways, rounds, budget=120.0)
    return {
        "tokens_per_second": batch * tokens / statistics.median(times["cached"]),
        "times_faster": {name: tokens * x for name, x in measure.ratio(times, "again", "cached").items()},
        "cache_bytes": cache_bytes(model, batch),
    }


def cache_bytes(model: GPT, batch: int) -> dict[str, int]:
    """Counts the bytes of all layers' full caches for keys, for values, and for running states."""
    caches = model.init_caches(batch, model.length)

    def total(*names: str) -> int:
        return measure.bytes_of([getattr(cache, name) for cache in caches for name in names])

    return {"key": total("key"), "value": total("raw", "value"), "state": total("state")}


def table(mechanisms: dict[str, Any]) -> str:
    """Tabulates the results; "times faster" is the median of the rounds."""
    titles = ("mechanism", "tokens/s", "times faster", "key KiB", "value KiB", "state KiB")
    return plain_markdown(titles, (_cells(name, row) for name, row in mechanisms.items()))


def _cells(name: str, row: dict[str, Any]) -> tuple[str, ...]:
    sizes = (f"{row['cache_bytes'][kind] / 1024:,.0f}" for kind in ("key", "value", "state"))
    return f"`{name}`", f"{row['tokens_per_second']:,.0f}", f"{row['times_faster']['median']:.1f}", *sizes


if __name__ == "__main__":
    sys.exit(main())
