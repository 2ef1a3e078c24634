"""A Marian of opus-mt's size: sentences and training tokens per second, here and in Hugging Face's transformers.

    python -m benchmarks.marian --against=transformers --rounds=5 --out=benchmarks/results/translation_cpu.json

Both have the same random weights and take turns in every round. The program also compares beam search with and without
caches, and Sanger's model with `gaussian` and with `dot_product`.
"""

import argparse
import dataclasses
import functools
import importlib
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from analysis import measurements
from analysis.tables import plain_markdown
from benchmarks import measure
from benchmarks.train_step import plain_step
from models.encoder_decoder import EncoderDecoder
from models.published import pretrained
from train import cli, loading, losses
from train.config.schema import Config
from train.generation.decoding import translate
from train.generation.search import Search, Special, with_beams

CONFIG, PROJECTION = "configs/translate_iwslt.py", "configs/translate_anki.py"
BATCHES, BEAMS = (1, 16), (1, 4)
BUDGET = 300.0  # seconds for each contestant


@dataclasses.dataclass(frozen=True)
class Marian:
    """The model of the comparison.

    Attributes:
      config: The config of the model.
      model: The unbound model.
      params: Its random parameters.
      source: Number of tokens in a source sentence.
    """

    config: Config
    model: EncoderDecoder
    params: dict
    source: int

    @property
    def special(self) -> dict[str, int]:
        """The special ids, as in opus-mt: start and padding are the last id of the vocabulary."""
        last = self.model.target_vocabulary - 1
        return {"start": last, "end": 0, "pad": last}

    def sentences(self, batch: int) -> np.ndarray:
        """Draws sources `(B, S)` of random words."""
        return np.random.default_rng(0).integers(1, self.model.source_vocabulary - 1, (batch, self.source))

    def lengths(self, batch: int) -> np.ndarray:
        """Makes the lengths of these sources."""
        return np.full(batch, self.source, np.int32)

    def decoder_bytes(self) -> int:
        """Counts the bytes of weights that a step reads: decoder and output, but not the sources' keys and values."""
        decoder = [layer for name, layer in self.params.items() if name.startswith("decoder_")]
        sources = [block["cross"][name] for block in decoder for name in ("key", "value")]
        output = [layer for name, layer in self.params.items() if name in ("embed", "head_bias")]
        return measure.bytes_of(decoder) - measure.bytes_of(sources) + measure.bytes_of(output)


@measurements.program(
    __doc__,
    cli.flag("--against", choices=["transformers"], help="the opponent, from requirements-parity.txt; default none"),
    cli.flag("--source", type=cli.count, default=32, help="tokens in a source, and in a target in training"),
    cli.flag("--tokens", type=cli.count, default=64, help="exact number of tokens in every target of a search"),
    cli.flag("--again", type=cli.count, default=128, help="tokens in the target of the search without caches"),
    cli.flag("--vocabulary", type=cli.count, default=58_101, help="size of the vocabulary"),
    measure.rounds(5),
    cli.OVERRIDES,
)
def main(flags: argparse.Namespace) -> measurements.Measured:
    """Yields the results of searches, training and projection attention."""
    packages = ("torch", flags.against) if flags.against else ()
    result = measure.with_versions(packages, "requirements-parity.txt")
    marian = build(loading.resolve(CONFIG, {"model.pretrained": ""} | flags.overrides)[0], flags)
    result |= {"model": dataclasses.asdict(marian.config.model), "tokens": flags.tokens}
    with tempfile.TemporaryDirectory() as folder:
        theirs = f"{folder}/marian" if flags.against else ""
        if theirs:
            pretrained.export(theirs, marian.model.config, marian.params, marian.special, marian.model.source_length)
        result["searches"] = list(searches(marian, theirs, flags))
        result["again"] = again(marian, flags)
        result["training"] = training(marian, theirs, flags)
    result["projection"] = projection(flags.overrides, flags)
    yield result, markdown(result)


def build(config: Config, flags: argparse.Namespace) -> Marian:
    """Builds the model with random weights."""
    longest = max(flags.source, flags.tokens, flags.again)
    lengths = dataclasses.replace(config.data, source_length=longest, target_length=longest, buckets="")
    config = dataclasses.replace(config, data=lengths)
    return Marian(config, *initialised(config, flags.vocabulary, longest, longest), flags.source)


def initialised(config: Config, vocabulary: int, *lengths: int) -> tuple[EncoderDecoder, dict]:
    """Makes a model for the longest source and target, and its random parameters."""
    model = config.model.build(vocabulary, vocabulary, *lengths, dtype=jnp.dtype(config.train.precision))
    ones = jnp.ones((1, 2), jnp.int32)
    return model, jax.jit(model.init)(jax.random.key(0), ones, jnp.array([2]), ones)["params"]


def searches(marian: Marian, theirs: str, flags: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields the seconds, their ratio, and the speed of our steps, for greedy and beam search of each batch.

    A step reads the bytes of the weights; those of the caches, which are fewer, are not counted.
    """
    roof = measure.Roof.measured(jnp.float32)
    calls = {"bench": _our_search(marian)}
    if theirs:
        calls["transformers"] = importlib.import_module("benchmarks.peers.marian_torch").make_search(theirs)
    weights = marian.decoder_bytes()
    for beams in BEAMS:
        for batch in BATCHES:
            source = marian.sentences(batch)
            runs = {name: functools.partial(call, source, beams, flags.tokens) for name, call in calls.items()}
            times = measure.in_turn(runs, flags.rounds, BUDGET)
            seconds = measure.medians(times)
            yield {
                "beams": beams,
                "batch": batch,
                "sentences_per_second": {name: batch / x for name, x in seconds.items()},
                "times_faster": measure.ratio(times, "transformers", "bench"),
                "same_tokens": _same(runs),
                **roof.of_step(seconds["bench"] / flags.tokens, weights, batch * beams),
            }


def _our_search(marian: Marian) -> Callable[[np.ndarray, int, int], np.ndarray]:
    def search(source: np.ndarray, beams: int, tokens: int) -> np.ndarray:
        how, key = Search(beams, 1.0, tokens, min_length=tokens), jax.random.key(0)
        arrays = source.astype(np.int32), marian.lengths(len(source))
        return np.asarray(translate(marian.model, marian.params, *arrays, how, key, **marian.special)[0].tokens)

    return search


def _same(calls: dict[str, Callable[[], np.ndarray]]) -> float:
    """Computes the mean share of tokens in which the other searches agree with the first."""
    first, *others = (call() for call in calls.values())
    return float(np.mean([np.mean(first == targets) for targets in others])) if others else 1.0


def again(marian: Marian, flags: argparse.Namespace) -> dict[str, Any]:
    """Measures beam search of one sentence with caches, and the same search that keeps only the tokens."""
    source, beams = marian.sentences(1).astype(np.int32), BEAMS[-1]
    search = Search(beams, 1.0, flags.again, min_length=flags.again)
    special = Special(*(jnp.asarray(marian.special[name], jnp.int32) for name in Special._fields))

    def apply(params: dict, *arrays: Any, method: str) -> Any:
        return marian.model.apply({"params": params}, *arrays, method=method)

    @jax.jit
    def uncached(params: dict, source: jax.Array, lengths: jax.Array) -> jax.Array:
        memory, state = apply(params, source, lengths, method="encode")

        def step(last: jax.Array, before: tuple) -> tuple:
            position, tokens = before
            tokens = jax.lax.dynamic_update_slice_in_dim(tokens, last[:, None], position, axis=1)
            output, _ = apply(params, tokens, memory, False, state, method="decode")
            return jnp.take(output.logits(), position, axis=1), (position + 1, tokens)

        nothing = jnp.zeros((), jnp.int32), jnp.zeros((len(source), flags.again), jnp.int32)
        return with_beams(step, nothing, search, special, len(source))[0].tokens

    cached = _our_search(marian)
    runs = {
        "cached": lambda: cached(source, beams, flags.again),
        "again": lambda: np.asarray(uncached(marian.params, source, marian.lengths(1))),
    }
    times = measure.in_turn(runs, min(flags.rounds, 3), BUDGET)
    return {
        "tokens": flags.again,
        "seconds": measure.medians(times),
        "times_faster": measure.ratio(times, "again", "cached"),
        "same_tokens": _same(runs),
    }


def training(marian: Marian, theirs: str, flags: argparse.Namespace) -> dict[str, Any]:
    """Measures source and target tokens per second in steps of 16 sentences, with the losses of all steps."""
    batch, source = BATCHES[-1], marian.sentences(BATCHES[-1])
    target = np.roll(source, 1, axis=0)
    read = np.concatenate([np.full((batch, 1), marian.special["start"]), target[:, :-1]], axis=1)
    steps = {"bench": _step(marian.config, marian.model, marian.params, source, read, target)}
    if theirs:
        rate = marian.config.optimizer.learning_rate
        step = importlib.import_module("benchmarks.peers.marian_torch").make_step(theirs, marian.source, rate)
        pairs = np.concatenate([source, read], axis=1)
        steps["transformers"] = lambda: step(pairs, target)
    loss_of: dict[str, list[float]] = {name: [] for name in steps}
    runs = {name: lambda name=name: loss_of[name].append(steps[name]()) for name in steps}
    times = measure.in_turn(runs, flags.rounds, BUDGET)
    return {
        "tokens_per_second": {name: 2 * source.size / x for name, x in measure.medians(times).items()},
        "times_faster": measure.ratio(times, "transformers", "bench"),
        "losses": loss_of,
    }


def projection(overrides: dict[str, str], flags: argparse.Namespace) -> dict[str, Any]:
    """Measures seconds per training step of Sanger's model, with projection attention and with dot products."""
    runs = {}
    for attention in ("dot_product", "gaussian"):
        config = loading.resolve(f"{PROJECTION}:{attention}", overrides)[0]
        size, data = min(flags.vocabulary, 15_000), config.data
        model, params = initialised(config, size, data.source_length, data.target_length)
        draw = np.random.default_rng(0).integers(1, size, (2, data.batch_size, data.target_length))
        runs[attention] = _step(config, model, params, draw[0], draw[1], draw[1])
    times = measure.in_turn(runs, 2 * flags.rounds + 1, BUDGET)
    return {
        "seconds": measure.medians(times),
        "gaussian_over_dot_product": measure.ratio(times, "gaussian", "dot_product"),
        "paper": 129 / 174,
    }


def _step(
    config: Config, model: EncoderDecoder, params: dict, source: np.ndarray, read: np.ndarray, target: np.ndarray
) -> Callable[[], float]:
    """Makes a call that takes a config's training step on the same batch and returns the mean loss."""

    def loss(params: dict, batch: tuple, key: jax.Array | None) -> dict[str, jax.Array]:
        logits = model.apply({"params": params}, *batch[:3], True, rngs={"dropout": key})
        measures = losses.of_examples(losses.of_classes(logits, batch[3]), jnp.ones(batch[3].shape))
        return jax.tree.map(jnp.sum, measures)

    lengths = np.full(len(source), source.shape[1])
    take, batch = plain_step(config, loss, params), tuple(x.astype(np.int32) for x in (source, lengths, read, target))
    return lambda: take(batch)


def markdown(result: dict[str, Any]) -> str:
    """Writes the results as a table and sentences."""
    again, training, projection = (result[name] for name in ("again", "training", "projection"))
    speed = ", ".join(f"{name} {value:,.0f}" for name, value in training["tokens_per_second"].items())
    cache, gaussian = measure.spread(again["times_faster"]), measure.spread(projection["gaussian_over_dot_product"])
    lines = [
        f"Cached beam search of {again['tokens']} tokens: {cache} times as fast as uncached",
        f"Training tokens/s: {speed}; times faster: {measure.spread(training['times_faster'])}",
        f"gaussian / dot_product: {gaussian}, Sanger: {projection['paper']:.2f}",
    ]
    return "\n\n".join([table(result["searches"]), *lines])


def table(searches: Sequence[dict[str, Any]]) -> str:
    """Writes the speed of translation, a row for each number of beams and of sentences."""
    titles = ("beams", "batch", *searches[0]["sentences_per_second"], "times faster", "ms a step")
    return plain_markdown((*titles, "weights GB/s", "of bandwidth", "of FLOP/s"), map(_cells, searches))


def _cells(row: dict[str, Any]) -> list[str]:
    speeds = (f"{value:.2f}" for value in row["sentences_per_second"].values())
    shares = (f"{100 * row[name]:.0f} %" for name in ("of_bandwidth", "of_flops"))
    figures = (f"{row['milliseconds_a_step']:.1f}", f"{row['gigabytes_per_second']:.0f}", *shares)
    return [str(row["beams"]), str(row["batch"]), *speeds, measure.spread(row["times_faster"]), *figures]


if __name__ == "__main__":
    sys.exit(main())
