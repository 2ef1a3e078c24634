"""Examples of images against the definitions of transforms and mixup."""

import dataclasses

import numpy as np
import pytest

from tests.train.data.conftest import MIXED
from tests.train.data.streams import stream
from train.data.images import transforms
from train.data.images.section import ImageExamples

AUGMENT = MIXED["train_transforms"]


@pytest.fixture
def trained(photos, defaults):
    """Makes concatenated training batches, with changes to the section."""

    def trained(seed, count, **changes):
        examples = ImageExamples(dataclasses.replace(defaults, **changes), photos)
        return stream(examples.train_batches(seed), count)

    return trained


@pytest.fixture
def evaluated(photos, defaults):
    return lambda **changes: stream(ImageExamples(dataclasses.replace(defaults, **changes), photos).eval_batches(), 9)


def test_types_and_shapes(trained, evaluated):
    one = {"label": "int32", "index": "int64"}
    for out, own in (
        (trained(0, 3, **MIXED), {"other_label": "int32", "mix": "float32"}),
        (evaluated(**MIXED), {"weight": "float32"}),
    ):
        kinds = {"image": ("float32", (24, 6, 5, 3))} | {name: (kind, (24,)) for name, kind in (one | own).items()}
        assert {name: (value.dtype.name, value.shape) for name, value in out.items()} == kinds


def test_plain_examples_are_those_of_their_index(photos, trained, evaluated):
    evaluation = evaluated()
    np.testing.assert_array_equal(evaluation["index"], [*range(21), -1, -1, -1])
    np.testing.assert_array_equal(evaluation["weight"], [1] * 21 + [0] * 3)
    np.testing.assert_array_equal(evaluation["image"][21:], 0)
    for out in (trained(0, 3), {name: of[:21] for name, of in evaluation.items()}):
        for index, image, label in zip(out["index"], out["image"], out["label"], strict=True):
            np.testing.assert_allclose(image, photos[index]["image"] / 255, atol=1e-7)
            assert label == photos[index]["label"]


def test_training_and_evaluation_have_transforms_of_their_own(photos, evaluated):
    out = evaluated(train_transforms="resize(size=9)", eval_transforms="center_crop(size=4)")
    np.testing.assert_allclose(out["image"][0], photos[0]["image"][1:5, 0:4] / 255, atol=1e-7)
    assert out["image"].shape == (24, 4, 4, 3)


class TestAugmentation:
    def test_an_example_is_augmented_anew_every_epoch(self, trained):
        out = trained(0, 21, train_transforms=AUGMENT)
        images = out["image"][out["index"] == 7]
        assert len(images) == 8
        assert len({image.tobytes() for image in images}) > 4

    def test_one_example_is_augmented_as_the_chain_says(self, photos, trained):
        """It is one of the chain's possible outcomes, computed one by one."""
        out = trained(0, 1, train_transforms=AUGMENT)
        normalise = transforms.parse("normalise(mean=0.5, std=0.25)")
        for index, image in zip(out["index"], out["image"], strict=True):
            padded = np.pad(photos[index]["image"], ((2, 2), (2, 2), (0, 0)))
            crops = [padded[top : top + 6, left : left + 5] for top in range(5) for left in range(5)]
            outcomes = [flipped for crop in crops for flipped in (crop, crop[:, ::-1])]
            assert sum(np.array_equal(transforms.apply(normalise, outcome), image) for outcome in outcomes) == 1

    def test_mixing_changes_neither_order_nor_augmentation(self, trained):
        """With a tiny alpha, many weights are exactly 1, so that nothing is mixed in."""
        plain, mixed = (trained(5, 4, train_transforms=AUGMENT, mixup=alpha) for alpha in (0.0, 0.01))
        np.testing.assert_array_equal(plain["index"], mixed["index"])
        whole = mixed["mix"] == 1
        assert whole.sum() > 5
        np.testing.assert_array_equal(plain["image"][whole], mixed["image"][whole])


class TestMixup:
    def test_equation(self, photos, trained):
        """Without augmentation both images are known, so mix · image + (1 - mix) · other is found by search."""
        out = trained(1, 4, mixup=1.0)
        for image, index, mix, label in zip(*map(out.get, ("image", "index", "mix", "other_label")), strict=True):
            own = photos[index]["image"] / 255
            candidates = [mix * own + (1 - mix) * record["image"] / 255 for record in photos]
            distances = [np.abs(image - candidate).max() for candidate in candidates]
            assert min(distances) < 1e-6
            assert mix > 0.99 or photos[int(np.argmin(distances))]["label"] == label

    def test_the_weight_is_beta_distributed(self, trained):
        mix = trained(0, 10, **MIXED, batch_size=100)["mix"]
        np.testing.assert_allclose(mix.mean(), 0.5, atol=0.03)
        np.testing.assert_allclose(mix.var(), 1 / (4 * (2 * 0.4 + 1)), atol=0.015)

    def test_partners_are_a_shuffle_of_their_own(self, trained):
        out = trained(0, 4, **MIXED, batch_size=21)
        others, labels = out["other_label"].reshape(4, 21), out["label"].reshape(4, 21)
        for epoch in others:
            np.testing.assert_array_equal(np.bincount(epoch), 7)
        assert not np.array_equal(others, labels)
        assert len({tuple(epoch) for epoch in others}) == 4
