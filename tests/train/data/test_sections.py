"""Mistakes in configs' `data` sections, and in the spec strings there, are one sentence before anything is opened."""

import pytest

from attention.errors import UsageError
from train.data.captions import CaptionData
from train.data.images.section import ImageData
from train.data.pairs import TranslationData
from train.data.text.section import LabelledTextData, TextData
from train.data.trials.section import TrialData

CROP = "random_resized_crop(size=8, scale=(0.5, 0.1))"
UNEVEN = "normalise(mean=(0.5, 0.5), std=(1.0, 1.0, 1.0))"
LATE = "normalise(mean=0.5, std=1)|rotate(degrees=5)"


@pytest.mark.parametrize(
    ("section", "changes", "message"),
    [
        (ImageData, {"source": "digit"}, "Unknown data.source 'digit'"),
        (ImageData, {"train_split": "train[:90"}, r"Cannot read the split 'train\[:90': write a name with an opt"),
        (ImageData, {"train_split": "train[:5.5]"}, r"Cannot read the split 'train\[:5.5\]'"),
        (ImageData, {"train_split": "train[:101%]"}, r"'train\[:101%\]' has a percentage beyond 100"),
        (ImageData, {"train_transforms": "filp"}, r"transform 'filp'\. Did you mean 'flip'\? Valid: center_crop, col"),
        (ImageData, {"train_transforms": CROP}, "scale of .* must be a low bound, then a high one, but it"),
        (ImageData, {"train_transforms": "normalise(mean=0.5, std=0)"}, "std .* must be at most 16384 and above 0"),
        (ImageData, {"train_transforms": UNEVEN}, "normalise needs as many means as stds"),
        (ImageData, {"train_transforms": LATE}, "rotate cannot come after normalise in .*; put it before"),
        (ImageData, {"eval_transforms": "flip"}, "same image every time, but it is 'flip'; use only center_crop, norm"),
        (ImageData, {"image_shape": "8x8"}, r"data.image_shape must be such as 32x32x3 \(or ''\), but it is '8x8'"),
        (ImageData, {"image_shape": "8x8x0"}, "data.image_shape must be such as"),
        (ImageData, {"image_shape": "8 x 8 x 1"}, "data.image_shape must be such as"),
        (ImageData, {"image_shape": "99999x99999x3"}, "takes 29,999,400,003 bytes an image, but at most"),
        (ImageData, {"source": "folder:a", "image_shape": "0x0x3"}, "must be one size with 1, 3 or 4 channels"),
        (TextData, {"eval_stride": 129}, "data.eval_stride must be between 0 .* data.context = 128, but it is 129"),
        (TextData, {"tokeniser": "byte"}, r"Unknown data.tokeniser 'byte'\. Did you mean 'bytes'"),
        (TextData, {"tokeniser": "words(sise=3)"}, r"Unknown option of words 'sise'\. Did you mean 'size'"),
        (TextData, {"tokeniser": "words(size=5)"}, r"words must be at least 6, or 0 \(every word\), but it is 5"),
        (TextData, {"tokeniser": "file:"}, "Unknown data.tokeniser 'file:'"),
        (LabelledTextData, {"keep": "middle"}, r"Unknown data.keep 'middle'.* Valid: first, last"),
        (LabelledTextData, {"label_column": ""}, "data.label_column must name the column"),
        (TranslationData, {"source_tokeniser": ""}, "Unknown data.source_tokeniser ''"),
        (TranslationData, {"source_tokeniser": "marian:a/vocab.json"}, r"write marian:FOLDER/source\.spm or marian:F"),
        (TranslationData, {"target_tokeniser": "marian:source.spm"}, r"write marian:FOLDER/source\.spm or marian:FO"),
        (TranslationData, {"source": "dates(source=('en',))"}, r"option of dates 'source'\. .*Valid: first, forms, l"),
        (TranslationData, {"source": "dates(sources=('en-GB',))"}, r"mean 'en_GB'.*`pybabel --list-locales` lists all"),
        (TranslationData, {"source": "dates(forms=('ful',))"}, r"form of dates 'ful'\. Did you mean 'full'"),
        (TranslationData, {"source": "dates(sources=('de',))"}, r"targets=\('de',\)\) has no two languages"),
        (TranslationData, {"source": "dates(first=2000, last=1999)"}, r"first=2000, last=1999\) has no years"),
        (TranslationData, {"buckets": "64"}, r"data.buckets must be rising .* 1 and 63, .* '16,32', .* but it is '64'"),
        (TranslationData, {"buckets": "a"}, "rising lengths between 1 and 63"),
        (TranslationData, {"by_length": "9,8"}, r"data.by_length must be rising lengths .*, but it is '9,8'"),
        (CaptionData, {"source": "tfds:coco_captions"}, "Unknown data.source .*file:PATH"),
        (TrialData, {"source": "recal(size=3)"}, "Did you mean 'recall'"),
        (TrialData, {"source": "recall(size=4, least=5)"}, "least must be 0 or a size up to size=4, but it is 5"),
        (TrialData, {"source": "copying(tested=(32,))"}, "tested must be other sizes than size=32"),
        (TrialData, {"source": "recall(size=65)"}, "keys=64 are fewer than the pairs"),
        (TrialData, {"source": "stacked_recall(size=4, rewritten=5)"}, "rewritten=5 is more than the least number of"),
        (TrialData, {"source": "selective_copying(size=40)"}, "context=64 does not hold the symbols twice"),
        (TrialData, {"source": "compression(tested=(4,))"}, "compression has one size"),
        (TrialData, {"source": "words(group='A2')"}, "group must be Z2 to Z64, S2 to S5 or A3 to A5, but it is 'A2'"),
        (TrialData, {"source": "induction(least=2)"}, "A size must be at least 3, to have an answer, but one is 2"),
        (TrialData, {"source": "in_context_recall(size=200000)"}, "A size must be at most 16384"),
    ],
)
def test_mistakes(section, changes, message):
    with pytest.raises(UsageError, match=message) as error:
        section(**changes)
    assert "\n" not in str(error.value)
