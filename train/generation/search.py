"""The search for a target, token by token or with beams, as Hugging Face's `generate` defines it.

Both take `step(tokens, target) -> (logits, target)`, which reads each sentence's last token and returns the logits of
the next one; `target` holds the model's caches of earlier tokens.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from attention.errors import UsageError
from attention.types import Checked, Count, Number
from train.generation.sampling import Sampling, highest

GREEDY = Sampling(temperature=0)
Step = Callable[[Int[Array, "B"], Any], tuple[Float[Array, "B V"], Any]]


@dataclasses.dataclass(frozen=True)
class Search(Checked):
    """How a target is searched for.

    At `max_length` the end is forced, which adds nothing to the log-probability by which a sequence is ranked.
    """

    beams: Count  # K, the number of sequences followed for each sentence; 1 chooses each token by `sampling`
    length_penalty: Number  # p in the rank of ended sequences, log-probability / length ** p; above 0 favours length
    max_length: Count  # longest target in tokens, end included
    min_length: Count = 1  # shortest target in tokens, end included
    sampling: Sampling = GREEDY  # how a single beam chooses; several beams never sample

    PATH: ClassVar[str] = ""

    @classmethod
    def configured(cls, data: Any) -> "Search":
        """Makes the search that the config's section `data` describes."""
        return cls(data.beams, data.length_penalty, data.target_length)

    def __post_init__(self):
        super().__post_init__()
        if self.min_length > self.max_length:
            raise UsageError(f"min_length must be at most max_length={self.max_length}, but it is {self.min_length}.")
        if self.beams > 1 and self.sampling.temperature:
            raise UsageError(
                f"{self.beams} beams are searched, not drawn; choose beams=1 to sample, or a temperature of 0, "
                f"not {self.sampling.temperature}."
            )
        if self.sampling.repetition_penalty != 1:
            raise UsageError(
                f"repetition_penalty={self.sampling.repetition_penalty} is for language models; a translation repeats "
                "what its source repeats, so leave it at 1."
            )

    def allowed(self, logits: Float[Array, "R V"], position: Int[Array, ""], special: "Special") -> jax.Array:
        """Sets the logits of tokens that may not stand at a position to −∞.

        These are the start, padding, the end before `min_length`, and at the last position all tokens but the end.
        """
        token = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 1)
        last = position == self.max_length - 1
        never = (token == special.start) | (token == special.pad) | last
        return jnp.where(jnp.where(token == special.end, position < self.min_length - 1, never), -jnp.inf, logits)


class Special(NamedTuple):
    """The ids of special tokens."""

    start: Int[Array, ""]  # read first
    end: Int[Array, ""]  # finishes a target
    pad: Int[Array, ""]  # follows the end; may be the same as the start or the end


class Translations(NamedTuple):
    """The target of each source."""

    tokens: Int[Array, "B T"]  # without the start; padding follows the end
    lengths: Int[Array, "B"]  # end included
    scores: Float[Array, "B"]  # log-probabilities


def one_by_one(
    step: Step, target: Any, search: Search, special: Special, keys: Key[Array, "B"]
) -> tuple[Translations, Int[Array, ""]]:
    """Chooses each token by `search.sampling` until all sentences end, and counts the steps."""
    batch, most = len(keys), search.max_length

    def unfinished(carry: tuple) -> Bool[Array, ""]:
        position, _, _, (_, lengths, _) = carry
        return jnp.any(position < lengths)

    def choose(carry: tuple) -> tuple:
        position, last, target, (tokens, lengths, scores) = carry
        logits, target = step(last, target)
        step_keys = jax.vmap(jax.random.fold_in, (0, None))(keys, position)
        chosen = search.sampling.choose(search.allowed(logits, position, special), step_keys)
        gained = _log_probabilities(logits, jnp.take_along_axis(logits, chosen[:, None], axis=-1, mode="clip"))[:, 0]
        running = position < lengths
        chosen = jnp.where(running, chosen, special.pad)
        tokens = jax.lax.dynamic_update_slice_in_dim(tokens, chosen[:, None], position, axis=1)
        lengths = jnp.where(running & (chosen == special.end), position + 1, lengths)
        return position + 1, chosen, target, Translations(tokens, lengths, scores + jnp.where(running, gained, 0.0))

    lengths = jnp.full(batch, most, jnp.int32)
    written = Translations(jnp.full((batch, most), special.pad, jnp.int32), lengths, jnp.zeros(batch))
    first = jnp.full(batch, special.start, jnp.int32)
    steps, _, _, final = jax.lax.while_loop(unfinished, choose, (jnp.zeros((), jnp.int32), first, target, written))
    return final, steps


class _Beams(NamedTuple):
    """The state of a beam search between two steps: K running sequences for each sentence, and the best ended ones."""

    position: Int[Array, ""]  # number of tokens in each running sequence
    last: Int[Array, "B K"]  # last token of each
    target: Any  # the model's caches, whose axis of beams comes before that of the batch, as `jax.vmap` needs it
    tokens: Int[Array, "B K T"]
    scores: Float[Array, "B K"]  # log-probabilities, highest first; −∞ stands for no sequence
    ranks: Float[Array, "B K"]  # ranks of the K best ended sequences, highest first; −∞ stands for no sequence
    best: Translations  # the best ended sequence
    open: Bool[Array, "B"]  # whether a better sequence may still be found


def with_beams(
    step: Step, target: Any, search: Search, special: Special, batch: int
) -> tuple[Translations, Int[Array, ""]]:
    """Finds the best sequence with K beams, and counts the steps.

    This is `generate(num_beams=K, early_stopping=False)` of Hugging Face's transformers. Each step takes the 2K best
    continuations of a sentence's beams. Those among the first K that end are ranked by log-probability / length ** p,
    and the K best of all ended sequences are kept. The K best of the others go on. A sentence is finished when its best
    running sequence, ranked at its present length, is below all K ended ones.
    """

    def unfinished(beams: _Beams) -> Bool[Array, ""]:
        return jnp.any(beams.open) & (beams.position < search.max_length)

    beams = jax.lax.while_loop(
        unfinished, lambda beams: _longer(step, search, special, beams), _start(target, search, special, batch)
    )
    return beams.best, beams.position


def _start(target: Any, search: Search, special: Special, batch: int) -> _Beams:
    """Makes beams without tokens; only the first goes on, since all would write the same."""
    k, most = search.beams, search.max_length
    none = jnp.full((batch, k), -jnp.inf)
    padding = jnp.full((batch, k, most), special.pad, jnp.int32)
    return _Beams(
        position=jnp.zeros((), jnp.int32),
        last=jnp.full((batch, k), special.start, jnp.int32),
        target=_on_each(lambda x: jnp.broadcast_to(x[None], (k, *x.shape)), target),
        tokens=padding,
        scores=none.at[:, 0].set(0.0),
        ranks=none,
        best=Translations(padding[:, 0], jnp.zeros(batch, jnp.int32), none[:, 0]),
        open=jnp.ones(batch, bool),
    )


def _longer(step: Step, search: Search, special: Special, beams: _Beams) -> _Beams:
    """Extends every sentence's beams by one token."""
    logits, target = _on_beams(step, beams.last, beams.target)
    k, position, length = search.beams, beams.position, beams.position + 1
    scores, parents, chosen = _continuations(logits, search, special, beams)
    tokens = jax.lax.dynamic_update_slice_in_dim(_of(beams.tokens, parents), chosen[..., None], position, axis=2)
    ended = chosen == special.end

    free = jnp.where(length == search.max_length, _of(beams.scores, parents), scores)
    ranks = jnp.where(ended & beams.open[:, None], free / _penalty(length, search), -jnp.inf)[:, :k]
    better = ranks.max(axis=1) > beams.ranks[:, 0]
    first = jnp.argmax(ranks, axis=1)[:, None]
    ended_best = Translations(
        _of(tokens, first)[:, 0], jnp.full_like(beams.best.lengths, length), _of(scores, first)[:, 0]
    )
    best = jax.tree.map(
        lambda new, old: jnp.where(better.reshape(-1, *(1,) * (old.ndim - 1)), new, old), ended_best, beams.best
    )
    ranks, _ = jax.lax.top_k(jnp.concatenate([beams.ranks, ranks], axis=1), k)

    scores, kept = jax.lax.top_k(jnp.where(ended, -jnp.inf, scores), k)
    parents = _of(parents, kept)
    return _Beams(
        position=length,
        last=_of(chosen, kept),
        target=_on_each(lambda x: _of(x, parents.T, axis=0), target),
        tokens=_of(tokens, kept),
        scores=scores,
        ranks=ranks,
        best=best,
        open=beams.open & (scores[:, 0] / _penalty(length, search) > ranks[:, -1]),
    )


def _on_beams(step: Step, last: Int[Array, "B K"], target: Any) -> tuple[Float[Array, "K B V"], Any]:
    """Takes a step with all beams, which share scalars, such as the length of a cache."""
    leaves, structure = jax.tree.flatten(target)
    axes = [0 if leaf.ndim else None for leaf in leaves]

    def on_one(last: Int[Array, "B"], leaves: list[jax.Array]) -> tuple[Float[Array, "B V"], list[jax.Array]]:
        logits, target = step(last, jax.tree.unflatten(structure, leaves))
        return logits, jax.tree.leaves(target)

    logits, leaves = jax.vmap(on_one, in_axes=(1, axes), out_axes=(0, axes))(last, leaves)
    return logits, jax.tree.unflatten(structure, leaves)


def _continuations(
    logits: Float[Array, "K B V"], search: Search, special: Special, beams: _Beams
) -> tuple[Float[Array, "B C"], Int[Array, "B C"], Int[Array, "B C"]]:
    """Chooses each sentence's C = 2K best continuations, best first: log-probabilities, beams and tokens."""
    k, batch, size = logits.shape
    count = min(2 * k, size)
    rows = logits.reshape(-1, size)
    values, tokens = highest(search.allowed(rows, beams.position, special), count)
    values = _log_probabilities(rows, values)
    values, tokens = (x.reshape(k, batch, count).swapaxes(0, 1) for x in (values, tokens))
    scores, places = jax.lax.top_k((values + beams.scores[..., None]).reshape(batch, -1), 2 * k)
    return scores, places // count, _of(tokens.reshape(batch, -1), places)


def _log_probabilities(logits: Float[Array, "R V"], values: Float[Array, "R M"]) -> Float[Array, "R M"]:
    """Computes the log-probabilities, in the softmax of all logits, of some of them."""
    return values - jax.nn.logsumexp(logits, axis=-1, keepdims=True)


def _penalty(length: Int[Array, ""], search: Search) -> Float[Array, ""]:
    return length.astype(jnp.float32) ** search.length_penalty


def _of(x: Float[Array, "B K ..."], which: Int[Array, "B M"], axis: int = 1) -> Float[Array, "B M ..."]:
    """Selects some of each sentence's beams along the axis of beams."""
    return jnp.take_along_axis(x, which.reshape(*which.shape, *(1,) * (x.ndim - 2)), axis=axis, mode="clip")


def _on_each(function: Callable[[jax.Array], jax.Array], target: Any) -> Any:
    """Applies a function to all arrays except scalars, which all sentences share."""
    return jax.tree.map(lambda x: function(x) if x.ndim else x, target)
