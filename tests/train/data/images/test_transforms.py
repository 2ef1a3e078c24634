"""Each transform against an independent computation of its definition."""

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from attention.errors import UsageError
from train.data.draws import Draws
from train.data.images import transforms


@pytest.fixture
def image():
    return np.random.default_rng(1).integers(0, 256, (9, 7, 3), np.uint8)


def run(spec, image, seed=0):
    [transform] = transforms.parse(spec)
    return transform(image, Draws(seed))


def smooth(height, width):
    """Makes a wave without sharp edges, on which interpolations agree."""
    rows, columns = np.mgrid[:height, :width]
    return (128 + 100 * np.sin(rows / 5) * np.cos(columns / 7)).astype(np.uint8)[..., None]


class TestFixed:
    def test_normalise(self, image):
        mean, std = np.array([0.5, 0.4, 0.3]), np.array([0.2, 0.3, 0.4])
        out = run("normalise(mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))", image)
        assert out.dtype == np.float32
        np.testing.assert_allclose(out, (image / 255 - mean) / std, atol=1e-5)
        np.testing.assert_allclose(run("normalise(mean=0.5, std=0.25)", image), (image / 255 - 0.5) / 0.25, atol=1e-6)

    def test_padding_and_cropping(self, image):
        np.testing.assert_array_equal(run("pad(to=12)", image), np.pad(image, ((1, 2), (2, 3), (0, 0))))
        np.testing.assert_array_equal(run("center_crop(size=5)", image), image[2:7, 1:6])

    @pytest.mark.parametrize("channels", [3, 4])
    def test_resize_up_is_bilinear(self, channels):
        image = np.random.default_rng(0).integers(0, 256, (4, 6, channels), np.uint8)
        out = run("resize(size=12)", image)
        rows = np.clip((np.arange(12) + 0.5) * 4 / 12 - 0.5, 0, 3)
        columns = np.clip((np.arange(12) + 0.5) * 6 / 12 - 0.5, 0, 5)
        grid = np.meshgrid(rows, columns, indexing="ij")
        for c in range(channels):
            expected = ndimage.map_coordinates(image[..., c].astype(float), grid, order=1)
            np.testing.assert_allclose(out[..., c], expected, atol=1.01)


class TestRandom:
    def test_flip(self, image):
        np.testing.assert_array_equal(run("flip(p=1.0)", image), image[:, ::-1])
        np.testing.assert_array_equal(run("flip(p=0.0)", image), image)

    def test_pad_crop_is_every_shift_equally_often(self, image):
        padded = np.pad(image, ((1, 1), (1, 1), (0, 0)))
        crops = [padded[top : top + 9, left : left + 7] for top in range(3) for left in range(3)]
        counts = np.zeros(9, int)
        for seed in range(450):
            out = run("pad_crop(padding=1)", image, seed)
            matches = [np.array_equal(out, crop) for crop in crops]
            assert sum(matches) == 1
            counts[np.argmax(matches)] += 1
        assert counts.min() > 25
        assert counts.max() < 80

    def test_random_resized_crop_takes_parts_of_the_size_asked_for(self):
        """A picture whose pixels say where they come from: red the column, green the row."""
        rows, columns = np.mgrid[:200, :200]
        image = np.stack([columns, rows, 0 * rows], axis=-1).astype(np.uint8)
        shares, ratios, lefts = [], [], []
        for seed in range(200):
            out = run("random_resized_crop(size=100, scale=(0.2, 0.5), ratio=(0.5, 1.5))", image, seed).astype(float)
            width = (out[50, 90, 0] - out[50, 10, 0]) / 80 * 100
            height = (out[90, 50, 1] - out[10, 50, 1]) / 80 * 100
            shares.append(width * height / 200**2)
            ratios.append(width / height)
            lefts.append(out[50, 0, 0])
        assert out.shape == (100, 100, 3)
        assert 0.18 < min(shares) < 0.23
        assert 0.47 < max(shares) < 0.52
        np.testing.assert_allclose([min(ratios), max(ratios)], [0.5, 1.5], rtol=0.05)
        assert min(lefts) < 5
        assert max(lefts) > 80

    def test_random_resized_crop_of_a_strip(self):
        """No part of a strip has such a shape and area, so the largest within the ratio is taken."""
        strip = np.tile(np.arange(100, dtype=np.uint8)[None, :, None], (2, 1, 3))
        out = run("random_resized_crop(size=8, scale=(1.0, 1.0))", strip)
        assert out.shape == (8, 8, 3)
        assert int(out.max()) - int(out.min()) <= 3

    def test_brightness_contrast_and_saturation(self, image):
        """Contrast keeps the mean and scales the spread; saturation 0 is Pillow's grey, and grey stays."""
        out = run("colour_jitter(brightness=0.4)", image)
        np.testing.assert_allclose(out, np.clip(image * Draws(0).uniform(0.6, 1.4), 0, 255), atol=0.51)
        dull, ratios = np.random.default_rng(0).integers(90, 160, (20, 20, 1), np.uint8), []
        for seed in range(50):
            out = run("colour_jitter(contrast=0.5)", dull, seed).astype(float)
            np.testing.assert_allclose(out.mean(), dull.mean(), atol=0.3)
            ratios.append(out.std() / dull.std())
        assert 0.5 <= min(ratios) + 0.01 < 0.6
        assert 1.4 < max(ratios) < 1.51
        grey = np.asarray(Image.fromarray(image).convert("L")).astype(float)[..., None]
        distances = [np.abs(run("colour_jitter(saturation=1.0)", image, seed) - grey).max() for seed in range(300)]
        assert min(distances) < 3  # the factor reaches down to 0
        assert max(distances) > 50
        np.testing.assert_array_equal(run("colour_jitter(saturation=0.9)", dull), dull)

    def test_rotate(self):
        image, angle = smooth(41, 41), Draws(3).uniform(-30, 30)
        expected = ndimage.rotate(image[..., 0].astype(float), angle, reshape=False, order=1)
        out = run("rotate(degrees=30)", image, 3)[..., 0]
        np.testing.assert_allclose(out[8:33, 8:33], expected[8:33, 8:33], atol=2)

    def test_zoom(self):
        image, draw = smooth(40, 60), Draws(3)
        high, wide = 1 + draw.uniform(-0.3, 0.3), 1 + draw.uniform(-0.3, 0.3)
        rows = 20 + (np.arange(40) + 0.5 - 20) * high - 0.5
        columns = 30 + (np.arange(60) + 0.5 - 30) * wide - 0.5
        grid = np.meshgrid(rows, columns, indexing="ij")
        expected = ndimage.map_coordinates(image[..., 0].astype(float), grid, order=1)
        out = run("zoom(factor=0.3)", image, 3)[..., 0]
        np.testing.assert_allclose(out[8:32, 8:52], expected[8:32, 8:52], atol=2)


def test_transforms_are_applied_from_left_to_right():
    image = np.full((2, 2, 1), 255, np.uint8)
    before = transforms.apply(transforms.parse("pad(to=4)|normalise(mean=0.5, std=0.5)"), image)
    after = transforms.apply(transforms.parse("normalise(mean=0.5, std=0.5)|pad(to=4)"), image)
    assert (before[0, 0, 0], before[1, 1, 0]) == (-1, 1)
    assert (after[0, 0, 0], after[1, 1, 0]) == (0, 1)


@pytest.mark.parametrize(
    ("spec", "shape", "expected"),
    [
        ("pad(to=32)|pad_crop(padding=4)|flip", (28, 28, 1), (32, 32, 1)),
        ("resize(size=14, keep_aspect=True)", (7, 9, 3), (14, 18, 3)),
        ("resize(size=128, keep_aspect=True)|center_crop(size=112)", (0, 0, 3), (112, 112, 3)),
        ("flip", (0, 0, 3), "differ in size and the transforms leave it so: end data.train_transforms"),
        ("resize(size=128, keep_aspect=True)", (0, 0, 3), "differ in size and the transforms leave it so"),
        ("center_crop(size=224)", (0, 0, 3), "is larger than an image of 1×1; put a resize before it"),
        ("pad(to=8)", (9, 7, 3), "is smaller than an image of 9×7"),
        ("normalise(mean=(0.5, 0.5), std=1.0)", (9, 7, 3), "the images have 3 channels: give one number, or one per"),
    ],
)
def test_the_shape_after_transforms_is_known_unless_images_differ_in_it_or_do_not_fit(spec, shape, expected):
    chain = transforms.parse(spec)
    if isinstance(expected, tuple):
        assert transforms.output_shape(chain, shape) == expected
    else:
        with pytest.raises(UsageError, match=expected):
            transforms.output_shape(chain, shape)
