"""Generation with a cache against running the whole context again for each token, and what the cache takes.

    python -m benchmarks.decoding --config.model.width=512 --config.model.heads=8 --out=benchmarks/results/decoding.json

Every mechanism, as a language model of the config, generates from one token to `--length`. Running again takes as many
forward passes of that length, of which a few are timed.
"""

import argparse
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.train_step import environment
from models.gpt import GPT
from models.mechanisms import MECHANISMS
from train import configs
from train.decoding import Sampling, generate
from train.main import parse


def main() -> None:
    """Measures, prints a table and writes JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="configs/gpt_pydoc.py")
    parser.add_argument("--attention", action="append", help="a mechanism; may be given again; all without it")
    parser.add_argument("--length", type=int, default=1024, help="tokens generated, and of the context run again")
    parser.add_argument("--batch", type=int, default=1, help="sequences at a time")
    parser.add_argument("--vocabulary", type=int, default=260)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=None, help="where the JSON goes")
    flags, rest = parser.parse_known_args()
    # A table of positions serves mechanisms without queries and keys too.
    config = configs.resolve(flags.config, {"model.positions": "learned"} | parse(rest)[1])[0].model
    result = {"command": " ".join(["python -m benchmarks.decoding", *sys.argv[1:]]), **environment()}
    result |= {"model": dataclasses.asdict(config), "length": flags.length, "batch": flags.batch, "mechanisms": {}}
    for attention in flags.attention or MECHANISMS:
        model = GPT(dataclasses.replace(config, attention=attention), flags.vocabulary, flags.length)
        result["mechanisms"][attention] = measure(model, flags.batch, flags.rounds)
        print(".", end="", file=sys.stderr, flush=True)
    print("\n".join(_markdown(result)))
    if flags.out:
        flags.out.write_text(json.dumps(result, indent=2) + "\n")


def measure(model: GPT, batch: int, rounds: int) -> dict[str, Any]:
    """Seconds a token of both ways, in turn within each round, and the bytes of all layers' caches."""
    prompts = [np.array([0])] * batch
    params = model.init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))["params"]
    context = jnp.zeros((batch, model.length), jnp.int32)
    again = jax.jit(lambda params, tokens, at: jnp.argmax(model.apply({"params": params}, tokens)[:, at], axis=-1))
    ways = {
        "cached": lambda: generate(model, params, prompts, model.length - 1, Sampling(0), jax.random.key(0)),
        "again": lambda: again(params, context, model.length - 2),
    }
    tokens = {"cached": model.length - 1, "again": 1}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for round_ in range(rounds + 1):
        for name, way in ways.items():
            taken = _timed(way) / tokens[name]
            seconds[name] += [taken] * (round_ > 0)  # the first compiles
    best = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "seconds_per_token": best,
        "tokens_per_second": batch / best["cached"],
        "times_faster": best["again"] / best["cached"],
        "cache_bytes": cache_bytes(model, batch),
    }


def _timed(run: Callable[[], Any]) -> float:
    started = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - started


def cache_bytes(model: GPT, batch: int) -> dict[str, int]:
    """Of all layers, full: what stands for keys, for values, and a running state."""
    caches = model.init_caches(batch, model.length)

    def total(*names: str) -> int:
        return sum(leaf.nbytes for cache in caches for name in names for leaf in jax.tree.leaves(getattr(cache, name)))

    return {"key": total("key"), "value": total("raw", "value"), "state": total("state")}


def _markdown(result: dict[str, Any]) -> Iterator[str]:
    yield "| mechanism | tokens/s | times faster | key KiB | value KiB | state KiB |\n|" + " --- |" * 6
    for name, row in result["mechanisms"].items():
        parts = " | ".join(f"{row['cache_bytes'][part] / 1024:,.0f}" for part in ("key", "value", "state"))
        yield f"| `{name}` | {row['tokens_per_second']:,.0f} | {row['times_faster']:.1f} | {parts} |"


if __name__ == "__main__":
    main()
