"""Losses and accuracies of predicted classes, be they labels or tokens."""

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int


def cross_entropy(logits: Float[Array, "*B C"], labels: Int[Array, "*B"], smoothing: float = 0.0) -> Float[Array, "*B"]:
    """−Σ_c target_c log softmax(logits)_c in nats, with the label's target 1 − smoothing + smoothing/C."""
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    if not smoothing:
        return losses
    uniform = -jnp.mean(jax.nn.log_softmax(logits), axis=-1)
    return (1 - smoothing) * losses + smoothing * uniform


def in_top(logits: Float[Array, "*B C"], labels: Int[Array, "*B"], k: int) -> Float[Array, "*B"]:
    """1 where the label is among the k classes of the highest logits (of equal ones, the first count), else 0."""
    _, best = jax.lax.top_k(logits, min(k, logits.shape[-1]))
    return jnp.any(best == labels[..., None], axis=-1).astype(jnp.float32)


def sums(
    logits: Float[Array, "*B C"], labels: Int[Array, "*B"], weight: Float[Array, "*B"], smoothing: float = 0.0
) -> dict[str, Float[Array, ""]]:
    """What a step adds up of predicted classes: `loss` in nats, `accuracy`, and the `weight` that divides both."""
    return {
        "loss": jnp.sum(cross_entropy(logits, labels, smoothing) * weight),
        "accuracy": jnp.sum(in_top(logits, labels, 1) * weight),
        "weight": jnp.sum(weight),
    }
