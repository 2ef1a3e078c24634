import dataclasses

import numpy as np
import pytest

from tests.train.data.streams import stream, take
from train.data.images import transforms
from train.data.images.examples import ImageExamples

AUGMENT = "pad_crop(padding=2)|flip|normalise(mean=0.5, std=0.25)"


def train_batches(images, data, seed, *share):
    return ImageExamples(data, images).train_batches(seed, *share)


def eval_batches(images, data, *share):
    return ImageExamples(data, images).eval_batches(*share)


@pytest.fixture
def augmented(defaults):
    return dataclasses.replace(defaults, train_transforms=AUGMENT)


@pytest.fixture
def mixed(augmented):
    return dataclasses.replace(augmented, mixup=0.4)


class TestOrder:
    def test_examples_are_those_of_their_index(self, photos, defaults):
        [batch] = take(train_batches(photos, defaults, seed=0), 1)
        for index, image, label in zip(batch["index"], batch["image"], batch["label"], strict=True):
            np.testing.assert_allclose(image, photos[index]["image"] / 255, atol=1e-7)
            assert label == photos[index]["label"]

    def test_types_and_shapes(self, photos, mixed):
        one = {"label": "int32", "index": "int64"}
        for batches, own in (
            (train_batches(photos, mixed, seed=0), {"other_label": "int32", "mix": "float32"}),
            (eval_batches(photos, mixed), {"weight": "float32"}),
        ):
            [batch] = take(batches, 1)
            kinds = {"image": ("float32", (8, 6, 5, 3))} | {name: (kind, (8,)) for name, kind in (one | own).items()}
            assert {name: (value.dtype.name, value.shape) for name, value in batch.items()} == kinds


class TestAugmentation:
    def test_an_example_is_augmented_anew_every_epoch(self, photos, augmented):
        out = stream(train_batches(photos, augmented, seed=0), 21)
        images = out["image"][out["index"] == 7]
        assert len(images) == 8
        assert len({image.tobytes() for image in images}) > 4

    def test_one_example_is_augmented_as_the_chain_says(self, photos, augmented):
        """Against every outcome of the chain, computed one by one."""
        [batch] = take(train_batches(photos, augmented, seed=0), 1)
        normalise = transforms.parse("normalise(mean=0.5, std=0.25)")
        for index, image in zip(batch["index"], batch["image"], strict=True):
            padded = np.pad(photos[index]["image"], ((2, 2), (2, 2), (0, 0)))
            crops = [padded[top : top + 6, left : left + 5] for top in range(5) for left in range(5)]
            outcomes = [flipped for crop in crops for flipped in (crop, crop[:, ::-1])]
            matches = [np.array_equal(transforms.apply(normalise, outcome), image) for outcome in outcomes]
            assert sum(matches) == 1

    def test_mixing_changes_neither_order_nor_augmentation(self, photos, augmented):
        """With a tiny alpha many weights are exactly 1, where nothing is mixed in."""
        plain, mixed = (
            stream(train_batches(photos, dataclasses.replace(augmented, mixup=alpha), seed=5), 4)
            for alpha in (0.0, 0.01)
        )
        np.testing.assert_array_equal(plain["index"], mixed["index"])
        whole = mixed["mix"] == 1
        assert whole.sum() > 5
        np.testing.assert_array_equal(plain["image"][whole], mixed["image"][whole])


class TestMixup:
    def test_equation(self, photos, defaults):
        """Without augmentation both images are known, so mix · image + (1 - mix) · other is found by search."""
        out = stream(train_batches(photos, dataclasses.replace(defaults, mixup=1.0), seed=1), 4)
        for image, index, mix, other_label in zip(
            *(out[k] for k in ("image", "index", "mix", "other_label")), strict=True
        ):
            own = photos[index]["image"] / 255
            candidates = [mix * own + (1 - mix) * record["image"] / 255 for record in photos]
            distances = [np.abs(image - candidate).max() for candidate in candidates]
            assert min(distances) < 1e-6
            if mix < 0.99:
                assert photos[int(np.argmin(distances))]["label"] == other_label

    @pytest.mark.more
    def test_the_weight_is_beta_distributed(self, photos, mixed):
        mix = stream(train_batches(photos, dataclasses.replace(mixed, batch_size=100, mixup=0.4), seed=0), 10)["mix"]
        np.testing.assert_allclose(mix.mean(), 0.5, atol=0.03)
        np.testing.assert_allclose(mix.var(), 1 / (4 * (2 * 0.4 + 1)), atol=0.015)

    def test_partners_are_a_shuffle_of_their_own(self, photos, mixed):
        out = stream(train_batches(photos, dataclasses.replace(mixed, batch_size=21), seed=0), 4)
        others, labels = out["other_label"].reshape(4, 21), out["label"].reshape(4, 21)
        for epoch in others:
            np.testing.assert_array_equal(np.bincount(epoch), 7)
        assert not np.array_equal(others, labels)
        assert len({tuple(epoch) for epoch in others}) == 4


class TestEvaluation:
    def test_every_example_once_in_order(self, photos, defaults):
        out = stream(eval_batches(photos, defaults), 10)
        np.testing.assert_array_equal(out["index"], [*range(21), -1, -1, -1])
        np.testing.assert_array_equal(out["weight"], [1] * 21 + [0] * 3)
        np.testing.assert_array_equal(out["label"][:21], np.arange(21) % 3)
        np.testing.assert_array_equal(out["image"][21:], 0)
        for index in range(21):
            np.testing.assert_allclose(out["image"][index], photos[index]["image"] / 255, atol=1e-7)

    def test_transforms(self, photos, defaults):
        data = dataclasses.replace(defaults, train_transforms="resize(size=9)", eval_transforms="center_crop(size=4)")
        out = stream(eval_batches(photos, data), 3)
        np.testing.assert_allclose(out["image"][0], photos[0]["image"][1:5, 0:4] / 255, atol=1e-7)
        assert out["image"].shape == (24, 4, 4, 3)


def test_real_images(tfds_folder, augmented):
    data = dataclasses.replace(
        augmented, source="tfds:cifar100", data_dir=tfds_folder, batch_size=32, eval_batch_size=500
    )
    out = stream(data.load()["train"].train_batches(seed=0), 4)
    assert out["image"].shape == (128, 32, 32, 3)
    assert len(set(out["index"])) == 128
    assert sum(batch["weight"].sum() for batch in data.load()["test"].eval_batches()) == 10_000
