"""Tokens one after the other, greedy, sampled or by beam search, with caches, in one compiled program.

`generate` serves every model with `init_caches(batch, max_length)` and `apply(params, tokens, train, caches)`, which
gives logits and the caches of the next call; `translate` those with `start(source, lengths, max_length)` in place of
the former and a method `step` in place of the latter.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from attention.errors import UsageError
from train.decode.sampling import Sampling
from train.decode.search import Search, Special, Translations, one_by_one, with_beams


def generate(
    model: Any,
    params: dict,
    prompts: Sequence[Int[np.ndarray, "_"]],
    tokens: int,
    sampling: Sampling,
    key: Key[Array, ""],
    end: int = -1,
) -> list[np.ndarray]:
    """Continues each prompt by so many tokens, or until `end`.

    A continuation depends on its prompt, its place among the prompts and the key, not on what else is in the batch.

    Args:
      model: Unbound.
      params: Its parameters.
      prompts: Ids, at least one each; lengths may differ.
      tokens: How many to add to each, at least 1.
      sampling: How they are chosen.
      key: Of the draws; greedy needs it as well, and ignores it.
      end: The id after which a sequence is finished; -1 is none.

    Returns:
      Each prompt with its continuation, int32; `end` is the last id where it was drawn.

    Raises:
      UsageError: an empty prompt, or sequences longer than what the model has a fixed length for: while it is
        traced, before anything is compiled.
    """
    lengths = np.array([len(prompt) for prompt in prompts])
    if tokens < 1:
        raise UsageError(f"At least one token must be asked for, not {tokens}.")
    if not len(prompts) or not lengths.min():
        raise UsageError("Every prompt needs at least one token; say what is to be continued.")
    given = np.zeros((len(prompts), lengths.max() + tokens), np.int32)
    for row, prompt in zip(given, prompts, strict=True):
        row[: len(prompt)] = prompt
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, np.arange(len(prompts)))
    drawn, stops = jax.device_get(
        _continue(model, sampling, int(lengths.min()), tokens, params, given, lengths.astype(np.int32), keys, end)
    )
    return [row[:stop] for row, stop in zip(drawn, stops, strict=True)]


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _continue(
    model: Any,
    sampling: Sampling,
    shortest: int,
    tokens: int,
    params: dict,
    given: Int[Array, "B T"],
    lengths: Int[Array, "B"],
    keys: Key[Array, "B"],
    end: Int[Array, ""],
) -> tuple[Int[Array, "B T"], Int[Array, "B"]]:
    """All sequences, and where each of them stops.

    All prompts' first tokens are read at once, as many as the shortest prompt has but its last; then every step reads
    one token of each sequence, and writes the next one where the prompt does not say it. So no prompt needs padding.
    """
    caches = model.init_caches(*given.shape)
    if shortest > 1:
        _, caches = model.apply({"params": params}, given[:, : shortest - 1], False, caches)

    def unfinished(carry: tuple) -> Bool[Array, ""]:
        position, _, _, stops = carry
        return jnp.any(position < stops)

    def step(carry: tuple) -> tuple:
        position, sequences, caches, stops = carry
        last = jax.lax.dynamic_slice_in_dim(sequences, position - 1, 1, axis=1)
        logits, caches = model.apply({"params": params}, last, False, caches)
        drawn = sampling.choose(logits[:, -1], jax.vmap(jax.random.fold_in, (0, None))(keys, position))
        said = jax.lax.dynamic_index_in_dim(sequences, position, axis=1, keepdims=False)
        chosen = jnp.where(position < lengths, said, drawn)
        ended = (chosen == end) & (position >= lengths) & (position < stops)
        sequences = jax.lax.dynamic_update_slice_in_dim(sequences, chosen[:, None], position, axis=1)
        return position + 1, sequences, caches, jnp.where(ended, position + 1, stops)

    start = (jnp.asarray(shortest, jnp.int32), given, caches, lengths + tokens)
    _, sequences, _, stops = jax.lax.while_loop(unfinished, step, start)
    return sequences, stops


def translate(
    model: Any,
    params: dict,
    source: Int[Array, "B S"],
    lengths: Int[Array, "B"],
    search: Search,
    key: Key[Array, ""],
    start: int,
    end: int,
    pad: int,
) -> Translations:
    """The targets of sources; compiled once for each shape of them, so pad to few.

    Start (where it is not the end too) and padding are never chosen. A target depends on its source, its place in the
    batch if it is drawn, and the key, not on padding and what else is in the batch.

    It is what Hugging Face's `generate` gives with `num_beams`, `length_penalty`, `early_stopping=False`,
    `max_length=search.max_length + 1` (the start counts there), `bad_words_ids=[[pad]]` and `forced_eos_token_id`,
    as Marian's generation configs have the last two; where the start is not the padding, it is a bad word too.

    Args:
      model: Unbound.
      params: Its parameters.
      source: Sentences with trailing padding.
      lengths: Real tokens of each, at least one.
      search: How targets are searched.
      key: Of the draws; other searches need it as well, and ignore it.
      start: The id that the model reads first.
      end: The id after which a target is finished.
      pad: The id behind that.

    Raises:
      UsageError: sources or targets longer than what the model has a fixed length for: while it is traced, before
        anything is compiled.
    """
    special = Special(*(jnp.asarray(token, jnp.int32) for token in (start, end, pad)))
    return _translate(model, search, params, source, lengths, key, special)[0]


@functools.partial(jax.jit, static_argnums=(0, 1))
def _translate(
    model: Any,
    search: Search,
    params: dict,
    source: Int[Array, "B S"],
    lengths: Int[Array, "B"],
    key: Key[Array, ""],
    special: Special,
) -> tuple[Translations, Int[Array, ""]]:
    """The targets, and how many steps the longest search took."""
    started = model.apply({"params": params}, source, lengths, search.max_length, method="start")

    def step(tokens: Int[Array, "B"], target: Any) -> tuple[Float[Array, "B V"], Any]:
        caches = dataclasses.replace(started, target=target)
        logits, caches = model.apply({"params": params}, tokens[:, None], False, caches, method="step")
        return logits[:, 0], caches.target

    if search.beams > 1:
        return with_beams(step, started.target, search, special, len(source))
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(len(source)))
    return one_by_one(step, started.target, search, special, keys)
