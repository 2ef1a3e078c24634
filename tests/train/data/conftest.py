import os
from pathlib import Path

import numpy as np
import pytest

from tests.train.data.streams import labelled
from train.data.encodings.images import LabelledImages
from train.data.images.section import ImageData

DEFAULTS = ImageData(batch_size=8, eval_batch_size=8, classes=0, image_shape="")


@pytest.fixture
def defaults() -> ImageData:
    return DEFAULTS


@pytest.fixture
def photos() -> LabelledImages:
    """21 noise images of 6×5, no two alike, in 3 classes."""
    images = np.random.default_rng(0).integers(0, 256, (21, 6, 5, 3), np.uint8)
    return labelled(images, np.arange(21) % 3)


@pytest.fixture
def tfds_folder() -> str:
    """Folder of the prepared TFDS sets `mnist` and `cifar100`, which ATTENTION_BENCH_DATA/tfds holds."""
    root = os.environ.get("ATTENTION_BENCH_DATA")
    if not root or not (Path(root) / "tfds").is_dir():
        pytest.skip("set ATTENTION_BENCH_DATA to a folder whose subfolder tfds holds prepared mnist and cifar100")
    return str(Path(root) / "tfds")


@pytest.fixture
def real_text() -> Path:
    """Folder of the sets `wikitext2`, `imdb` and `tinyshakespeare`, which is ATTENTION_BENCH_DATA."""
    root = os.environ.get("ATTENTION_BENCH_DATA")
    if not root or not (Path(root) / "wikitext2").is_dir():
        pytest.skip("set ATTENTION_BENCH_DATA to a folder whose subfolders wikitext2 and imdb hold those sets")
    return Path(root)


@pytest.fixture
def text_fields(tmp_path) -> dict:
    """What is alike in the tests' `data` sections for text."""
    cache = str(tmp_path / "cache")
    return {"cache_dir": cache, "tokeniser": "bytes", "context": 16, "batch_size": 4, "eval_batch_size": 4}


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder of plain text with three splits."""
    place = tmp_path / "texts"
    place.mkdir()
    (place / "train.txt").write_text("".join(f"Line {i} says that {i * i} is a square.\n" for i in range(60)))
    (place / "valid.txt").write_text("Seven words are in this second line.\n\nÄöü!\n")
    (place / "test.txt").write_text("The end.\n")
    return place
