"""Tokens from a language model, one after the other: greedy or sampled, with caches, in one compiled program.

It serves every model with `init_caches(batch, max_length)` and `apply(params, tokens, train, caches)`, which gives
logits and the caches of the next call.
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


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How the next token is chosen of its logits.

    Attributes:
      temperature: Divides the logits; 0 is greedy, the token of the highest.
      top_k: Only so many of the most probable tokens may be drawn; 0 is all.
      top_p: Only the most probable tokens that together have this probability (Holtzman et al. 2020, §3.1), after
        `temperature` and `top_k`; 1 is all. The most probable one always may.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self):
        if not self.temperature >= 0:
            raise UsageError(f"temperature must be at least 0 (0 is greedy), but it is {self.temperature}.")
        if self.top_k < 0:
            raise UsageError(f"top_k must be at least 0 (0 is all tokens), but it is {self.top_k}.")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top_p must be above 0 and at most 1 (1 is all tokens), but it is {self.top_p}.")

    def filtered(self, logits: Float[Array, "B V"]) -> Float[Array, "B V"]:
        """Logits of the distribution that is drawn from: −∞ for tokens that may not be. For a temperature above 0."""
        logits = logits.astype(jnp.float32) / self.temperature
        if self.top_k:
            logits = _keep_ranks(logits, jnp.arange(logits.shape[-1])[None, :] < self.top_k)
        if self.top_p < 1:
            probabilities = jax.nn.softmax(jnp.flip(jnp.sort(logits, axis=-1), axis=-1), axis=-1)
            logits = _keep_ranks(logits, jnp.cumsum(probabilities, axis=-1) - probabilities < self.top_p)
        return logits

    def choose(self, logits: Float[Array, "B V"], keys: Key[Array, "B"]) -> Int[Array, "B"]:
        """A token for each sequence, with its own key."""
        if self.temperature == 0:
            return jnp.argmax(logits, axis=-1).astype(jnp.int32)
        return jax.vmap(jax.random.categorical)(keys, self.filtered(logits)).astype(jnp.int32)


def _keep_ranks(logits: Float[Array, "B V"], keep: Bool[Array, "#B V"]) -> Float[Array, "B V"]:
    """−∞ for the tokens whose rank by logit `keep` leaves out; of equal ones the first has the lower rank."""
    ranks = jnp.argsort(jnp.argsort(-logits, axis=-1, stable=True), axis=-1)
    kept = jnp.take_along_axis(jnp.broadcast_to(keep, logits.shape), ranks, axis=-1)
    return jnp.where(kept, logits, -jnp.inf)


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
