"""The interface between the training loop and a task."""

import copy
import json
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from attention.errors import UsageError
from attention.operations import Cost
from models.published import pretrained
from train.config.schema import Config
from train.data import classes, splits
from train.data.pipeline import BatchIterator, Examples
from train.data.section import Section
from train.state import count_parameters
from train.step import Batch, Sums

CLASSES = "classes.json"  # the names of classes in a work directory


class Task:
    """The data, model and loss of an experiment, built from a `Config` before anything is compiled.

    With `dry=True` no data are opened: one blank example, of the sizes that the config states, replaces them.

    Attributes:
      best: The metric that chooses the best checkpoint on validation data.
      best_is_highest: Whether the highest value of that metric is the best; else the lowest is.
      writes: Whether the model writes texts in evaluation, for which batches are split over all devices.
      unit: The unit of throughput, `examples` or `tokens`.
      units_per_example: How many units an example has.
      data_type: The dataclass of the config's section `data`.
      model_types: The dataclasses of the section `model`, by the model's name.
      sources: The examples of each split; `len` counts them.
      train_examples: The number of examples in an epoch.
      sizes: The sizes of the data, for which the model is built.
      model: The network.
    """

    best: ClassVar[str] = "loss"
    best_is_highest: ClassVar[bool] = False
    writes: ClassVar[bool] = False
    unit: ClassVar[str] = "examples"
    units_per_example: int = 1
    data_type: ClassVar[type]
    model_types: ClassVar[Mapping[str, type]]
    sources: Mapping[str, Examples]
    train_examples: int
    sizes: tuple[Any, ...]
    model: Any
    _data: Section

    def with_model(self, model: Any) -> "Task":
        """Returns the same task with another network of the same inputs and outputs."""
        other = copy.copy(self)
        other.model = model
        return other

    def init(self, key: jax.Array) -> dict:
        """Returns initial parameters."""
        raise NotImplementedError

    def train_batches(self, process_index: int, process_count: int, replica: int = 0) -> BatchIterator:
        """Returns endless shuffled batches for the seed `config.seed + replica`; see `train.data.pipeline.Examples`."""
        return self.sources["train"].train_batches(self._seed + replica, process_index, process_count)

    def check_stackable(self) -> None:
        """Raises UsageError where training batches differ in shape, since replicas train on stacked batches."""

    def eval_batches(self, split: str, process_index: int, process_count: int) -> Iterator[Batch]:
        """Yields every example of a split once, the last batch padded."""
        return self.sources[split].eval_batches(process_index, process_count)

    def eval_examples(self, split: str) -> int:
        """Returns how many examples `eval_batches` has; windows of running text differ from those of training."""
        return self.sources[split].eval_length

    def measures(self, params: dict, batch: Batch, key: jax.Array | None) -> Sums:
        """Sums over each example, `(B,)`: loss, metrics, and the weight that divides them; evaluation has no key."""
        raise NotImplementedError

    def loss(self, params: dict, batch: Batch, key: jax.Array | None) -> Sums:
        """Sums `measures` over the batch."""
        return {name: jnp.sum(values) for name, values in self.measures(params, batch, key).items()}

    def cost(self) -> Cost:
        """Returns the operations on one example."""
        return self.model.config.cost(*self.sizes)

    def pretrained(self, params: dict) -> tuple[dict, str]:
        """Replaces initial parameters by published weights where the config names some.

        Returns:
          The parameters, and a report that is '' where nothing was loaded.
        """
        config = self.model.config
        if not config.pretrained:
            return params, ""
        loaded, report = pretrained.load(config.pretrained, config, params)
        return loaded, str(report)

    def metrics(self, split: str, means: dict[str, float]) -> dict[str, float]:
        """Returns the metrics of a split from the sums divided by `weight`; unknown names stay."""
        del split
        return means

    def measured(self, split: str, params: dict, mesh: jax.sharding.Mesh) -> dict[str, float]:
        """Returns metrics of a split besides the loss, such as scores of texts that the model writes.

        Args:
          split: The name of the split.
          params: The model's parameters, on the mesh.
          mesh: The mesh that splits batches.
        """
        del split, params, mesh
        return {}

    def remarks(self) -> list[str]:
        """Returns lines about the data to print before the first step."""
        slices = splits.remarks(self._data, {part: examples.split.split for part, examples in self.sources.items()})
        return [*slices, *([classes.remark(self.class_names)] if self.class_names else [])]

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes, in the order of their numbers; () where the data name none."""
        return ()

    def files(self) -> dict[str, str]:
        """Returns texts to keep in the work directory, by file name; a run whose texts have changed is refused."""
        data = {name: {"examples": len(has), "content": has.content} for name, has in self.sources.items()}
        names = {CLASSES: json.dumps(self.class_names, indent=2) + "\n"} if self.class_names else {}
        return {"data.json": json.dumps(data, indent=2) + "\n"} | names

    def baselines(self) -> dict[str, float]:
        """Returns the test metrics of simple models, to compare the result with."""
        return {}

    def describe(self, params: dict) -> dict[str, str | int]:
        """Returns the description of the model for the run's header and `result.json`."""
        return {
            **self.model.config.attentions(),
            "parameters": count_parameters(params),
            "attention_layer_parameters": count_parameters(self.attention_layer(params)),
            "tokens": self.tokens,
            "forward_flops_per_example": self.cost().flops,
            "training_flops_per_example": self.cost().training,
        }

    @property
    def tokens(self) -> int:
        """The longest sequence that attention sees."""
        return self.model.length

    def lengths(self) -> dict[str, int]:
        """Returns the tokens of the sequences that attention sees, by what decides them."""
        return {"the number of tokens": self.tokens}

    def attention_layer(self, params: dict) -> dict:
        """Returns the parameters of the first attention layer."""
        return params["block_0"]["attention"]


def refuse_loss_chunk(config: Config) -> None:
    """Raises UsageError where the config sets `train.loss_chunk` for a task that does not predict tokens."""
    if config.train.loss_chunk:
        raise UsageError(
            f"train.loss_chunk={config.train.loss_chunk} is for predictions of tokens, and {config.task} has one an "
            "example; set it to 0."
        )
