"""Generation token by token with caches, in compiled programs: greedy, sampled or by beam search.

`generate` needs a model with `init_caches(batch, max_length)` and `apply(params, tokens, train, caches)`, which returns
logits and the caches of the next call. `translate` needs `start(source, lengths, max_length)` in place of the former
and the method `step` in place of the latter.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from attention.errors import UsageError
from models.transducer import Source
from train.generation.sampling import Sampling
from train.generation.search import Search, Special, Translations, one_by_one, with_beams

WATCHED = 8  # tokens drawn between two calls of a watch
Watch = Callable[[list[np.ndarray]], Sequence[bool]]


def generate(
    model: Any,
    params: dict,
    prompts: Sequence[Int[np.ndarray, "_"]],
    tokens: int,
    sampling: Sampling,
    keys: Key[Array, "B"] | Key[Array, ""],
    end: int = -1,
    watch: Watch | None = None,
) -> list[np.ndarray]:
    """Continues each prompt by a number of tokens, or until the token `end`, which is included.

    A continuation depends on its prompt and its key, not on the rest of the batch. Where a model has a fixed length
    that is too short, a UsageError is raised before anything is compiled.

    Args:
      keys: A key for each prompt, or one key, into which the prompts' numbers are folded.
      watch: Called with all sequences after every 8 tokens; tells which of them are finished.
    """
    lengths = np.array([len(prompt) for prompt in prompts], np.int32)
    if tokens < 1:
        raise UsageError(f"At least one token must be asked for, not {tokens}.")
    if not len(prompts) or not lengths.min():
        raise UsageError("Every prompt needs at least one token; give some text to continue.")
    padded = np.zeros((len(prompts), lengths.max() + tokens), np.int32)
    for row, prompt in zip(padded, prompts, strict=True):
        row[: len(prompt)] = prompt
    keys = keys if keys.ndim else folded(keys, range(len(prompts)))
    drawn = _begin(model, int(lengths.min()), params, padded, lengths + np.int32(tokens))
    while True:
        until = drawn.position + WATCHED if watch else padded.shape[1]
        drawn = _draw(model, sampling, params, drawn, lengths, keys, end, until)
        position, sequences, stops = jax.device_get((drawn.position, drawn.sequences, drawn.stops))
        rows = [row[: min(stop, position)] for row, stop in zip(sequences, stops, strict=True)]
        if watch:
            stops = np.where(watch(rows), np.minimum(stops, position), stops)
        if position >= stops.max():
            return rows
        drawn = drawn._replace(stops=jnp.asarray(stops))


def folded(key: Key[Array, ""], numbers: Sequence[int]) -> Key[Array, "B"]:
    """Folds each number into a key."""
    return jax.vmap(jax.random.fold_in, (None, 0))(key, np.asarray(numbers))


class Drawn(NamedTuple):
    """Sequences that are being drawn."""

    position: Int[Array, ""]  # how many tokens each has, unless its prompt is longer
    sequences: Int[Array, "B T"]  # prompts and drawn tokens
    caches: Any  # those of all tokens but the last
    stops: Int[Array, "B"]  # the position at which each stops


@functools.partial(jax.jit, static_argnums=(0, 1))
def _begin(model: Any, shortest: int, params: dict, given: Int[Array, "B T"], stops: Int[Array, "B"]) -> Drawn:
    """Reads as many tokens of all prompts in one call as the shortest prompt has, less one."""
    caches = model.init_caches(*given.shape)
    if shortest > 1:
        _, caches = model.apply({"params": params}, given[:, : shortest - 1], False, caches)
    return Drawn(jnp.asarray(shortest, jnp.int32), given, caches, stops)


@functools.partial(jax.jit, static_argnums=(0, 1), donate_argnums=3)
def _draw(
    model: Any,
    sampling: Sampling,
    params: dict,
    drawn: Drawn,
    lengths: Int[Array, "B"],
    keys: Key[Array, "B"],
    end: Int[Array, ""],
    until: Int[Array, ""],
) -> Drawn:
    """Draws up to a position, or until all sequences stop.

    Every step reads a token of each sequence and chooses the next, unless the prompt has it, so none needs padding.
    """

    def unfinished(drawn: Drawn) -> Bool[Array, ""]:
        return jnp.any(drawn.position < drawn.stops) & (drawn.position < until)

    def step(drawn: Drawn) -> Drawn:
        position, sequences, caches, stops = drawn
        last = jax.lax.dynamic_slice_in_dim(sequences, position - 1, 1, axis=1)
        logits, caches = model.apply({"params": params}, last, False, caches)
        seen = jnp.arange(sequences.shape[1])[None] < position
        logits = sampling.penalised(logits[:, -1], sequences, seen)
        chosen = sampling.choose(logits, jax.vmap(jax.random.fold_in, (0, None))(keys, position))
        prompted = jax.lax.dynamic_index_in_dim(sequences, position, axis=1, keepdims=False)
        chosen = jnp.where(position < lengths, prompted, chosen)
        ended = (chosen == end) & (position >= lengths) & (position < stops)
        sequences = jax.lax.dynamic_update_slice_in_dim(sequences, chosen[:, None], position, axis=1)
        return Drawn(position + 1, sequences, caches, jnp.where(ended, position + 1, stops))

    return jax.lax.while_loop(unfinished, step, drawn)


@functools.partial(jax.jit, static_argnums=(0, 4))
def translate(
    model: Any,
    params: dict,
    source: Source,
    lengths: Int[Array, "B"] | None,
    search: Search,
    key: Key[Array, ""],
    start: int,
    end: int,
    pad: int,
) -> tuple[Translations, Int[Array, ""]]:
    """Searches for the translation of each source, and counts the steps of the longest search.

    It is compiled once for each shape of sources, so pad them to few shapes. Where sources or targets are longer than
    the model's fixed length, a UsageError is raised while the model is traced.

    Padding is never chosen, nor is the start token unless it is also the end token. A target depends on its source, on
    the key and, if it is sampled, on its place in the batch; padding and the rest of the batch do not change it.

    The result equals that of Hugging Face's `generate` with `num_beams`, `length_penalty`, `early_stopping=False`,
    `max_length=search.max_length + 1` (which counts the start), `bad_words_ids=[[pad]]` and `forced_eos_token_id`, the
    last two as in Marian's generation configs. A start token that is not the padding is a bad word too.

    Args:
      source: Sentences with trailing padding, or images.
      lengths: The lengths of sentences without padding; None for images.
    """
    special = Special(*(jnp.asarray(token, jnp.int32) for token in (start, end, pad)))
    started = model.apply({"params": params}, source, lengths, search.max_length, method="start")

    def step(tokens: Int[Array, "B"], target: Any) -> tuple[Float[Array, "B V"], Any]:
        caches = dataclasses.replace(started, target=target)
        logits, caches = model.apply({"params": params}, tokens[:, None], False, caches, method="step")
        return logits[:, 0], caches.target

    if search.beams > 1:
        return with_beams(step, started.target, search, special, len(source))
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(len(source)))
    return one_by_one(step, started.target, search, special, keys)
