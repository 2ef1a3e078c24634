"""Published data sets against the numbers published with them, in the folder that ATTENTION_BENCH_DATA names."""

import os
from pathlib import Path

import numpy as np
import pytest

from tests.train.data.streams import load, read, take
from train.data.images.section import ImageData
from train.data.text.section import LabelledTextData, TextData

CUT = {"train_split": "train[:90%]", "validation_split": "train[90%:]", "test_split": "train"}


@pytest.fixture
def real(request):
    """The folder of all sets, if it has the test's."""
    root, name = os.environ.get("ATTENTION_BENCH_DATA"), request.node.originalname.removeprefix("test_")
    if not root or not (Path(root) / name).is_dir():
        pytest.skip(f"set ATTENTION_BENCH_DATA to a folder whose subfolder {name} holds that set")
    return Path(root)


def test_tfds(real):
    """Prepared MNIST and CIFAR-100."""
    sizes = {"mnist": (60_000, 10_000, 10, (28, 28, 1)), "cifar100": (50_000, 10_000, 100, (32, 32, 3))}
    for name, expected in sizes.items():
        train, test = (load(f"tfds:{name}", split, data_dir=str(real / "tfds")) for split in ("train", "test"))
        assert (len(train), len(test), train.num_classes, train.image_shape) == expected
        assert train[0]["image"].shape == expected[-1]
    np.testing.assert_array_equal(np.bincount([record["label"] for record in test]), 100)
    total = sum(record["image"].sum(axis=(0, 1), dtype=np.int64) for record in train)
    np.testing.assert_allclose(total / (255 * 50_000 * 32 * 32), [0.50707, 0.48655, 0.44092], atol=1e-5)
    fields = {"source": "tfds:cifar100", "data_dir": str(real / "tfds"), "classes": 100, "image_shape": "32x32x3"}
    parts = ImageData(**fields, batch_size=32, eval_batch_size=500, train_transforms="pad_crop|flip").load()
    batches = take(parts["train"].train_batches(seed=0), 4)
    assert {batch["image"].shape for batch in batches} == {(32, 32, 32, 3)}
    assert len({index for batch in batches for index in batch["index"]}) == 128
    assert sum(batch["weight"].sum() for batch in parts["test"].eval_batches()) == 10_000


def pairs(place, split="train", source="de", target="en"):
    return read(f"file:{place}", split, source=source, target=target)


def test_multi30k(real):
    counts = {split: len(pairs(real / "multi30k", split)) for split in ("train", "validation", "test")}
    assert counts == {"train": 29_000, "validation": 1014, "test": 1000}
    assert pairs(real / "multi30k", "test")[0][1].strip() == "A man in an orange hat starring at something."


def test_spa_eng(real):
    found = pairs(real / "spa_eng" / "spa.txt.xz", source="1", target="2")
    assert len(found) == 118_964
    assert found[0] == ("Go.", "Ve.\n")


def test_wikitext2(real, text_fields):
    fields = {"tokeniser": "words(lower=False, strip=False, marks=True)", "end_token": True, "context": 1024}
    text = TextData(source=f"file:{real}/wikitext2", **text_fields | fields).load()
    assert [len(tokens.ids) for tokens in text.splits.values()] == [2_088_628, 217_646, 245_569]
    assert text.tokeniser.size == 33_278 + 4  # with the end of a line; we have four more special tokens


def test_imdb(real, text_fields):
    fields = {"text_column": "review", "label_column": "label", "tokeniser": "words(size=20000)"}
    cut = {"train_split": "test[:90%]", "validation_split": "test[90%:]"}
    text = LabelledTextData(source=f"file:{real}/imdb", **text_fields | fields | cut).load()
    assert (text.tokeniser.size, text.class_names) == (20_000, ("0", "1"))
    assert np.bincount(text.splits["test"].labels).tolist() == [12_500, 12_500]
    assert [len(tokens) for tokens in text.splits.values()] == [22_500, 2_500, 25_000]


def test_tinyshakespeare(real, text_fields):
    text = TextData(source=f"file:{real}/tinyshakespeare", **text_fields | CUT).load()
    assert text.splits["test"].bytes == len(text.splits["test"].ids) == 1_115_394
    assert len(np.unique(text.splits["test"].ids[:])) == 65
