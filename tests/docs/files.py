"""Small files of the reader's own, where a page says TEXTS, REVIEWS or the like."""

from collections.abc import Mapping
from pathlib import Path
from shutil import copytree

import numpy as np
from PIL import Image

from tests.conftest import ROOT
from tests.docs.reader import SHORT, changed, program
from train.data.sources import caption_digits

SENTENCE = "a good film that I liked and would see again, though its end was a little slow"


def texts(folder: str) -> None:
    """Writes plain text, a document per line, in three splits that are longer than a context of 1,024 tokens."""
    for split, lines in (("train", 1500), ("validation", 300), ("test", 300)):
        _write(Path(folder) / f"{split}.txt", "\n".join(_sentence(n) for n in range(lines)))


def reviews(folder: str) -> None:
    """Writes texts of two classes, in tables of two splits."""
    for split in ("train", "test"):
        rows = (f'"{_sentence(n)}",{n % 2}' for n in range(60))
        _write(Path(folder) / f"{split}.csv", "\n".join(["review,label", *rows]))


def photos(folder: str) -> None:
    """Writes pictures of several sizes in a folder for each of three classes, which differ in colour."""
    noise = np.random.default_rng(0)
    for number, label in enumerate(("cats", "dogs", "eels")):
        for index in range(20):
            pixels = noise.integers(0, 120, (60 + index, 80, 3), np.uint8)
            pixels[..., number] += 100
            path = Path(folder) / label / f"{index:03}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path)


def digits(file: str) -> None:
    """Writes an image of the test captions."""
    Image.fromarray(caption_digits.captioned("test")[0][0, ..., 0]).save(file)


def captioned(table: str) -> None:
    """Writes pictures of one colour each, and a table of their paths and captions."""
    for number in range(80):
        Image.new("RGB", (24, 16), (3 * number, 0, 0)).save(f"{number}.png")
    _write(Path(table), "\n".join(["path,caption", *(f"{n}.png,a red of {n % 7}" for n in range(80))]))


def trained(workdir: str, config: str, changes: Mapping[str, str]) -> None:
    """Trains a run of two steps, as another page describes."""
    code, printed = program("train.main", changed([f"--config={config}", f"--workdir={workdir}"], SHORT | changes))
    assert code == 0, printed


def looked_at() -> None:
    """Trains the small runs that a page looks at."""
    tiny = {"model.depth": "1", "model.width": "16", "model.mlp": "16"}
    trained("runs/gpt", "configs/gpt_pydoc.py", tiny | {"data.context": "64"})
    trained("runs/gpt-delta", "configs/gpt_pydoc.py:delta", tiny | {"data.context": "64"})
    trained("runs/dates", "configs/translate_dates.py", tiny | {"model.decoder_depth": "1", "data.translations": "0"})


def seeds() -> None:
    """Copies `runs/super-0` to more runs."""
    for name in ("super-1", "dot_product-0", "a", "b"):
        copytree("runs/super-0", f"runs/{name}")


def compared() -> None:
    """Makes a folder of runs with two mechanisms, and copies the project's files from which pictures are drawn."""
    copytree("runs/super-0", "runs/digits/super-0")
    copytree("runs/super-0", "runs/digits/dot_product-0")
    config = Path("runs/digits/dot_product-0/config.json")
    config.write_text(config.read_text().replace('"super"', '"dot_product"'))
    for folder in ("benchmarks/results", "configs"):
        copytree(ROOT / folder, folder)


def lines(file: str, *sentences: str) -> None:
    """Writes a sentence per line."""
    _write(Path(file), "\n".join(sentences))


def _sentence(number: int) -> str:
    words = SENTENCE.split()[number % 7 : number % 7 + 6]
    return " ".join([*words, str(number)])


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")
