"""Image classification: cross-entropy, top-1 accuracy, and where there are more than five classes top-5 accuracy."""

from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from attention.errors import UsageError
from models.cnn import CNNConfig
from models.published import pretrained
from models.vit import ViTConfig
from train.config.schema import Config
from train.data.images import transforms
from train.data.images.section import ImageData
from train.data.pipeline import Examples
from train.data.splits import PARTS
from train.losses import in_nats, in_top, of_examples
from train.step import Batch, Sums
from train.tasks.task import Task


class ImageClassification(Task):
    """A classifier and its images. Batches hold `image`, `label` and `weight`, which is 0 for padding."""

    best = "accuracy"
    best_is_highest = True
    data_type = ImageData
    model_types: ClassVar = {"vit": ViTConfig, "cnn": CNNConfig}

    def opened(self, dry: bool) -> Mapping[str, Examples]:
        return dict.fromkeys(PARTS, self._data.blank()) if dry else self._data.load()

    def sizes_of(self, config: Config) -> tuple[tuple[int, int, int], int]:
        return self._shape("train", config.data.train_transforms), self.sources["train"].split.num_classes

    def inputs(self, batch: Batch) -> tuple[jax.Array]:
        return (batch["image"],)

    def measures(self, params: dict, batch: Batch, key: jax.Array | None) -> Sums:
        logits, own = self.applied(params, batch, key)
        weight = batch.get("weight", jnp.ones(len(logits)))
        losses = in_nats(logits, batch["label"], self.smoothing(key))
        if "mix" in batch:
            mix, others = batch["mix"], in_nats(logits, batch["other_label"], self.smoothing(key))
            losses = {name: mix * loss + (1 - mix) * others[name] for name, loss in losses.items()}
        tops = {"accuracy": 1} | ({"top5": 5} if logits.shape[-1] > 5 else {})
        correct = {name: in_top(logits, batch["label"], k) for name, k in tops.items()}
        return of_examples(losses | correct | own, weight)

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.sources["train"].split.class_names

    def baselines(self) -> dict[str, float]:
        """Measures the accuracy of always choosing the training's most frequent class; without labels, of guessing."""
        train, test = (self.sources[split].split.labels for split in ("train", "test"))
        if train is None or test is None:
            return {"chance_accuracy": 1 / self.sizes[1]}
        return {"most_frequent_accuracy": float((test == np.bincount(train).argmax()).mean())}

    def describe(self, params: dict) -> dict[str, str | int]:
        model = self.model.config
        return super().describe(params) | ({"patch": model.patch} if isinstance(model, ViTConfig) else {})

    def _example(self) -> Batch:
        return {"image": jnp.zeros((1, *self.sizes[0])), "label": jnp.zeros(1, jnp.int32)}

    def _shape(self, split: str, chain: str) -> tuple[int, int, int]:
        return transforms.output_shape(transforms.parse(chain), self.sources[split].split.image_shape)

    def _check_model(self) -> None:
        if self.sizes[1] == 1:
            raise UsageError("All images have one class; give data with at least two classes.")
        super()._check_model()
        trained, model = self.sizes[0], self.model.config
        for split in ("validation", "test"):
            shape = self._shape(split, self._data.eval_transforms)
            if shape[-1] != trained[-1]:
                raise UsageError(
                    f"Images for {split} have {shape[-1]} channels and those for training {trained[-1]}; "
                    "data.train_transforms and data.eval_transforms must end in the same number."
                )
            if shape != trained:
                # A model of fixed length raises an error that names both lengths.
                jax.eval_shape(self.model.init, jax.random.key(0), jnp.zeros((1, *shape)))
                raise UsageError(
                    f"Images for {split} are {shape[0]}x{shape[1]} pixels and those for training "
                    f"{trained[0]}x{trained[1]}; end data.train_transforms and data.eval_transforms alike."
                )
        if model.pretrained:
            pretrained.check_fit(model.pretrained, model, self.sizes[1], model.tokens(trained))
