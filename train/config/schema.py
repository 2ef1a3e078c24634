"""Configs: plain `ml_collections` values in, frozen dataclasses that validate before anything compiles out."""

import dataclasses
import math
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from attention.errors import UsageError, unknown
from train.config.durations import Duration
from train.optimizer import OptimizerConfig

T = TypeVar("T")
PRECISIONS = ("float32", "bfloat16")


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """How the loop runs. Durations are strings with a unit.

    Attributes:
      length: Of the whole training.
      log_every: Between lines of training metrics, each the average since the line before.
      eval_every: Between evaluations on validation data; 0 evaluates only at the end.
      checkpoint_every: Between checkpoints; 0 saves only the best and the last.
      keep: How many of the newest checkpoints stay; the best always does, of every replica.
      replicas: How many seeds are trained together in one program, from `seed` on; see `docs/replicas.md`.
      accumulate: Into how many parts a batch is split, one after the other, to save memory.
      loss_chunk: Of how many tokens of each sequence logits are held at one time, to save memory where vocabularies are
        large; 0 is all. The backward pass computes them again.
      precision: Compute dtype, `float32` or `bfloat16`; parameters and softmax are float32.
      ema: Decay of the moving average of the parameters that is evaluated; 0 is none.
      label_smoothing: Probability that the target gives away to all classes alike.
    """

    length: str
    log_every: str
    eval_every: str
    checkpoint_every: str
    keep: int
    replicas: int
    accumulate: int
    loss_chunk: int
    precision: str
    ema: float
    label_smoothing: float

    def __post_init__(self):
        for field in ("length", "log_every", "eval_every", "checkpoint_every"):
            Duration.parse(getattr(self, field), f"train.{field}")
        if not Duration.parse(self.length, "train.length").amount:
            raise UsageError(f"train.length must be more than 0, but it is {self.length!r}.")
        for field in ("keep", "replicas", "accumulate"):
            if getattr(self, field) < 1:
                raise UsageError(f"train.{field} must be at least 1, but it is {getattr(self, field)}.")
        if self.loss_chunk < 0:
            raise UsageError(f"train.loss_chunk must be at least 0 (0 is off), but it is {self.loss_chunk}.")
        for field in ("ema", "label_smoothing"):
            if not 0.0 <= getattr(self, field) < 1.0:
                raise UsageError(f"train.{field} must be at least 0 and below 1, but it is {getattr(self, field)}.")
        if self.precision not in PRECISIONS:
            raise unknown("train.precision", self.precision, PRECISIONS)


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Devices along each axis of the mesh; one of them may be -1, which is all that are left.

    Attributes:
      data: Splits the batch.
      fsdp: Splits the batch and the parameters.
      tensor: Splits heads and hidden units.
    """

    data: int
    fsdp: int
    tensor: int

    def __post_init__(self):
        sizes = dataclasses.asdict(self)
        for axis, size in sizes.items():
            if size < 1 and size != -1:
                raise UsageError(f"mesh.{axis} must be at least 1, or -1 for the rest, but it is {size}.")
        if list(sizes.values()).count(-1) > 1:
            raise UsageError(f"Only one axis of the mesh may be -1, but it is {sizes}.")


@dataclasses.dataclass(frozen=True)
class Config:
    """A whole experiment.

    Attributes:
      task: What is learned, a name of `train.tasks.TASKS`.
      seed: Of initial values, data order, augmentation and dropout.
      model: The model's own dataclass.
      data: The task's own dataclass.
      optimizer: How parameters are updated.
      train: How the loop runs.
      mesh: What is split over which devices.
    """

    task: str
    seed: int
    model: Any
    data: Any
    optimizer: OptimizerConfig
    train: TrainConfig
    mesh: MeshConfig

    def __post_init__(self):
        # JAX makes keys of 32 bits of a seed; the steps' keys are those of the next seed.
        if not 0 <= self.seed < 2**32 - self.train.replicas:
            raise UsageError(
                f"seed must be at least 0 and below 2**32 - train.replicas = {2**32 - self.train.replicas}, but it is "
                f"{self.seed}."
            )


def build(config: Mapping[str, Any], model_type: type, data_type: type) -> Config:
    """A validated `Config` from plain nested mappings.

    Args:
      config: Such as an `ml_collections.ConfigDict`.
      model_type: Dataclass of the section `model`.
      data_type: Dataclass of the section `data`.

    Raises:
      UsageError: a field that is missing, unknown, of the wrong type or out of range.
    """
    types = {"model": model_type, "data": data_type}
    return _structure(Config, config, "", types)


def _structure(cls: type[T], values: Mapping[str, Any], path: str, types: Mapping[str, type]) -> T:
    hints = typing.get_type_hints(cls)
    hints = {field.name: types.get(field.name, hints[field.name]) for field in dataclasses.fields(cls)}
    for name in values:
        if name not in hints:
            raise unknown("config field", path + name, [path + valid for valid in hints])
    for name in hints:
        if name not in values:
            raise UsageError(f"The config field {path + name} is missing; {cls.__name__} needs it.")
    return cls(**{name: _value(hint, values[name], path + name) for name, hint in hints.items()})


def _value(hint: type, value: Any, path: str) -> Any:
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise UsageError(f"The config field {path} must be a section of fields, not {value!r}.")
        return _structure(hint, value, path + ".", {})
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"The config field {path} must be finite, but it is {value}.")
    if type(value) is not hint:
        raise UsageError(f"The config field {path} must be of type {hint.__name__}, but it is {value!r}.")
    return value
