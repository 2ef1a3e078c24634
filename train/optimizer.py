"""Optimizers by name, all from optax, and the learning rate of a step."""

import difflib
import functools
import re
from collections.abc import Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax
from flax.traverse_util import flatten_dict, path_aware_map
from jax.typing import ArrayLike
from jaxtyping import Float, Int

from attention.errors import UsageError
from train.config.optimizer import OptimizerConfig

DECOUPLED = ("adamw", "lion")
DECAYED = re.compile(r"(kernel|(?<!positions/)embedding)$")  # but not RoBERTa's learned positions


@flax.struct.dataclass
class Rates:
    """The schedule's numbers as arguments of a compiled step, so that one program serves every rate and length."""

    peak: Float[ArrayLike, "*R"]  # highest learning rate
    warmup: Int[ArrayLike, "*R"]  # steps of the linear rise from 0
    total: Int[ArrayLike, "*R"]  # steps of the whole training


def learning_rate(config: OptimizerConfig, rates: Rates, step: Int[ArrayLike, ""]) -> Float[jax.Array, ""]:
    """Computes the learning rate of a step, counted from 0: a linear rise, then the schedule, as in optax."""
    warmup, since = jnp.float32(rates.warmup), jnp.float32(step - rates.warmup)
    done = jnp.clip(since / jnp.maximum(jnp.float32(rates.total) - warmup, 1), 0, 1)
    first = jnp.maximum(warmup, 1)
    after = {
        "constant": lambda: 1.0,
        "cosine": lambda: config.end + (1 - config.end) * 0.5 * (1 + jnp.cos(jnp.pi * done)),
        "linear": lambda: 1 - (1 - config.end) * done,
        "rsqrt": lambda: jnp.sqrt(first / (first + jnp.maximum(since, 0))),
    }[config.schedule]()
    return rates.peak * jnp.where(since < 0, jnp.float32(step) / first, after)


def optimizer(config: OptimizerConfig) -> optax.GradientTransformation:
    """Chains clipping, the named optimizer and its weight decay; the learning rate multiplies the result.

    Its `init` raises a UsageError if a pattern of `freeze` or `rates` matches no parameter, or if all are frozen.
    """
    adam = optax.scale_by_adam(config.beta1, config.beta2, config.epsilon)
    scale = {
        "adam": adam,
        "adamw": adam,
        "lion": optax.scale_by_lion(config.beta1, config.beta2),
        "sgd": optax.trace(config.beta1) if config.beta1 else optax.identity(),
    }[config.name]
    clip = optax.clip_by_global_norm(config.clip) if config.clip else optax.identity()
    decayed = functools.partial(matching, DECAYED)
    decay = optax.add_decayed_weights(config.weight_decay, decayed) if config.weight_decay else optax.identity()
    scale_and_decay = (scale, decay) if config.name in DECOUPLED else (decay, scale)
    rates = (_scaled(config.rates),) if config.rates else ()
    chain = optax.chain(clip, *scale_and_decay, *rates)
    if not config.frozen:
        return chain
    labels = functools.partial(_labels, config.frozen)
    return optax.partition({"trained": chain, "frozen": optax.set_to_zero()}, labels)


def matching(pattern: str | re.Pattern, params: optax.Params) -> optax.Params:
    """Marks with True the leaves whose path a pattern matches; '' matches none."""
    return path_aware_map(lambda path, _: bool(pattern) and bool(re.search(pattern, "/".join(path))), params)


def _labels(pattern: str, params: optax.Params) -> optax.Params:
    frozen = matching(pattern, params)
    check_matched("optimizer.freeze", pattern, frozen)
    if all(jax.tree.leaves(frozen)):
        raise UsageError(
            f"optimizer.freeze={pattern!r} matches all parameters, so nothing would be trained; narrow it."
        )
    return jax.tree.map(lambda is_frozen: "frozen" if is_frozen else "trained", frozen)


def _scaled(rates: Sequence[tuple[str, float]]) -> optax.GradientTransformation:
    """Multiplies updates by the factor of the first pattern that matches their path."""

    def init(params: optax.Params) -> optax.EmptyState:
        for pattern, _ in rates:
            check_matched("optimizer.rates", pattern, matching(pattern, params))
        return optax.EmptyState()

    def scaled(path: tuple, update: jax.Array) -> jax.Array:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        return next((update * factor for pattern, factor in rates if re.search(pattern, name)), update)

    def update(updates: optax.Updates, state: optax.EmptyState, params: Any = None) -> tuple[Any, optax.EmptyState]:
        del params
        return jax.tree_util.tree_map_with_path(scaled, updates), state

    return optax.GradientTransformation(init, update)


def check_matched(field: str, pattern: str, matched: optax.Params) -> None:
    """Refuses a pattern that matches no parameter, and names the parameters with the nearest paths."""
    names = ["/".join(path) for path in flatten_dict(matched)]
    if not any(jax.tree.leaves(matched)):
        near = difflib.get_close_matches(pattern, names, n=5, cutoff=0.0)
        raise UsageError(f"{field} has {pattern!r}, which matches none of the {len(names)} parameters, such as {near}.")
