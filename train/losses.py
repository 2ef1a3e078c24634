"""Losses and accuracies of predicted classes: labels or tokens."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from attention.parameters import trail
from models.layers.blocks import constrain
from models.layers.output import Output

Measure = Callable[[jax.Array, jax.Array], Any]  # (logits, labels) -> a tree of arrays with a number per label


def cross_entropy(logits: Float[Array, "*B C"], labels: Int[Array, "*B"], smoothing: float = 0.0) -> Float[Array, "*B"]:
    """Computes −Σ_c target_c log softmax(logits)_c in nats; the label's target is 1 − smoothing + smoothing/C."""
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    if not smoothing:
        return losses
    uniform = -jnp.mean(jax.nn.log_softmax(logits), axis=-1)
    return (1 - smoothing) * losses + smoothing * uniform


def in_top(logits: Float[Array, "*B C"], labels: Int[Array, "*B"], k: int) -> Float[Array, "*B"]:
    """Gives 1 where the label is among the k highest logits, else 0. Equal logits rank in the order of classes."""
    _, best = jax.lax.top_k(logits, min(k, logits.shape[-1]))
    return jnp.any(best == labels[..., None], axis=-1).astype(jnp.float32)


def in_nats(
    logits: Float[Array, "*B C"], labels: Int[Array, "*B"], smoothing: float = 0.0
) -> dict[str, Float[Array, "*B"]]:
    """Measures the `loss` of each prediction in nats; with smoothing also the `plain_loss` without it."""
    plain = {"plain_loss": cross_entropy(logits, labels)} if smoothing else {}
    return {"loss": cross_entropy(logits, labels, smoothing)} | plain


def of_classes(
    logits: Float[Array, "*B C"], labels: Int[Array, "*B"], smoothing: float = 0.0
) -> dict[str, Float[Array, "*B"]]:
    """Measures what `in_nats` measures, and the `accuracy` of each prediction."""
    return in_nats(logits, labels, smoothing) | {"accuracy": in_top(logits, labels, 1)}


def of_tokens(measure: Measure, output: Output, labels: Int[Array, "B T"], chunk: int) -> Any:
    """Computes `measure(logits, labels)`, holding the logits of only `chunk` tokens of each sequence at a time.

    The backward pass computes the logits again. A chunk has tokens of all sequences, so the batch stays split over
    devices.

    Args:
      measure: Takes `(B, c, V)` and `(B, c)`; gives a tree of `(B, c)`.
      output: The model's output.
      labels: The class of each token.
      chunk: The tokens of a chunk; 0 takes all, and computes no logits twice.
    """
    if not chunk:
        return measure(output.logits(), labels)
    length = labels.shape[1]
    chunk = min(chunk, length)

    def pieces(x: jax.Array) -> jax.Array:
        """Cuts into chunks `(n, B, c, ...)`, the last padded with zeros."""
        x = jnp.pad(x, ((0, 0), (0, -length % chunk)) + ((0, 0),) * (x.ndim - 2))
        return jnp.moveaxis(x.reshape(len(x), -1, chunk, *x.shape[2:]), 1, 0)

    @functools.partial(jax.checkpoint, prevent_cse=False)
    def one(piece: tuple[jax.Array, jax.Array]) -> Any:
        hidden, labels = piece
        return measure(dataclasses.replace(output, hidden=constrain(hidden)).logits(), labels)

    measures = jax.lax.map(one, (pieces(output.hidden), pieces(labels)))
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1).reshape(len(labels), -1)[:, :length], measures)


def of_examples(
    measures: dict[str, Float[Array, "B ..."]], weight: Float[Array, "B *T"]
) -> dict[str, Float[Array, "B"]]:
    """Sums each example's weighted measures, and its weights as `weight`, which divides the sums.

    A measure `(B,)` is the same for all predictions of an example.
    """
    weighted = {name: trail(x, weight.ndim) * weight for name, x in measures.items()} | {"weight": weight}
    return {name: jnp.sum(values, axis=tuple(range(1, values.ndim))) for name, values in weighted.items()}
