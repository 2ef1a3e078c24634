"""Published data sets against the numbers published with them, in the folder that ATTENTION_BENCH_DATA names."""

import os
from pathlib import Path

import numpy as np
import pytest

from tests.train.data.streams import load
from train.data.text.section import TextData


@pytest.fixture
def real(request):
    """The folder of all sets, if it has the test's."""
    root, name = os.environ.get("ATTENTION_BENCH_DATA"), request.node.originalname.removeprefix("test_")
    if not root or not (Path(root) / name).is_dir():
        pytest.skip(f"set ATTENTION_BENCH_DATA to a folder whose subfolder {name} holds that set")
    return Path(root)


def test_tfds(real):
    train, test = (load("tfds:cifar100", split, data_dir=str(real / "tfds")) for split in ("train", "test"))
    assert (len(train), len(test), train.num_classes, train.image_shape) == (50_000, 10_000, 100, (32, 32, 3))
    np.testing.assert_array_equal(np.bincount([record["label"] for record in test]), 100)
    total = sum(record["image"].sum(axis=(0, 1), dtype=np.int64) for record in train)
    np.testing.assert_allclose(total / (255 * 50_000 * 32 * 32), [0.50707, 0.48655, 0.44092], atol=1e-5)


def test_wikitext2(real):
    fields = {"tokeniser": "words(lower=False, strip=False, marks=True)", "end_token": True, "context": 1024}
    text = TextData(source=f"file:{real}/wikitext2", **fields).load()
    assert [len(tokens.ids) for tokens in text.splits.values()] == [2_088_628, 217_646, 245_569]
    assert text.tokeniser.size == 33_278 + 4  # with the end of a line; we have four more special tokens
