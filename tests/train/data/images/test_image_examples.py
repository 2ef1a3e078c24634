"""Examples of images against the definitions of transforms and mixup."""

import dataclasses

import numpy as np
import pytest

from tests.train.data.conftest import DEFAULTS, MIXED
from tests.train.data.streams import stream
from train.data.images.section import ImageExamples


@pytest.fixture
def trained(photos):
    """Makes concatenated training batches, with changes to the section."""

    def trained(seed, count, **changes):
        examples = ImageExamples(dataclasses.replace(DEFAULTS, **changes), photos)
        return stream(examples.train_batches(seed), count)

    return trained


def test_plain_examples_are_those_of_their_index(photos, trained):
    examples = ImageExamples(dataclasses.replace(DEFAULTS, train_transforms="resize(size=9)"), photos)
    evaluation = stream(examples.eval_batches(), 9)
    np.testing.assert_array_equal(evaluation["index"], [*range(21), -1, -1, -1])
    np.testing.assert_array_equal(evaluation["weight"], [1] * 21 + [0] * 3)
    np.testing.assert_array_equal(evaluation["image"][21:], 0)
    for out in (trained(0, 3), {name: of[:21] for name, of in evaluation.items()}):
        for index, image, label in zip(out["index"], out["image"], out["label"], strict=True):
            np.testing.assert_allclose(image, photos[index]["image"] / 255, atol=1e-7)
            assert label == photos[index]["label"]


class TestAugmentation:
    def test_an_example_is_augmented_anew_every_epoch(self, trained):
        out = trained(0, 21, train_transforms=MIXED["train_transforms"])
        images = out["image"][out["index"] == 7]
        assert len(images) == 8
        assert len({image.tobytes() for image in images}) > 4


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
        mix = trained(0, 5, mixup=0.4, batch_size=100)["mix"]
        np.testing.assert_allclose(mix.mean(), 0.5, atol=0.04)
        np.testing.assert_allclose(mix.var(), 1 / (4 * (2 * 0.4 + 1)), atol=0.02)

    def test_partners_are_a_shuffle_of_their_own(self, trained):
        out = trained(0, 4, mixup=0.4, batch_size=21)
        others, labels = out["other_label"].reshape(4, 21), out["label"].reshape(4, 21)
        for epoch in others:
            np.testing.assert_array_equal(np.bincount(epoch), 7)
        assert not np.array_equal(others, labels)
        assert len({tuple(epoch) for epoch in others}) == 4
