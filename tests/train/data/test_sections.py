"""Mistakes in configs' `data` sections are one sentence, before anything is opened."""

import pytest

from attention.errors import UsageError
from train.data.captions import CaptionData
from train.data.images.section import ImageData
from train.data.pairs import TranslationData
from train.data.text.section import LabelledTextData, TextData


@pytest.mark.parametrize(
    ("section", "changes", "message"),
    [
        (ImageData, {"source": "digit"}, "Unknown data.source 'digit'"),
        (ImageData, {"train_split": "train[:90"}, r"Cannot read the split 'train\[:90'"),
        (ImageData, {"eval_transforms": "flip"}, "same image every time, but it is 'flip'; use only center_crop, norm"),
        (ImageData, {"image_shape": "8x8"}, r"data.image_shape must be such as 32x32x3 \(or ''\), but it is '8x8'"),
        (ImageData, {"image_shape": "8x8x0"}, "data.image_shape must be such as"),
        (ImageData, {"image_shape": "8 x 8 x 1"}, "data.image_shape must be such as"),
        (ImageData, {"image_shape": "99999x99999x3"}, "takes 29,999,400,003 bytes an image, but at most"),
        (ImageData, {"source": "folder:a", "image_shape": "0x0x3"}, "must be one size with 1, 3 or 4 channels"),
        (TextData, {"eval_stride": 129}, "data.eval_stride must be between 0 .* data.context = 128, but it is 129"),
        (LabelledTextData, {"keep": "middle"}, r"Unknown data.keep 'middle'.* Valid: first, last"),
        (LabelledTextData, {"label_column": ""}, "data.label_column must name the column"),
        (TranslationData, {"source_tokeniser": ""}, "Unknown data.source_tokeniser ''"),
        (TranslationData, {"buckets": "64"}, r"data.buckets must be rising .* 1 and 63, .* '16,32', .* but it is '64'"),
        (TranslationData, {"buckets": "a"}, "rising lengths between 1 and 63"),
        (TranslationData, {"by_length": "9,8"}, r"data.by_length must be rising lengths .*, but it is '9,8'"),
        (CaptionData, {"source": "tfds:coco_captions"}, "Unknown data.source .*file:PATH"),
    ],
)
def test_mistakes(section, changes, message):
    with pytest.raises(UsageError, match=message) as error:
        section(**changes)
    assert "\n" not in str(error.value)
