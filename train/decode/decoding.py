"""Generation token by token, greedy, sampled or by beam search, with caches, in one compiled program.

`generate` serves every model with `init_caches(batch, max_length)` and `apply(params, tokens, train, caches)`, which
returns logits and the caches of the next call. `translate` serves those with `start(source, lengths, max_length)` in
place of the former and a method `step` in place of the latter.
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
    """Continues each prompt by a number of tokens, or until `end`.

    A continuation depends on its prompt, its place among the prompts and the key, not on the rest of the batch.

    Args:
      model: An unbound model.
      params: Its parameters.
      prompts: The ids of each prompt, at least one; lengths may differ.
      tokens: How many tokens to add to each prompt, at least 1.
      sampling: How tokens are chosen.
      key: Key of the random draws; greedy decoding ignores it.
      end: The id after which a sequence is finished; -1 is none.

    Returns:
      Each prompt with its continuation, int32; `end` is the last id where it was chosen.

    Raises:
      UsageError: A prompt is empty, or sequences are longer than the model's fixed length; the latter is raised while
        the model is traced, before anything is compiled.
    """
    lengths = np.array([len(prompt) for prompt in prompts])
    if tokens < 1:
        raise UsageError(f"At least one token must be asked for, not {tokens}.")
    if not len(prompts) or not lengths.min():
        raise UsageError("Every prompt needs at least one token; say what is to be continued.")
    padded = np.zeros((len(prompts), lengths.max() + tokens), np.int32)
    for row, prompt in zip(padded, prompts, strict=True):
        row[: len(prompt)] = prompt
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, np.arange(len(prompts)))
    drawn, stops = jax.device_get(
        _continue(model, sampling, int(lengths.min()), tokens, params, padded, lengths.astype(np.int32), keys, end)
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
    """Returns all sequences, and the position at which each of them stops.

    One call reads the first tokens of all prompts, all but the last token of the shortest prompt. Then every step reads
    one token of each sequence and writes the next one, unless the prompt gives it. So no prompt needs padding.
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
        prompted = jax.lax.dynamic_index_in_dim(sequences, position, axis=1, keepdims=False)
        chosen = jnp.where(position < lengths, prompted, drawn)
        ended = (chosen == end) & (position >= lengths) & (position < stops)
        sequences = jax.lax.dynamic_update_slice_in_dim(sequences, chosen[:, None], position, axis=1)
        return position + 1, sequences, caches, jnp.where(ended, position + 1, stops)

    start = (jnp.asarray(shortest, jnp.int32), given, caches, lengths + tokens)
    _, sequences, _, stops = jax.lax.while_loop(unfinished, step, start)
    return sequences, stops


@functools.partial(jax.jit, static_argnums=(0, 4))
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
) -> tuple[Translations, Int[Array, ""]]:
    """Returns the translations of sources, and how many steps the longest search took.

    It is compiled once for each shape of sources, so pad them to few shapes.

    Padding is never chosen, nor is the start token unless it is also the end token. A target depends on its source, on
    the key and, if it is sampled, on its place in the batch; padding and the rest of the batch do not change it.

    The result equals that of Hugging Face's `generate` with `num_beams`, `length_penalty`, `early_stopping=False`,
    `max_length=search.max_length + 1` (which counts the start), `bad_words_ids=[[pad]]` and `forced_eos_token_id`, as
    in Marian's generation configs for the last two. A start token that is not the padding is a bad word too.

    Args:
      model: An unbound model.
      params: Its parameters.
      source: Sentences with trailing padding.
      lengths: Number of tokens of each sentence without padding, at least one.
      search: How targets are searched.
      key: Key of the random draws; searches that do not sample ignore it.
      start: The id that the model reads first.
      end: The id after which a target is finished.
      pad: The id of padding after the end.

    Raises:
      UsageError: Sources or targets are longer than the model's fixed length. This is raised while the model is
        traced, before anything is compiled.
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
