"""The dataclasses of a config, made from plain `ml_collections` values and validated before anything compiles."""

import dataclasses
import math
import typing
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from attention.errors import UsageError, check_known
from attention.specs import NUMBERS
from models.fields import BOOKKEEPING, HARDWARE, Declared, field
from models.surgery import starts
from train.config.durations import Duration, duration
from train.optimizer import OptimizerConfig, compiled
from train.run import loggers

T = TypeVar("T")
PRECISIONS = ("float32", "bfloat16")


@dataclasses.dataclass(frozen=True)
class TrainConfig(Declared):
    """The settings of the training loop."""

    init_from: str = field(
        "",
        "The work directory of another run, whose parameters this one starts from where they have the same names and "
        "shapes.",
        special={"": "none"},
    )
    exchanged: str = field(
        "fresh",
        "How attention layers start that have another mechanism than the model whose weights `model.pretrained` or "
        "`init_from` loads. What is new in them has its usual initial values (`fresh`), or those with which the layer "
        "computes what it did, where that is possible (`like`); `distilled(steps=300, learning_rate=0.001)` then "
        "trains the layers to give the outputs that they gave, before the training begins.",
        reads=starts.parse,
    )
    fresh: str = field(
        "",
        "A regular expression of parameters' paths, such as `/(key|value)/`, that keep their usual initial values "
        "although `model.pretrained` or `init_from` has others for them: the control of a layer that is exchanged.",
        reads=compiled,
        special={"": "none"},
    )
    length: str = duration("1000 steps", "Of the whole training.", may_change=True, matched="flops")
    log_every: str = duration(
        "100 steps", "Between lines of training metrics, each the average since the line before.", role=BOOKKEEPING
    )
    eval_every: str = duration(
        "250 steps", "Between evaluations on validation data; 0 evaluates only at the end.", may_change=True
    )
    checkpoint_every: str = duration(
        "250 steps", "Between checkpoints; 0 saves only the best and the last.", role=BOOKKEEPING
    )
    patience: int = field(
        0,
        "After how many evaluations on validation data in a row, without a better value of the metric that chooses the "
        "best step, the run ends; of several replicas, without one in any.",
        least=1,
        special={0: "it never ends early"},
        may_change=True,
    )
    loggers: str = field(
        "",
        "What gets every line of `metrics.jsonl` too, between commas: `wandb`, or `module:function`, which is called "
        "with the work directory and the config and returns an object with `write(line)` and `close()`.",
        special={"": "none"},
        reads=loggers.check,
        role=BOOKKEEPING,
    )
    keep: int = field(
        2, "How many of the newest checkpoints stay; the best always does, of every replica.", least=1, role=BOOKKEEPING
    )
    replicas: int = field(
        1,
        "How many seeds are trained together in one program, from `seed` on; see `docs/replicas.md`.",
        least=1,
        sweep="--replicas",
    )
    accumulate: int = field(1, "Into how many parts a batch is split, one after the other, to save memory.", least=1)
    loss_chunk: int = field(
        0,
        "Of how many tokens of each sequence logits are held at one time, to save memory where vocabularies are large. "
        "The backward pass computes them again.",
        least=1,
        special={0: "all"},
        may_change=True,
    )
    precision: str = field("float32", "Compute dtype; parameters and softmax are float32.", choices=PRECISIONS)
    ema: float = field(
        0.0, "Decay of the moving average of the parameters that is evaluated.", above=0, below=1, special={0: "off"}
    )
    label_smoothing: float = field(
        0.0, "Probability that the target gives away to all classes alike.", least=0, below=1
    )

    PATH: ClassVar[str] = "train."

    def __post_init__(self):
        super().__post_init__()
        if not Duration.parse(self.length, "train.length").amount:
            raise UsageError(f"train.length must be more than 0, but it is {self.length!r}.")
        if self.patience and not Duration.parse(self.eval_every, "train.eval_every").amount:
            raise UsageError(
                f"train.patience={self.patience} counts evaluations, but train.eval_every is {self.eval_every!r}; set "
                "it, such as to '1 epoch', or train.patience=0."
            )


def _axis(default: int, help: str) -> int:
    return field(default, help, least=1, special={-1: "the rest"}, unit="devices", role=HARDWARE)


@dataclasses.dataclass(frozen=True)
class MeshConfig(Declared):
    """The number of devices along each axis of the mesh; one axis may be -1 and takes all devices that are left."""

    data: int = _axis(-1, "Splits the batch.")
    fsdp: int = _axis(1, "Splits the batch and the parameters.")
    tensor: int = _axis(1, "Splits heads and hidden units.")
    context: int = _axis(1, "Splits the tokens of each sequence.")

    PATH: ClassVar[str] = "mesh."

    def __post_init__(self):
        super().__post_init__()
        sizes = dataclasses.asdict(self)
        if list(sizes.values()).count(-1) > 1:
            raise UsageError(f"Only one axis of the mesh may be -1, but it is {sizes}.")


@dataclasses.dataclass(frozen=True)
class Config(Declared):
    """A whole experiment.

    Attributes:
      model: The model's section, of the dataclass of that model.
      data: The data's section, of the dataclass of the task.
      optimizer: How parameters are updated.
      train: How the loop runs.
      mesh: How many devices split the batch, the parameters, the heads and the tokens.
    """

    task: str = field("", "What is learned, a name of `train.tasks.TASKS`.")
    seed: int = field(0, "Of initial values, data order, augmentation and dropout.", sweep="--seeds")
    model: Any = None
    data: Any = None
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    train: TrainConfig = dataclasses.field(default_factory=TrainConfig)
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)

    def __post_init__(self):
        super().__post_init__()
        # JAX uses 32 bits of a seed, and the steps' keys are made of the next seed.
        if not 0 <= self.seed < 2**32 - self.train.replicas:
            raise UsageError(
                f"seed must be at least 0 and below 2**32 - train.replicas = {2**32 - self.train.replicas}, but it is "
                f"{self.seed}."
            )


def build(cls: type[T], values: Mapping[str, Any], path: str, sections: Mapping[str, type]) -> T:
    """Builds a validated dataclass, such as a `Config`, from plain nested mappings.

    Args:
      cls: The dataclass.
      values: The values, such as an `ml_collections.ConfigDict`.
      path: What stands before the names of its fields in messages.
      sections: The dataclasses of the fields whose type it does not declare.

    Raises:
      UsageError: a field is missing, unknown, of the wrong type or out of range.
    """
    hints = typing.get_type_hints(cls)
    hints = {field.name: sections.get(field.name, hints[field.name]) for field in dataclasses.fields(cls)}
    for name in values:
        check_known("config field", path + name, [path + valid for valid in hints])
    for name in hints:
        if name not in values:
            raise UsageError(f"The config field {path + name} is missing; {cls.__name__} needs it.")
    return cls(**{name: _value(hint, values[name], path + name) for name, hint in hints.items()})


def _value(hint: type, value: Any, path: str) -> Any:
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise UsageError(f"The config field {path} must be a section of fields, not {value!r}.")
        return build(hint, value, path + ".", {})
    if hint is float and type(value) is int:
        value = float(value) if abs(value) < NUMBERS else math.inf
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"The config field {path} must be finite, but it is {value}.")
    if type(value) is not hint or not _is_plain(value):
        raise UsageError(f"The config field {path} must be of type {hint.__name__}, but it is {value!r}.")
    return value


def _is_plain(value: Any) -> bool:
    """Returns whether a value holds nothing but tuples, texts and numbers."""
    return all(map(_is_plain, value)) if isinstance(value, tuple) else isinstance(value, str | int | float)
