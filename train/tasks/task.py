"""The interface between the training loop and a task."""

import copy
import json
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from attention.defining import files
from attention.errors import UsageError, listed
from attention.operations import Cost
from models.published import pretrained
from models.surgery import low_rank
from models.surgery.low_rank import Lora
from train.config.schema import Config
from train.data import splits
from train.data.pipeline import BatchIterator, Examples
from train.state import count_parameters, first_attention
from train.step import Batch, Sums

CLASSES = "classes.json"  # in a work directory: the names of the classes
_LORA = 7  # folded into the key of initial values; the model itself uses the key unchanged


class Task:
    """The data, model and loss of an experiment, built from a `Config` before anything is compiled.

    Subclasses define `opened`, `sizes_of`, `inputs` and `measures`.
    """

    best: ClassVar[str] = "loss"  # the metric that chooses the best checkpoint on validation data
    best_is_highest: ClassVar[bool] = False  # whether its highest value is the best; else its lowest
    writes: ClassVar[bool] = False  # whether evaluation generates texts, for which batches are split over all devices
    predicts_tokens: ClassVar[bool] = False  # whether each token has a loss, so that losses can be computed in chunks
    unit: ClassVar[str] = "examples"  # what throughput counts: `examples` or `tokens`
    data_type: ClassVar[type]  # the dataclass of the config's section `data`
    model_types: ClassVar[Mapping[str, type]]  # the dataclasses of the section `model`, by the model's name
    lora: Lora | None = None  # low-rank additions to the model's kernels, which the model itself does not know

    def __init__(self, config: Config, dry: bool = False):
        """Opens the data and traces the model, so that wrong sizes are found before anything is written.

        A dry run opens no data: one blank example, with the sizes that the config states, stands in for them.

        Raises:
          UsageError: The data are missing, or the model cannot be built for them.
        """
        if config.train.loss_chunk and not self.predicts_tokens:
            raise UsageError(
                f"train.loss_chunk={config.train.loss_chunk} is for predictions of tokens, and {config.task} makes one "
                "prediction for each example; set it to 0."
            )
        self._data, self._seed, self.lora = config.data, config.seed, low_rank.parse(config.optimizer.lora)
        self._label_smoothing, self._loss_chunk = config.train.label_smoothing, config.train.loss_chunk
        self.sources = self.opened(dry)
        self.train_examples = len(self.sources["train"])  # in an epoch
        self.sizes = self.sizes_of(config)
        self.model = config.model.build(*self.sizes, dtype=jnp.dtype(config.train.precision))
        self._check_model()

    def opened(self, dry: bool) -> Mapping[str, Examples]:
        """Opens the examples of each split, or makes blank ones."""
        raise NotImplementedError

    def sizes_of(self, config: Config) -> tuple[Any, ...]:
        """Collects the sizes that the model is built for; raises a UsageError where the data do not fit the model."""
        raise NotImplementedError

    @property
    def units_per_example(self) -> int:
        """The number of units of throughput in an example."""
        return 1

    def with_model(self, model: Any) -> "Task":
        """Copies the task for another model with the same inputs and outputs, without low-rank additions."""
        other = copy.copy(self)
        other.model, other.lora = model, None
        return other

    def init(self, key: jax.Array) -> dict:
        """Draws the initial parameters, low-rank additions included."""
        params = self.init_model(key)
        return self.lora.added(params, jax.random.fold_in(key, _LORA)) if self.lora else params

    def init_model(self, key: jax.Array) -> dict:
        """Draws the model's initial parameters, without low-rank additions."""
        return self.model.init(key, *self.inputs(self._example()))["params"]

    def inputs(self, batch: Batch) -> tuple[Any, ...]:
        """Lists the model's arguments for a batch, without `train`."""
        raise NotImplementedError

    def merged(self, params: dict) -> dict:
        """Merges low-rank additions into the model's kernels."""
        return self.lora.merged(params) if self.lora else params

    def applied(self, params: dict, batch: Batch, key: jax.Array | None, method: str = "__call__") -> tuple[Any, Sums]:
        """Applies a method of the model to a batch; a key means training, with dropout.

        Returns its output, and in training each example's `own_loss` where the model has layers with one.
        """
        given = {"params": self.merged(params)}, *self.inputs(batch)
        options = {"train": key is not None, "rngs": None if key is None else {"dropout": key}, "method": method}
        if key is None or not self.model.config.has_own_loss:
            return self.model.apply(*given, **options), {}
        output, kept = self.model.apply(*given, mutable="own_losses", **options)
        return output, {"own_loss": sum(jax.tree.leaves(kept))}

    def train_batches(self, process_index: int, process_count: int, replica: int = 0) -> BatchIterator:
        """Yields shuffled batches without end, for the seed `config.seed + replica`; see `Examples`."""
        return self.sources["train"].train_batches(self._seed + replica, process_index, process_count)

    def check_stackable(self) -> None:
        """Raises a UsageError where training batches differ in shape, since replicas train on stacked batches."""

    def eval_batches(self, split: str, process_index: int, process_count: int) -> Iterator[Batch]:
        """Yields every example of a split once, the last batch padded."""
        return self.sources[split].eval_batches(process_index, process_count)

    def eval_examples(self, split: str) -> int:
        """Counts the examples of `eval_batches`, whose windows of text differ from those of training."""
        return self.sources[split].eval_length

    def smoothing(self, key: jax.Array | None) -> float:
        """Chooses the label smoothing, which is 0 in evaluation."""
        return 0.0 if key is None else self._label_smoothing

    def measures(self, params: dict, batch: Batch, key: jax.Array | None) -> Sums:
        """Sums over each example, `(B,)`, the loss in nats, metrics, and the weight that divides both.

        Evaluation has no key.
        """
        raise NotImplementedError

    def loss(self, params: dict, batch: Batch, key: jax.Array | None) -> Sums:
        """Sums `measures` over the batch."""
        return {name: jnp.sum(values) for name, values in self.measures(params, batch, key).items()}

    def cost(self) -> Cost:
        """Counts the operations for one example."""
        return self.model.config.cost(*self.sizes)

    def pretrained(self, params: dict) -> tuple[dict, str]:
        """Replaces initial parameters by published weights if the config names some, and reports it, else ''."""
        config = self.model.config
        if not config.pretrained:
            return params, ""
        loaded, report = pretrained.load(config.pretrained, config, params)
        return loaded, str(report)

    def metrics(self, split: str, means: dict[str, float]) -> dict[str, float]:
        """Computes a split's metrics from the sums divided by `weight`; names that need no change are kept."""
        del split
        return means

    def measured(self, split: str, params: dict, mesh: jax.sharding.Mesh) -> dict[str, float]:
        """Measures a split in further ways, such as by scores of generated texts; batches are split over the mesh."""
        del split, params, mesh
        return {}

    def remarks(self) -> list[str]:
        """Lists remarks on the data, to be printed before the first step."""
        slices = splits.remarks(self._data, {part: examples.split.split for part, examples in self.sources.items()})
        classes = [f"Classes: {listed(self.class_names, 10)}"] if self.class_names else []
        return [*slices, *classes, *self.model.config.remarks()]

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes in the order of their numbers; () where the data name none."""
        return ()

    def files(self) -> dict[str, str]:
        """Lists texts to keep in the work directory, by file name; a run is not continued where they have changed."""
        data = {name: {"examples": len(part), "content": part.content} for name, part in self.sources.items()}
        names = {CLASSES: json.dumps(self.class_names, indent=2) + "\n"} if self.class_names else {}
        return {"data.json": json.dumps(data, indent=2) + "\n"} | names | self.model.config.code()

    def baselines(self) -> dict[str, float]:
        """Measures simple models on the test split, for comparison."""
        return {}

    def describe(self, params: dict) -> dict[str, str | int]:
        """Describes the model for the run's header and `result.json`."""
        params, additions = low_rank.split(params)
        return {
            **self.model.config.attentions(),
            **{f"sha256 of {name}": files.digest(text) for name, text in self.model.config.code().items()},
            "parameters": count_parameters(params),
            "attention_layer_parameters": count_parameters(first_attention(params)),
            "tokens": self.tokens,
            "forward_flops_per_example": self.cost().flops,
            "training_flops_per_example": self.cost().training,
            **({"lora_parameters": count_parameters(additions)} if self.lora else {}),
        }

    @property
    def tokens(self) -> int:
        """The length of the longest sequence that attention sees."""
        return self.model.length

    def lengths(self) -> dict[str, int]:
        """Lists the lengths of the sequences that attention sees, by what decides them."""
        return {"the number of tokens": self.tokens}

    def _example(self) -> Batch:
        """Makes a batch of one example, which gives the shapes of the model's inputs."""
        return {name: jnp.asarray(value)[None] for name, value in self.sources["validation"].evaluate(0).items()}

    def _check_model(self) -> None:
        key = jax.random.key(0)
        jax.eval_shape(lambda: self.loss(self.init(key), self._example(), key))
