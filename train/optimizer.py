"""Optimizers and learning-rate schedules by name, all from optax."""

import dataclasses
import re
from typing import ClassVar

import optax
from flax.traverse_util import path_aware_map

from models.fields import Declared, field
from train.config.durations import duration

DECOUPLED = ("adamw", "lion")
DECAYED = re.compile(r"(kernel|(?<!positions/)embedding)$")  # RoBERTa's learned positions are an embedding too


@dataclasses.dataclass(frozen=True)
class OptimizerConfig(Declared):
    """The optimizer, its schedule and its regularisation."""

    name: str = field("adamw", "Which optimizer it is.", choices=("adam", "adamw", "lion", "sgd"))
    learning_rate: float = field(1e-3, "The highest of the schedule.", least=0)
    schedule: str = field(
        "cosine",
        "After the warm-up; `rsqrt` is 1/√step, from the warm-up's end.",
        choices=("constant", "cosine", "linear", "rsqrt"),
    )
    warmup: str = duration("100 steps", "Of the linear rise from 0.")
    end: float = field(0.0, "What cosine and linear end at, as a fraction of `learning_rate`.", least=0)
    weight_decay: float = field(
        0.1,
        "On matrices only (kernels and embeddings; no bias, norm or position). Decoupled in adamw and lion; added to "
        "the gradient, as L2 regularisation, in adam and sgd.",
        least=0,
    )
    clip: float = field(1.0, "Highest global norm of the gradient.", above=0, special={0: "off"})
    beta1: float = field(0.9, "Decay of the first moment (adam, adamw, lion) or momentum (sgd).", least=0, below=1)
    beta2: float = field(0.99, "Decay of the second moment (adam, adamw, lion).", least=0, below=1)
    epsilon: float = field(1e-8, "Of adam and adamw.", least=0)

    PATH: ClassVar[str] = "optimizer."


def schedule(config: OptimizerConfig, warmup: int, total: int) -> optax.Schedule:
    """Returns the learning rate as a function of the step, from 0 to `total`."""
    peak, rest = config.learning_rate, max(total - warmup, 1)
    after = {
        "constant": lambda: optax.constant_schedule(peak),
        "cosine": lambda: optax.cosine_decay_schedule(peak, rest, alpha=config.end),
        "linear": lambda: optax.linear_schedule(peak, peak * config.end, rest),
        "rsqrt": lambda: lambda step: peak * (max(warmup, 1) / (max(warmup, 1) + step)) ** 0.5,
    }[config.schedule]()
    if not warmup:
        return after
    return optax.join_schedules([optax.linear_schedule(0.0, peak, warmup), after], [warmup])


def decay_mask(params: optax.Params) -> optax.Params:
    """Returns a tree that is True at the leaves that weight decay applies to: kernels and embeddings."""
    return path_aware_map(lambda path, _: bool(DECAYED.search("/".join(path))), params)


def optimizer(config: OptimizerConfig, learning_rate: optax.Schedule) -> optax.GradientTransformation:
    """Returns the chain of clipping, the named optimizer with its weight decay, and the learning rate."""
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
    return optax.chain(clip, *scale_and_decay, optax.scale_by_learning_rate(learning_rate))
