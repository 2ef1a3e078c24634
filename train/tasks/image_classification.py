"""Image classification: cross-entropy, top-1 accuracy, and top-5 where there are more classes than five."""

import jax
import jax.numpy as jnp

from attention.errors import UsageError
from models.cnn import CNNConfig
from models.published import pretrained
from models.surgery import low_rank
from models.vit import ViTConfig
from train.config.schema import Config
from train.data.images import transforms
from train.data.images.section import ImageData
from train.data.splits import PARTS
from train.losses import cross_entropy, in_top, of_examples
from train.step import Batch, Sums
from train.tasks.task import Task, refuse_loss_chunk


class ImageClassification(Task):
    """A classifier and its images. Batches hold `image`, `label` and `weight`, which is 0 on padding."""

    best = "accuracy"
    best_is_highest = True
    data_type = ImageData
    model_types = {"vit": ViTConfig, "cnn": CNNConfig}  # noqa: RUF012

    def __init__(self, config: Config, dry: bool = False):
        """Opens the data and describes the model; nothing is computed. See `Task` for `dry`.

        Raises:
          UsageError: the data are missing, the config would split losses of tokens, or images do not fit the model.
        """
        refuse_loss_chunk(config)
        self._data, self._seed, self.lora = config.data, config.seed, low_rank.parse(config.optimizer.lora)
        self._label_smoothing = config.train.label_smoothing
        self.sources = dict.fromkeys(PARTS, config.data.blank()) if dry else config.data.load()
        self.train_examples = len(self.sources["train"])
        self.image_shape = self._shape("train", config.data.train_transforms)
        self.sizes = (self.image_shape, self.sources["train"].split.num_classes)
        self.model = config.model.build(*self.sizes, dtype=jnp.dtype(config.train.precision))
        self._check_images_fit()
        if config.model.pretrained:
            tokens = config.model.tokens(self.image_shape)
            pretrained.check_fit(config.model.pretrained, config.model, self.sizes[1], tokens)

    def inputs(self, batch: Batch) -> tuple[jax.Array]:
        """Chooses the images."""
        return (batch["image"],)

    def measures(self, params: dict, batch: Batch, key: jax.Array | None) -> Sums:
        logits = self.applied(params, batch, key)
        weight = batch.get("weight", jnp.ones(len(logits)))
        smoothing = 0.0 if key is None else self._label_smoothing
        losses = cross_entropy(logits, batch["label"], smoothing)
        if "mix" in batch:
            loss_of_other = cross_entropy(logits, batch["other_label"], smoothing)
            losses = batch["mix"] * losses + (1 - batch["mix"]) * loss_of_other
        tops = {"accuracy": 1} | ({"top5": 5} if logits.shape[-1] > 5 else {})
        right = {name: in_top(logits, batch["label"], k) for name, k in tops.items()}
        return of_examples({"loss": losses} | right, weight)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes; () where the source names none."""
        return self.sources["train"].split.class_names

    def _example(self) -> Batch:
        return {"image": jnp.zeros((1, *self.image_shape))}

    def _shape(self, split: str, chain: str) -> tuple[int, int, int]:
        return transforms.output_shape(transforms.parse(chain), self.sources[split].split.image_shape)

    def _check_images_fit(self) -> None:
        """Traces the model, which raises errors of sizes before anything is compiled or written."""
        self._trace(self.image_shape, train=True)
        for split in ("validation", "test"):
            shape = self._shape(split, self._data.eval_transforms)
            if shape[-1] != self.image_shape[-1]:
                raise UsageError(
                    f"Images for {split} have {shape[-1]} channels and those for training {self.image_shape[-1]}; "
                    "data.train_transforms and data.eval_transforms must end in as many."
                )
            if shape != self.image_shape:
                self._trace(shape, train=False)  # a model of a fixed length raises an error that names both lengths
                height, width, _ = self.image_shape
                raise UsageError(
                    f"Images for {split} are {shape[0]}x{shape[1]} pixels and those for training {height}x{width}; "
                    "end data.train_transforms and data.eval_transforms alike."
                )

    def _trace(self, shape: tuple[int, int, int], train: bool) -> None:
        keys = {"params": jax.random.key(0), "dropout": jax.random.key(0)}
        jax.eval_shape(lambda image: self.model.init(keys, image, train), jnp.zeros((1, *shape)))
