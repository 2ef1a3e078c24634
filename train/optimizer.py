"""Optimizers by name, all from optax, and the learning rate of a step."""

import dataclasses
import difflib
import functools
import re
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import flax.struct
import jax
import jax.numpy as jnp
import optax
from flax.traverse_util import flatten_dict, path_aware_map
from jax.typing import ArrayLike
from jaxtyping import Float, Int

from attention.errors import UsageError
from attention.types import Checked, Decay, Names, NotNegative, Pattern, Positive, Reader, Sentinel, compiled, shown
from models.fields import field
from models.surgery import low_rank
from train.config.durations import Length

DECOUPLED = ("adamw", "lion")
_FASTEST = 1e6  # the highest factor of a learning rate
DECAYED = re.compile(r"(kernel|(?<!positions/)embedding)$")  # RoBERTa's learned positions are an embedding too


def _check_rates(rates: tuple, path: str) -> None:
    for rate in rates:
        if not (
            isinstance(rate, tuple) and tuple(map(type, rate)) in ((str, float), (str, int)) and 0 < rate[1] <= _FASTEST
        ):
            raise UsageError(
                f"{path} must be pairs of a regular expression and a factor above 0, at most {_FASTEST:g}, such as "
                f"(('embed', 0.1),), but it has {shown(rate)}; optimizer.freeze is for what is not trained."
            )
        compiled(rate[0], path)


@dataclasses.dataclass(frozen=True)
class OptimizerConfig(Checked):
    """The optimizer, its schedule and its regularisation."""

    name: Annotated[str, Names(("adam", "adamw", "lion", "sgd"))] = field("adamw", "Which optimizer it is.")
    learning_rate: NotNegative = field(1e-3, "The highest of the schedule.")
    schedule: Annotated[str, Names(("constant", "cosine", "linear", "rsqrt"))] = field(
        "cosine", "After the warm-up; `rsqrt` is 1/√step, from the warm-up's end."
    )
    warmup: Length = field("100 steps", "Of the linear rise from 0.")
    end: NotNegative = field(0.0, "What cosine and linear end at, as a fraction of `learning_rate`.")
    weight_decay: NotNegative = field(
        0.1,
        "On matrices only (kernels and embeddings; no bias, norm or position). Decoupled in adamw and lion; added to "
        "the gradient, as L2 regularisation, in adam and sgd.",
    )
    clip: Annotated[Positive, Sentinel(0, "off")] = field(1.0, "Highest global norm of the gradient.")
    beta1: Decay = field(0.9, "Decay of the first moment (adam, adamw, lion) or momentum (sgd).")
    beta2: Decay = field(0.99, "Decay of the second moment (adam, adamw, lion).")
    epsilon: NotNegative = field(1e-8, "Of adam and adamw.")
    freeze: Annotated[Pattern, Sentinel("", "none")] = field(
        "",
        "A regular expression; parameters with a match in their path, such as `block_0/attention/query/kernel`, keep "
        "their values, and take no memory of the optimizer.",
    )
    lora: Annotated[str, Sentinel("", "none"), Reader(low_rank.parse)] = field(
        "",
        "Low-rank additions to kernels, which alone are trained, such as `lora(rank=8, alpha=16.0, "
        "on='attention/(query|value)/kernel')`; `on` is a regular expression, and so is `also`, of further parameters "
        "that are trained whole.",
    )
    rates: Annotated[tuple, Sentinel((), "1 for all"), Reader(_check_rates)] = field(
        (),
        "Factors of the learning rate by regular expression, such as `(('embed', 0.1), ('block_[0-5]/', 0.5))`; for a "
        "parameter, the first match in its path counts. They scale decoupled weight decay too.",
    )

    PATH: ClassVar[str] = "optimizer."

    def __post_init__(self):
        super().__post_init__()
        if self.lora and self.freeze:
            raise UsageError("optimizer.lora trains its additions and also='REGEX' alone; leave out optimizer.freeze.")

    @property
    def frozen(self) -> str:
        """A regular expression of the parameters that are not trained; '' for none."""
        lora = low_rank.parse(self.lora)
        return lora.frozen if lora else self.freeze


@flax.struct.dataclass
class Rates:
    """What a compiled step takes of the schedule, so that one program serves every rate and length.

    Attributes:
      peak: The highest learning rate.
      warmup: The steps of the linear rise from 0.
      total: The steps of the whole training.
    """

    peak: Float[ArrayLike, "*R"]
    warmup: Int[ArrayLike, "*R"]
    total: Int[ArrayLike, "*R"]


def learning_rate(config: OptimizerConfig, rates: Rates, step: Int[ArrayLike, ""]) -> Float[jax.Array, ""]:
    """Computes the learning rate of a step, from 0 on: a linear rise, then the config's schedule, as in optax."""
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


def decay_mask(params: optax.Params) -> optax.Params:
    """Marks the leaves that weight decay applies to, kernels and embeddings, with True."""
    return matching(DECAYED, params)


def optimizer(config: OptimizerConfig) -> optax.GradientTransformation:
    """Chains clipping, the named optimizer and its weight decay; the learning rate multiplies what comes out.

    Its `init` raises a UsageError where a pattern of `freeze` or `rates` matches no parameter, or all are frozen.
    """
    adam = optax.scale_by_adam(config.beta1, config.beta2, config.epsilon)
    scale = {
        "adam": adam,
        "adamw": adam,
        "lion": optax.scale_by_lion(config.beta1, config.beta2),
        "sgd": optax.trace(config.beta1) if config.beta1 else optax.identity(),
    }[config.name]
    clip = optax.clip_by_global_norm(config.clip) if config.clip else optax.identity()
    decay = optax.add_decayed_weights(config.weight_decay, decay_mask) if config.weight_decay else optax.identity()
    scale_and_decay = (scale, decay) if config.name in DECOUPLED else (decay, scale)
    rates = (_scaled(config.rates),) if config.rates else ()
    chain = optax.chain(clip, *scale_and_decay, *rates)
    if not config.frozen:
        return chain
    labels = functools.partial(_labels, config.frozen)
    return optax.partition({"trained": chain, "frozen": optax.set_to_zero()}, labels)


def matching(pattern: str | re.Pattern, params: optax.Params) -> optax.Params:
    """Marks the leaves whose path a pattern matches with True; '' matches none."""
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
    """Multiplies updates by the factor of the first pattern that matches their paths."""

    def init(params: optax.Params) -> optax.EmptyState:
        for pattern, _ in rates:
            check_matched("optimizer.rates", pattern, matching(pattern, params))
        return optax.EmptyState()

    def factor(path: tuple, update: jax.Array) -> jax.Array:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        return next((update * number for pattern, number in rates if re.search(pattern, name)), update)

    def update(updates: optax.Updates, state: optax.EmptyState, params: Any = None) -> tuple[Any, optax.EmptyState]:
        del params
        return jax.tree_util.tree_map_with_path(factor, updates), state

    return optax.GradientTransformation(init, update)


def check_matched(field: str, pattern: str, matched: optax.Params) -> None:
    """Raises UsageError where a pattern matches no parameter; it lists those with the nearest paths."""
    names = ["/".join(path) for path in flatten_dict(matched)]
    if not any(jax.tree.leaves(matched)):
        near = difflib.get_close_matches(pattern, names, n=5, cutoff=0.0)
        raise UsageError(f"{field} has {pattern!r}, which matches none of the {len(names)} parameters, such as {near}.")
