import dataclasses
from pathlib import Path

import numpy as np
import pytest

from tests.train.data.streams import labelled
from train.data.captions import CaptionData
from train.data.encodings.images import LabelledImages
from train.data.images.section import ImageData, ImageExamples
from train.data.pairs import TranslationData
from train.data.splits import PARTS
from train.data.text.section import LabelledTextData, MaskedTextData, TextData
from train.data.trials.section import TrialData

DEFAULTS = ImageData(batch_size=8, eval_batch_size=8, classes=0, image_shape="")
MIXED = {"train_transforms": "pad_crop(padding=2)|flip|normalise(mean=0.5, std=0.25)", "mixup": 0.4}
IMAGES = {
    "augmented images": {
        "train_transforms": "pad_crop(padding=2)|flip(p=0.3)|normalise(mean=0.3, std=(0.2, 0.3, 0.7))",
        "eval_transforms": "normalise(mean=0.3, std=0.7)",
    },
    "images that are resized first": {
        "train_transforms": "resize(size=9)|pad_crop|flip",
        "eval_transforms": "resize(size=12)|center_crop(size=9)",
    },
    "images that are padded last": {
        "train_transforms": "normalise(mean=0.4, std=0.3)|flip|pad(to=11)|pad_crop|center_crop(size=7)",
        "eval_transforms": "normalise(mean=0.4, std=0.3)|pad(to=11)|center_crop(size=7)",
    },
    "mixed images": MIXED,
}
SECTIONS = {
    "next tokens": (TextData, {"eval_stride": 5}),
    "masked tokens": (MaskedTextData, {"mask_rate": 0.3}),
    "masked tokens without marks": (MaskedTextData, {"tokeniser": "wordpiece(size=80)", "context": 7}),
    "last tokens of documents": (LabelledTextData, {"keep": "last"}),
    "pairs": (TranslationData, {}),
    "pairs in buckets": (TranslationData, {"buckets": "12,20"}),
    "trials": (TrialData, {"source": "recall(size=4, least=2, tested=(6,))", "train_examples": 21, "eval_examples": 9}),
    "captions": (CaptionData, {"train_transforms": "pad_crop|normalise(mean=0.5, std=0.5)"}),
}


@pytest.fixture
def photos() -> LabelledImages:
    """21 different noise images of 6×5 in 3 classes."""
    images = np.random.default_rng(0).integers(0, 256, (21, 6, 5, 3), np.uint8)
    return labelled(images, np.arange(21) % 3)


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder of plain text with three splits."""
    place = tmp_path / "texts"
    place.mkdir()
    (place / "train.txt").write_text("".join(f"Line {i} says that {i * i} is a square.\n" for i in range(60)))
    (place / "valid.txt").write_text("Seven words are in this second line.\n\nÄöü!\n")
    (place / "test.txt").write_text("The end.\n")
    return place


@pytest.fixture
def make_examples(photos, folder, tmp_path):
    """Makes the examples of one of IMAGES or SECTIONS, by split, with changes to its section."""
    rows = [f"{'word ' * (n % 7)}last{n}\tlabel {'of ' * (n % 5)}it\t{n % 3}" for n in range(31)]
    (tmp_path / "table.tsv").write_text("text\ttarget\tn\n" + "\n".join(rows) + "\n")
    text = {"source": f"file:{folder}", "tokeniser": "bytes", "context": 16}
    table = {"source": f"file:{tmp_path}/table.tsv"} | {f"{part}_split": "train" for part in PARTS}
    few = {"train_split": "validation[:90]", "validation_split": "validation[90:150]", "test_split": "validation[990:]"}
    fields = {
        TextData: text,
        MaskedTextData: text,
        LabelledTextData: table | {"label_column": "n", "context": 3, "tokeniser": "words"},
        TranslationData: table | {"source_column": "text", "source_length": 50, "target_length": 30},
        TrialData: {},
        CaptionData: few,
    }

    def make(kind, **changes):
        if kind in IMAGES:
            return dict.fromkeys(PARTS, ImageExamples(dataclasses.replace(DEFAULTS, **IMAGES[kind] | changes), photos))
        section, given = SECTIONS[kind]
        data = section(**{"batch_size": 4, "eval_batch_size": 4} | fields[section] | given | changes)
        loaded = data.load()
        return data.examples(loaded) if hasattr(data, "examples") else loaded

    return make
