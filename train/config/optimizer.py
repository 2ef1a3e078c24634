"""The section `optimizer` of a config."""

import dataclasses
from typing import Annotated, ClassVar

from attention.errors import UsageError
from attention.types import Checked, Decay, Names, NotNegative, Pattern, Positive, Reader, Sentinel, compiled, shown
from models.fields import field
from models.surgery import low_rank
from train.config.durations import Length

_LARGEST = 1e6  # the largest factor of a learning rate


def _check_rates(rates: tuple, path: str) -> None:
    for rate in rates:
        if not (
            isinstance(rate, tuple) and tuple(map(type, rate)) in ((str, float), (str, int)) and 0 < rate[1] <= _LARGEST
        ):
            raise UsageError(
                f"{path} must be pairs of a regular expression and a factor above 0, at most {_LARGEST:g}, such as "
                f"(('embed', 0.1),), but it has {shown(rate)}; optimizer.freeze is for what is not trained."
            )
        compiled(rate[0], path)


@dataclasses.dataclass(frozen=True)
class OptimizerConfig(Checked):
    """The optimizer, its schedule and its regularisation."""

    name: Annotated[str, Names(("adam", "adamw", "lion", "sgd"))] = field("adamw", "The optimizer.")
    learning_rate: NotNegative = field(1e-3, "Highest learning rate of the schedule.")
    schedule: Annotated[str, Names(("constant", "cosine", "linear", "rsqrt"))] = field(
        "cosine", "Schedule after the warm-up; `rsqrt` falls as 1/√step."
    )
    warmup: Length = field("100 steps", "Length of the linear rise from 0.")
    end: NotNegative = field(0.0, "Fraction of `learning_rate` at which cosine and linear end.")
    weight_decay: NotNegative = field(
        0.1,
        "Weight decay of matrices only (kernels and embeddings; no biases, norms or positions). It is decoupled in "
        "adamw and lion; in adam and sgd it is added to the gradient, as L2 regularisation.",
    )
    clip: Annotated[Positive, Sentinel(0, "off")] = field(1.0, "Highest global norm of the gradient.")
    beta1: Decay = field(0.9, "Decay of the first moment (adam, adamw, lion) or momentum (sgd).")
    beta2: Decay = field(0.99, "Decay of the second moment (adam, adamw, lion).")
    epsilon: NotNegative = field(1e-8, "Constant in the denominator of adam and adamw.")
    freeze: Annotated[Pattern, Sentinel("", "none")] = field(
        "",
        "Regular expression. Parameters with a match in their path, such as `block_0/attention/query/kernel`, keep "
        "their values and take no optimizer memory.",
    )
    lora: Annotated[str, Sentinel("", "none"), Reader(low_rank.parse)] = field(
        "",
        "Low-rank additions to kernels; only they are trained. An example is `lora(rank=8, alpha=16.0, "
        "on='attention/(query|value)/kernel')`, where `on` is a regular expression. `also`, another one, names further "
        "parameters, which are trained whole.",
    )
    rates: Annotated[tuple, Sentinel((), "1 for all"), Reader(_check_rates)] = field(
        (),
        "Factors of the learning rate by regular expression, such as `(('embed', 0.1), ('block_[0-5]/', 0.5))`. The "
        "first expression that matches in a parameter's path counts. They scale decoupled weight decay too.",
    )

    PATH: ClassVar[str] = "optimizer."

    def __post_init__(self):
        super().__post_init__()
        if self.lora and self.freeze:
            raise UsageError("optimizer.lora trains its additions and also='REGEX' alone; leave out optimizer.freeze.")

    @property
    def frozen(self) -> str:
        """The regular expression of the parameters that are not trained; '' for none."""
        lora = low_rank.parse(self.lora)
        return lora.frozen if lora else self.freeze
