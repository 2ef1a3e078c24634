"""Optimizers and learning-rate schedules by name, all from optax."""

import dataclasses
import difflib
import functools
import re
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import jax
import optax
from flax.traverse_util import flatten_dict, path_aware_map

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


def schedule(config: OptimizerConfig, warmup: int, total: int) -> optax.Schedule:
    """Makes the learning rate a function of the step, from 0 to `total`."""
    peak, rest = config.learning_rate, max(total - warmup, 1)
    after = {
        "constant": optax.constant_schedule(peak),
        "cosine": optax.cosine_decay_schedule(peak, rest, alpha=config.end),
        "linear": optax.linear_schedule(peak, peak * config.end, rest),
        "rsqrt": lambda step: peak * (max(warmup, 1) / (max(warmup, 1) + step)) ** 0.5,
    }[config.schedule]
    if not warmup:
        return after
    return optax.join_schedules([optax.linear_schedule(0.0, peak, warmup), after], [warmup])


def decay_mask(params: optax.Params) -> optax.Params:
    """Marks the leaves that weight decay applies to, kernels and embeddings, with True."""
    return matching(DECAYED, params)


def optimizer(config: OptimizerConfig, learning_rate: optax.Schedule) -> optax.GradientTransformation:
    """Chains clipping, the named optimizer with its weight decay, and the learning rate.

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
    chain = optax.chain(clip, *scale_and_decay, optax.scale_by_learning_rate(learning_rate), *rates)
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
