"""The dataclasses of a config, made from plain `ml_collections` values and validated before anything compiles."""

import dataclasses
from typing import Annotated, Any, ClassVar, TypeVar

from attention.errors import UsageError, unknown
from attention.types import (
    CLOSEST,
    Checked,
    Count,
    Names,
    Pattern,
    Positive,
    Rate,
    Reader,
    Seed,
    Sentinel,
    Unit,
    at_most,
)
from models.fields import BOOKKEEPING, HARDWARE, field
from models.surgery import exchange
from train.config.durations import Duration, Length
from train.config.optimizer import OptimizerConfig

T = TypeVar("T")
SEED = "{seed}"  # in `train.init_from`
TRACKERS = ("trackio", "wandb")  # loggers that every run may name, by their module
PRECISIONS = ("float32", "bfloat16")


def _check_loggers(names: str, path: str) -> None:
    for name in names.split(","):
        module, _, function = name.partition(":")
        if name not in TRACKERS and not (function.isidentifier() and all(map(str.isidentifier, module.split(".")))):
            raise unknown(path, name, [*TRACKERS, "module:function"])


Loggers = Annotated[str, Sentinel("", "none"), Reader(_check_loggers)]
Devices = Annotated[Count, Sentinel(-1, "the rest"), Unit("devices")]


def _check_rates(rates: tuple, path: str) -> None:
    if not all(type(rate) in (int, float) and rate > 0 for rate in rates) or len(set(rates)) < len(rates):
        raise UsageError(f"{path} must be different numbers above 0, such as (0.001, 0.003), but it is {rates!r}.")


@dataclasses.dataclass(frozen=True)
class TrainConfig(Checked):
    """The settings of the training loop."""

    init_from: Annotated[str, Sentinel("", "none")] = field(
        "",
        "The work directory of another run, whose parameters this one starts from where they have the same names and "
        "shapes. `{seed}` in it stands for this run's seed, so that each seed of a sweep starts from its own model.",
    )
    exchanged: Annotated[str, Reader(exchange.parse)] = field(
        "fresh",
        "How attention layers start that have another mechanism than the model whose weights `model.pretrained` or "
        "`init_from` loads. What is new in them has its usual initial values (`fresh`), or those with which the layer "
        "computes what it did, where that is possible (`like`); `distilled(steps=300, learning_rate=0.001)` then "
        "trains the layers to give the outputs that they gave, before the training begins.",
    )
    fresh: Annotated[Pattern, Sentinel("", "none")] = field(
        "",
        "A regular expression of parameters' paths, such as `/(key|value)/`, that keep their usual initial values "
        "although `model.pretrained` or `init_from` has others for them: the control of a layer that is exchanged.",
    )
    length: Length = field("1000 steps", "Of the whole training.", may_change=True, matched="flops")
    log_every: Length = field(
        "100 steps", "Between lines of training metrics, each the average since the line before.", role=BOOKKEEPING
    )
    eval_every: Length = field(
        "250 steps", "Between evaluations on validation data; 0 evaluates only at the end.", may_change=True
    )
    checkpoint_every: Length = field(
        "250 steps", "Between checkpoints; 0 saves only the best and the last.", role=BOOKKEEPING
    )
    patience: Annotated[Count, Sentinel(0, "it never ends early")] = field(
        0,
        "After how many evaluations on validation data in a row, without a better value of the metric that chooses the "
        "best step, the run ends, and of several replicas each by itself.",
        may_change=True,
    )
    loggers: Loggers = field(
        "",
        "What gets every line of `metrics.jsonl` too, between commas: `wandb`, `trackio`, or `module:function`, which "
        "is called with the work directory and the config and returns an object with `write(line)` and `close()`.",
        role=BOOKKEEPING,
    )
    keep: Count = field(
        2, "How many of the newest checkpoints stay; the best always does, of every replica.", role=BOOKKEEPING
    )
    replicas: Count = field(
        1,
        "How many seeds are trained together in one program, from `seed` on; see `docs/training.md`.",
        sweep="--replicas",
    )
    rates: Annotated[tuple, Sentinel((), "that one alone"), Reader(_check_rates)] = field(
        (),
        "Learning rates that are trained together in one program, each with all seeds, in place of "
        "`optimizer.learning_rate`, such as `(0.001, 0.003)`.",
        sweep="--replicas",
    )
    accumulate: Count = field(1, "Into how many parts a batch is split, one after the other, to save memory.")
    loss_chunk: Annotated[Count, Sentinel(0, "all")] = field(
        0,
        "Of how many tokens of each sequence logits are held at one time, to save memory where vocabularies are large. "
        "The backward pass computes them again.",
        may_change=True,
    )
    precision: Annotated[str, Names(PRECISIONS)] = field(
        "float32", "Compute dtype; parameters and softmax are float32."
    )
    ema: Annotated[Positive, at_most(CLOSEST), Sentinel(0, "off")] = field(
        0.0, "Decay of the moving average of the parameters that is evaluated."
    )
    label_smoothing: Rate = field(0.0, "Probability that the target gives away to all classes alike.")

    PATH: ClassVar[str] = "train."

    @property
    def together(self) -> int:
        """How many replicas are trained together."""
        return self.replicas * max(1, len(self.rates))

    def __post_init__(self):
        super().__post_init__()
        if not Duration.parse(self.length, "train.length").amount:
            raise UsageError(f"train.length must be more than 0, but it is {self.length!r}.")
        if self.patience and not Duration.parse(self.eval_every, "train.eval_every").amount:
            raise UsageError(
                f"train.patience={self.patience} counts evaluations, but train.eval_every is {self.eval_every!r}; set "
                "it, such as to '1 epoch', or train.patience=0."
            )


@dataclasses.dataclass(frozen=True)
class MeshConfig(Checked):
    """The number of devices along each axis of the mesh; one axis may be -1 and takes all devices that are left."""

    data: Devices = field(-1, "Splits the batch.", role=HARDWARE)
    fsdp: Devices = field(1, "Splits the batch and the parameters.", role=HARDWARE)
    tensor: Devices = field(1, "Splits heads and hidden units.", role=HARDWARE)
    context: Devices = field(1, "Splits the tokens of each sequence.", role=HARDWARE)

    PATH: ClassVar[str] = "mesh."

    def __post_init__(self):
        super().__post_init__()
        sizes = dataclasses.asdict(self)
        if list(sizes.values()).count(-1) > 1:
            raise UsageError(f"Only one axis of the mesh may be -1, but it is {sizes}.")


@dataclasses.dataclass(frozen=True)
class Config(Checked):
    """A whole experiment; the sections `model` and `data` are of the dataclasses of that model and of the task."""

    task: str = field("", "What is learned, a name of `train.tasks.TASKS`.")
    seed: Seed = field(0, "Of initial values, data order, augmentation and dropout.", sweep="--seeds")
    model: Any = None
    data: Any = None
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    train: TrainConfig = dataclasses.field(default_factory=TrainConfig)
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)

    PATH: ClassVar[str] = ""

    @property
    def source(self) -> str:
        """The work directory of the run that this one starts from, '' if none."""
        return self.train.init_from.replace(SEED, str(self.seed))

    def check_one_start(self) -> None:
        """Raises a UsageError where each seed starts from another run, so that seeds cannot be trained together."""
        if SEED in self.train.init_from:
            raise UsageError(
                f"train.init_from={self.train.init_from!r} is another run for each seed, so seeds train one by one; "
                "set train.replicas=1, or --replicas=no of a sweep."
            )

    def __post_init__(self):
        super().__post_init__()
        if self.train.replicas > 1:
            self.check_one_start()
        # JAX uses 32 bits of a seed, and the steps' keys are made of the next seed.
        if not 0 <= self.seed < 2**32 - self.train.replicas:
            raise UsageError(
                f"seed must be at least 0 and below 2**32 - train.replicas = {2**32 - self.train.replicas}, but it is "
                f"{self.seed}."
            )
