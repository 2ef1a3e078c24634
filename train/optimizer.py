"""Optimizers and learning-rate schedules by name, all from optax."""

import dataclasses
import re
from collections.abc import Callable

import jax
import optax

from attention.errors import UsageError, unknown
from train.config.durations import Duration

SCHEDULES = ("constant", "cosine", "linear", "rsqrt")
OPTIMIZERS = ("adam", "adamw", "lion", "sgd")
DECOUPLED = ("adamw", "lion")
DECAYED = re.compile(r"(kernel|(?<!positions/)embedding)$")  # RoBERTa's learned positions are an embedding too


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """How parameters are updated.

    Attributes:
      name: `adamw`, `adam`, `lion` or `sgd`.
      learning_rate: The highest of the schedule.
      schedule: After the warm-up: `constant`, `cosine`, `linear` or `rsqrt` (1/√step, from the warm-up's end).
      warmup: Duration of the linear rise from 0.
      end: What cosine and linear end at, as a fraction of `learning_rate`.
      weight_decay: On matrices only (kernels and embeddings; no bias, norm or position). Decoupled in adamw and
        lion; added to the gradient, as L2 regularisation, in adam and sgd.
      clip: Highest global norm of the gradient; 0 is none.
      beta1: Decay of the first moment (adam, adamw, lion) or momentum (sgd).
      beta2: Decay of the second moment (adam, adamw, lion).
      epsilon: Of adam and adamw.
    """

    name: str
    learning_rate: float
    schedule: str
    warmup: str
    end: float
    weight_decay: float
    clip: float
    beta1: float
    beta2: float
    epsilon: float

    def __post_init__(self):
        if self.name not in OPTIMIZERS:
            raise unknown("optimizer", self.name, OPTIMIZERS)
        if self.schedule not in SCHEDULES:
            raise unknown("learning-rate schedule", self.schedule, SCHEDULES)
        Duration.parse(self.warmup, "optimizer.warmup")
        for field in ("learning_rate", "end", "weight_decay", "clip", "epsilon"):
            if getattr(self, field) < 0:
                raise UsageError(f"optimizer.{field} must not be negative, but it is {getattr(self, field)}.")
        for field in ("beta1", "beta2"):
            if not 0.0 <= getattr(self, field) < 1.0:
                raise UsageError(f"optimizer.{field} must be at least 0 and below 1, but it is {getattr(self, field)}.")


def warmup_steps(wanted: int, total: int) -> int:
    """The warm-up's steps: a tenth of the run where it was to be longer than the run."""
    return wanted if wanted <= total else max(total // 10, 1)


def schedule(config: OptimizerConfig, warmup: int, total: int) -> optax.Schedule:
    """The learning rate as a function of the step, from 0 to `total`."""
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
    """True at the leaves that weight decay applies to: kernels and embeddings."""

    def decayed(path: tuple, _: jax.Array) -> bool:
        return bool(DECAYED.search(jax.tree_util.keystr(path, simple=True, separator="/")))

    return jax.tree_util.tree_map_with_path(decayed, params)


def optimizer(config: OptimizerConfig, learning_rate: optax.Schedule) -> optax.GradientTransformation:
    """Clipping, the named optimizer with its weight decay, then the learning rate."""
    scalers: dict[str, Callable[[], optax.GradientTransformation]] = {
        "adam": lambda: optax.scale_by_adam(config.beta1, config.beta2, config.epsilon),
        "adamw": lambda: optax.scale_by_adam(config.beta1, config.beta2, config.epsilon),
        "lion": lambda: optax.scale_by_lion(config.beta1, config.beta2),
        "sgd": lambda: optax.trace(config.beta1) if config.beta1 else optax.identity(),
    }
    clip = optax.clip_by_global_norm(config.clip) if config.clip else optax.identity()
    decay = optax.add_decayed_weights(config.weight_decay, decay_mask) if config.weight_decay else optax.identity()
    scale = scalers[config.name]()
    middle = (scale, decay) if config.name in DECOUPLED else (decay, scale)
    return optax.chain(clip, *middle, optax.scale_by_learning_rate(learning_rate))
