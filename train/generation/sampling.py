"""The choice of the next token from its logits: the most probable one, or a sample."""

import dataclasses
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from attention.types import Checked, Count, Positive, Sentinel, Share, at_most

BLOCK = 128  # size of the blocks of logits whose maxima `highest` compares first


@dataclasses.dataclass(frozen=True)
class Sampling(Checked):
    """How the next token is chosen from its logits. No option excludes the most probable token.

    They apply in this order: `repetition_penalty` (Keskar et al. 2019, §4.1; for negative logits as Hugging Face does
    it), `temperature`, `top_k`, `top_p` (Holtzman et al. 2020, §3.1) and `min_p` (Nguyen et al. 2025, §3).
    """

    temperature: Annotated[Positive, Sentinel(0, "greedy")] = 1.0  # divides the logits
    top_k: Annotated[Count, Sentinel(0, "all")] = 0  # keeps this many of the most probable tokens
    top_p: Annotated[Positive, at_most(1)] = 1.0  # keeps the most probable tokens that together reach this probability
    min_p: Share = 0.0  # keeps tokens with at least this share of the highest probability
    repetition_penalty: Positive = 1.0  # divides positive logits of tokens that have occurred, multiplies negative ones

    PATH: ClassVar[str] = ""

    def penalised(self, logits: Float[Array, "B V"], tokens: Int[Array, "B T"], seen: Bool[Array, "#B T"]) -> jax.Array:
        """Penalises the logits of tokens that the sequences already have at places that are `seen`."""
        if self.repetition_penalty == 1:
            return logits
        rows = jnp.arange(len(tokens))[:, None]
        repeated = jnp.zeros(logits.shape, bool).at[rows, tokens].max(jnp.broadcast_to(seen, tokens.shape))
        factor = jnp.where(logits > 0, 1 / self.repetition_penalty, self.repetition_penalty)
        return jnp.where(repeated, logits * factor.astype(logits.dtype), logits)

    def filtered(self, logits: Float[Array, "B V"]) -> Float[Array, "B V"]:
        """Sets the logits of tokens that may not be drawn to −∞; the temperature must be above 0."""
        logits = logits.astype(jnp.float32) / self.temperature
        if self.top_k:
            logits = _keep_ranks(logits, jnp.arange(logits.shape[-1])[None, :] < self.top_k)
        if self.top_p < 1:
            probabilities = jax.nn.softmax(jnp.flip(jnp.sort(logits, axis=-1), axis=-1), axis=-1)
            logits = _keep_ranks(logits, jnp.cumsum(probabilities, axis=-1) - probabilities < self.top_p)
        if self.min_p:
            least = jnp.max(logits, axis=-1, keepdims=True) + jnp.log(self.min_p)
            logits = jnp.where(logits >= least, logits, -jnp.inf)
        return logits

    def choose(self, logits: Float[Array, "B V"], keys: Key[Array, "B"]) -> Int[Array, "B"]:
        """Chooses a token for each sequence, with the sequence's own key."""
        if self.temperature == 0:
            return highest(logits, 1)[1][:, 0]
        return jax.vmap(jax.random.categorical)(keys, self.filtered(logits)).astype(jnp.int32)


def _keep_ranks(logits: Float[Array, "B V"], keep: Bool[Array, "#B V"]) -> Float[Array, "B V"]:
    """Sets the logits whose ranks are not kept to −∞; of equal logits, the first has the lower rank."""
    ranks = jnp.argsort(jnp.argsort(-logits, axis=-1, stable=True), axis=-1)
    kept = jnp.take_along_axis(jnp.broadcast_to(keep, logits.shape), ranks, axis=-1)
    return jnp.where(kept, logits, -jnp.inf)


def highest(logits: Float[Array, "R V"], count: int) -> tuple[Float[Array, "R count"], Int[Array, "R count"]]:
    """Computes `jax.lax.top_k`, but faster where V is large: it reads only the blocks with the highest maxima.

    Each of the `count` highest values, ties in order of place, lies in one of the `count` blocks with the highest
    maxima.
    """
    size, width = BLOCK, logits.shape[-1]
    whole = width // size * size
    if width <= size * (count + 1):
        return jax.lax.top_k(logits, count)
    blocks = logits[:, :whole].reshape(-1, whole // size, size).max(axis=-1)
    if whole < width:
        blocks = jnp.concatenate([blocks, logits[:, whole:].max(axis=-1, keepdims=True)], axis=-1)
    chosen = jnp.sort(jax.lax.top_k(blocks, count)[1], axis=-1)
    places = chosen[:, :, None] * size + jnp.arange(size, dtype=chosen.dtype)[None, None]
    places = places.reshape(-1, count * size)
    inside = jnp.take_along_axis(logits, jnp.minimum(places, width - 1), axis=-1, mode="clip")
    values, order = jax.lax.top_k(jnp.where(places < width, inside, -jnp.inf), count)
    return values, jnp.take_along_axis(places, order, axis=-1, mode="clip")
