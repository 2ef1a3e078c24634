import numpy as np
import pytest

from attention.errors import UsageError
from train.data.draws import Draws
from train.data.images import transforms
from train.data.images.transforms import Flip, PadCrop


def test_parse():
    assert transforms.parse("pad_crop(padding=2)|flip") == (PadCrop(padding=2), Flip(p=0.5))
    assert transforms.parse("") == ()


def test_transforms_are_applied_from_left_to_right():
    image = np.full((2, 2, 1), 255, np.uint8)
    before = transforms.apply(transforms.parse("pad(to=4)|normalise(mean=0.5, std=0.5)"), image)
    after = transforms.apply(transforms.parse("normalise(mean=0.5, std=0.5)|pad(to=4)"), image)
    assert (before[0, 0, 0], before[1, 1, 0]) == (-1, 1)
    assert (after[0, 0, 0], after[1, 1, 0]) == (0, 1)


def test_without_normalise_images_are_scaled_to_one():
    image = np.arange(256, dtype=np.uint8).reshape(16, 16, 1)
    out = transforms.apply(transforms.parse("flip(p=1.0)"), image, Draws())
    assert out.dtype == np.float32
    np.testing.assert_allclose(out, image[:, ::-1] / 255, atol=1e-7)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("filp", r"Unknown image transform 'filp'\. Did you mean 'flip'\? Valid: center_crop, colour_jitter, flip"),
        ("color_jitter", "Did you mean 'colour_jitter'"),
        ("normalize", "Did you mean 'normalise'"),
        ("pad_crop(pading=2)", r"Unknown option of pad_crop 'pading'\. Did you mean 'padding'\? Valid: padding"),
        ("pad_crop(padding=2.5)", "The option padding of pad_crop must be a whole number, but it is 2.5"),
        ("pad_crop(padding=True)", "padding of pad_crop must be a whole number, but it is True"),
        ("pad_crop(padding=-1)", "padding of pad_crop must be at least 0 and at most 16384, but it is -1"),
        ("resize", r"resize needs size: write resize\(size=\.\.\.\)"),
        ("resize(size=0)", "size of resize must be at least 1 and at most 16384, but it is 0"),
        ("resize(size=8, keep_aspect=1)", "keep_aspect of resize must be True or False, but it is 1"),
        ("center_crop(size='a')", "size of center_crop must be a whole number"),
        ("flip(p=2)", "p of flip must be at least 0 and at most 1, but it is 2"),
        ("random_resized_crop(size=8, scale=0.5)", "must be numbers in parentheses, each above 0"),
        (
            "random_resized_crop(size=8, scale=(0.5, 0.1))",
            r"scale of random_resized_crop must be a low bound, then a high one, but it is \(0.5, 0.1\)",
        ),
        ("random_resized_crop(size=8, scale=(0.5, 1.5))", r"each above 0 and at most 1, but it is \(0.5, 1.5\)"),
        ("colour_jitter(contrast=-0.1)", "contrast of colour_jitter must be at least 0 and at most"),
        ("zoom(factor=1.0)", "factor of zoom must be at least 0 and below 1, but it is 1.0"),
        ("normalise(mean='a', std=1)", "mean of normalise must be a number or numbers in parentheses, but it is 'a'"),
        ("normalise(mean=0.5, std=0)", "std of normalise must be at most 16384 and above 0, but it is 0"),
        ("normalise(mean=(0.5, 0.5), std=(1.0, 1.0, 1.0))", "normalise needs as many means as stds"),
        ("normalise(mean=0.5, std=1)|rotate(degrees=5)", "rotate cannot come after normalise in .*; put it before"),
        ("normalise(mean=0.5, std=1)|normalise(mean=0.5, std=1)", "normalise cannot come after normalise"),
        ("flip|", "Cannot read 'flip|'"),
    ],
)
def test_mistakes(spec, message):
    with pytest.raises(UsageError, match=message):
        transforms.parse(spec)


class TestOutputShape:
    @pytest.mark.parametrize(
        ("spec", "shape", "expected"),
        [
            ("", (8, 8, 1), (8, 8, 1)),
            ("pad(to=32)|pad_crop(padding=4)|flip", (28, 28, 1), (32, 32, 1)),
            ("resize(size=16, keep_aspect=True)", (8, 4, 3), (32, 16, 3)),
            ("random_resized_crop(size=112)|flip", (0, 0, 3), (112, 112, 3)),
            ("resize(size=128, keep_aspect=True)|center_crop(size=112)", (0, 0, 3), (112, 112, 3)),
            ("resize(size=24)", (0, 0, 1), (24, 24, 1)),
        ],
    )
    def test_known(self, spec, shape, expected):
        assert transforms.output_shape(transforms.parse(spec), shape) == expected

    @pytest.mark.parametrize("spec", ["", "flip", "resize(size=128, keep_aspect=True)"])
    def test_varying(self, spec):
        with pytest.raises(UsageError, match=r"differ in size and the transforms leave it so: end data.train_trans"):
            transforms.output_shape(transforms.parse(spec), (0, 0, 3))

    def test_images_that_may_be_too_small(self):
        with pytest.raises(UsageError, match="is larger than an image of 1×1; put a resize before it"):
            transforms.output_shape(transforms.parse("center_crop(size=224)"), (0, 0, 3))
