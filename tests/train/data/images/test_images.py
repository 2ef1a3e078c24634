import dataclasses

import pytest

from attention.errors import UsageError


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": "digit"}, "Unknown data.source 'digit'"),
        ({"train_split": "train[:90"}, r"Cannot read the split 'train\[:90'"),
        ({"validation_split": "train[101%:]"}, "percentage beyond 100"),
        ({"test_split": ""}, "Cannot read the split ''"),
        ({"train_transforms": "filp"}, "Unknown image transform 'filp'"),
        ({"eval_transforms": "filp"}, "Unknown image transform 'filp'"),
        ({"image_shape": "8x8"}, r"data.image_shape must be such as 32x32x3 \(or ''\), but it is '8x8'"),
        ({"image_shape": "1" * 500 + "x8x3"}, "data.image_shape must be such as 32x32x3"),
        ({"image_shape": "99999x99999x3"}, "takes 29,999,400,003 bytes an image, but at most"),
        ({"eval_transforms": "flip"}, "same image every time, but it is 'flip'; use only center_crop, normalise, pad"),
    ],
)
def test_mistakes(defaults, changes, message):
    with pytest.raises(UsageError, match=message):
        dataclasses.replace(defaults, **changes)


def test_load_takes_the_split_of_the_part(defaults):
    data = dataclasses.replace(defaults, train_split="train[:100]", validation_split="train[100:]")
    lengths = {part: len(images) for part, images in data.load().items()}
    assert lengths == {"train": 100, "validation": 1049, "test": 360}
