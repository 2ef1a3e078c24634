"""The dataclasses of a config, made from plain `ml_collections` values and validated before anything compiles."""

import dataclasses
from typing import Annotated, Any, ClassVar

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

SEED = "{seed}"  # stands for the run's seed in `train.init_from`
TRACKERS = ("trackio", "wandb")  # the packages that `train.loggers` may name without a function
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
        "Work directory of another run. Parameters that have the same names and shapes there start from its values. "
        "`{seed}` stands for this run's seed, so that each seed of a sweep starts from its own model.",
    )
    exchanged: Annotated[str, Reader(exchange.parse)] = field(
        "fresh",
        "How attention layers start whose mechanism differs from that of the model whose weights `model.pretrained` or "
        "`init_from` loads. Their new parameters get the usual initial values (`fresh`) or, where possible, values "
        "with which the layer computes what it did before (`like`). `distilled(steps=300, learning_rate=0.001)` also "
        "trains the layers, before the training begins, to reproduce the outputs of the loaded model's layers.",
    )
    fresh: Annotated[Pattern, Sentinel("", "none")] = field(
        "",
        "Regular expression. Parameters with a match in their path, such as `/(key|value)/`, keep their usual initial "
        "values even if `model.pretrained` or `init_from` has values for them: the control for an exchanged layer.",
    )
    length: Length = field("1000 steps", "Length of the whole training.", may_change=True, matched="flops")
    log_every: Length = field(
        "100 steps",
        "Interval between lines of training metrics, each the average since the previous line.",
        role=BOOKKEEPING,
    )
    eval_every: Length = field(
        "250 steps", "Interval between evaluations on validation data; 0 evaluates only at the end.", may_change=True
    )
    checkpoint_every: Length = field(
        "250 steps", "Interval between checkpoints; 0 saves only the best and the last.", role=BOOKKEEPING
    )
    patience: Annotated[Count, Sentinel(0, "it never ends early")] = field(
        0,
        "The run ends after this many evaluations on validation data in a row without a better value of the metric "
        "that chooses the best step. Each of several replicas ends by itself.",
        may_change=True,
    )
    loggers: Loggers = field(
        "",
        "Loggers, separated by commas, that also get every line of `metrics.jsonl`: `wandb`, `trackio`, or "
        "`module:function`, which is called with the work directory and the config and returns an object with "
        "`write(line)` and `close()`.",
        role=BOOKKEEPING,
    )
    keep: Count = field(
        2, "Number of newest checkpoints that are kept; every replica's best is always kept.", role=BOOKKEEPING
    )
    replicas: Count = field(
        1,
        "Number of seeds, from `seed` on, that are trained together in one program; see `docs/training.md`.",
        sweep="--replicas",
    )
    rates: Annotated[tuple, Sentinel((), "that one alone"), Reader(_check_rates)] = field(
        (),
        "Learning rates that are trained together in one program, each with all seeds, in place of "
        "`optimizer.learning_rate`, such as `(0.001, 0.003)`.",
        sweep="--replicas",
    )
    accumulate: Count = field(
        1, "Number of parts into which a batch is split, to save memory; they are computed in turn."
    )
    loss_chunk: Annotated[Count, Sentinel(0, "all")] = field(
        0,
        "Number of tokens of each sequence whose logits are held at a time, to save memory where vocabularies are "
        "large. The backward pass computes the logits again.",
        may_change=True,
    )
    precision: Annotated[str, Names(PRECISIONS)] = field(
        "float32", "Dtype of computation; parameters and softmax stay in float32."
    )
    ema: Annotated[Positive, at_most(CLOSEST), Sentinel(0, "off")] = field(
        0.0, "Decay of a moving average of the parameters, which is evaluated in their place."
    )
    label_smoothing: Rate = field(0.0, "Share of the target that is spread evenly over all classes.")

    PATH: ClassVar[str] = "train."

    @property
    def together(self) -> int:
        """The number of replicas that are trained together."""
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
    """The number of devices along each axis of the mesh; one axis may be -1, which takes the remaining devices."""

    data: Devices = field(-1, "Devices that split the batch.", role=HARDWARE)
    fsdp: Devices = field(1, "Devices that split the batch and the parameters.", role=HARDWARE)
    tensor: Devices = field(1, "Devices that split heads and hidden units.", role=HARDWARE)
    context: Devices = field(1, "Devices that split the tokens of each sequence.", role=HARDWARE)

    PATH: ClassVar[str] = "mesh."

    def __post_init__(self):
        super().__post_init__()
        sizes = dataclasses.asdict(self)
        if list(sizes.values()).count(-1) > 1:
            raise UsageError(f"Only one axis of the mesh may be -1, but it is {sizes}.")


@dataclasses.dataclass(frozen=True)
class Config(Checked):
    """A whole experiment; the model's name and the task decide the dataclasses of the sections `model` and `data`."""

    task: str = field("", "Task to learn: a name in `train.tasks.TASKS`.")
    seed: Seed = field(0, "Seed of initial values, data order, augmentation and dropout.", sweep="--seeds")
    model: Any = None
    data: Any = None
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    train: TrainConfig = dataclasses.field(default_factory=TrainConfig)
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)

    PATH: ClassVar[str] = ""

    @property
    def source(self) -> str:
        """The work directory of the run that this one starts from; '' for none."""
        return self.train.init_from.replace(SEED, str(self.seed))

    def check_one_start(self) -> None:
        """Refuses to train seeds together where each starts from a run of its own."""
        if SEED in self.train.init_from:
            raise UsageError(
                f"train.init_from={self.train.init_from!r} is another run for each seed, so seeds train one by one; "
                "set train.replicas=1, or --replicas=no of a sweep."
            )

    def __post_init__(self):
        super().__post_init__()
        if self.train.replicas > 1:
            self.check_one_start()
        # JAX uses 32 bits of a seed, and the steps' key is made from the next seed.
        if not 0 <= self.seed < 2**32 - self.train.replicas:
            raise UsageError(
                f"seed must be at least 0 and below 2**32 - train.replicas = {2**32 - self.train.replicas}, but it is "
                f"{self.seed}."
            )
