"""What the loop asks of a task. A task's own file says what its data, its model and its loss are."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import jax

from attention.errors import UsageError
from attention.operations import Cost
from models.published import pretrained
from train.config.schema import Config
from train.state import count_parameters
from train.step import Batch, Sums


class Task:
    """Data, model and loss of an experiment; made from a `train.config.Config`, before anything is compiled.

    Made with `dry=True`, there are no data: one blank example of the sizes that the config states is in their place.

    Attributes:
      best: The metric that chooses the best checkpoint on validation data.
      best_is_highest: Whether its highest value is the best, or its lowest.
      writes: Whether evaluation writes texts, for which batches are split over all devices.
      unit: What throughput counts, `examples` or `tokens`.
      units_per_example: How many of them an example is.
      data_type: Dataclass of the config's section `data`.
      model_types: Dataclasses of the section `model`, by the model's name.
      sources: The examples of each split; `len` counts them.
      train_examples: Examples in an epoch.
      sizes: Of the data, for which the config of the model builds it.
      model: The network.
    """

    best: ClassVar[str]
    best_is_highest: ClassVar[bool] = True
    writes: ClassVar[bool] = False
    unit: ClassVar[str] = "examples"
    units_per_example: int = 1
    data_type: ClassVar[type]
    model_types: ClassVar[Mapping[str, type]]
    sources: Mapping[str, Any]
    train_examples: int
    sizes: tuple[Any, ...]
    model: Any

    def init(self, key: jax.Array) -> dict:
        """Initial parameters."""
        raise NotImplementedError

    def train_batches(self, process_index: int, process_count: int, replica: int = 0) -> Iterator[Batch]:
        """Shuffled batches without end, of the seed `config.seed + replica`; a `train.data.pipeline.BatchIterator`."""
        raise NotImplementedError

    def check_stackable(self) -> None:
        """Raises UsageError where training batches differ in shape, since replicas train on stacked ones."""

    def eval_batches(self, split: str, process_index: int, process_count: int) -> Iterator[Batch]:
        """Every example of a split once, the last batch padded."""
        raise NotImplementedError

    def eval_examples(self, split: str) -> int:
        """How many examples `eval_batches` has."""
        return len(self.sources[split])

    def loss(self, params: dict, batch: Batch, key: jax.Array | None) -> Sums:
        """Sums over the batch, `weight` among them, which divides the others; a key in training, none in evaluation."""
        raise NotImplementedError

    def cost(self) -> Cost:
        """Work on one example."""
        return self.model.config.cost(*self.sizes)

    def pretrained(self, params: dict) -> tuple[dict, str]:
        """Parameters to start from: published weights in place of freshly initialised ones that have their like there.

        With a report; '' where nothing was loaded.
        """
        config = self.model.config
        if not config.pretrained:
            return params, ""
        loaded, report = pretrained.load(config.pretrained, config, params)
        return loaded, str(report)

    def metrics(self, split: str, means: dict[str, float]) -> dict[str, float]:
        """What is reported of a split, from the sums divided by `weight`; what the task does not know stays."""
        del split
        return means

    def measured(self, split: str, params: dict, mesh: jax.sharding.Mesh) -> dict[str, float]:
        """What is reported of a split beside the loss, such as scores of texts that the model writes.

        Args:
          split: Which one.
          params: Of the model, on the mesh.
          mesh: Where batches are split.
        """
        del split, params, mesh
        return {}

    def remarks(self) -> list[str]:
        """Lines to print of the data, before the first step."""
        return []

    def files(self) -> dict[str, str]:
        """Texts to keep in the work directory, by file name; a run whose texts have changed is not continued."""
        data = {name: {"examples": len(has), "content": self.content(name)} for name, has in self.sources.items()}
        return {"data.json": json.dumps(data, indent=2) + "\n"}

    def content(self, split: str) -> str:
        """What differs wherever the data that a split is of differ."""
        raise NotImplementedError

    def baselines(self) -> dict[str, float]:
        """What simple models reach on test data, to print beside the result."""
        return {}

    def describe(self, params: dict) -> dict[str, str | int]:
        """What the run's header and `result.json` say of the model."""
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

    def attention_layer(self, params: dict) -> dict:
        """Parameters of the first attention layer."""
        return params["block_0"]["attention"]


def refuse_loss_chunk(config: Config) -> None:
    """Raises UsageError where losses of tokens are to be computed in chunks, of a task that has none."""
    if config.train.loss_chunk:
        raise UsageError(
            f"train.loss_chunk={config.train.loss_chunk} is for predictions of tokens, and {config.task} has one an "
            "example; set it to 0."
        )
