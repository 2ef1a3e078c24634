"""The table of sources, the sources inside packages (digits, captions, the Python manual), and arrays in files."""

import sys
from pydoc_data import topics
from types import SimpleNamespace

import chex
import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from attention.errors import UsageError
from tests.train.data.streams import labelled, load, opened, read
from train.data import sources
from train.data.images.section import ImageData
from train.data.pairs import TranslationData
from train.data.sources import digits, pydoc
from train.data.sources.caption_digits import COUNTS, SHAPE, SIDE, WORDS, captioned
from train.data.sources.rows import picked
from train.data.splits import PARTS, Split
from train.data.text.section import TextData

OWN = ["file:a|b", "hf:a/b:c", "file:a(b"]
VALID = {
    "images": ["digits", "numpy:a.npz", "folder:a", "tfds:a/b:1.0.0", *OWN],
    "text": ["pydoc", *OWN],
    "pairs": ["dates", "dates()", "dates(forms=('full', 'long'))", *OWN],
    "captions": ["caption_digits", *OWN],
}
INVALID = ["", "digit", "digits:x", "digits()", "file:", "hf", "dates|dates", "dates('en')", "dates("]


@pytest.mark.parametrize("kind", VALID)
def test_names_are_checked_before_anything_is_opened(kind):
    check = sources.checker(kind)
    for source in VALID[kind]:
        check(source, "data.source")
    others = {valid[0] for valid in VALID.values()} - {VALID[kind][0]}
    for source in [*INVALID, *others]:
        with pytest.raises(UsageError, match=r"^Unknown data\.source .*Valid: .*file:PATH, .*hf:NAME") as error:
            check(source, "data.source")
        assert repr(source) in str(error.value)


def test_a_source_is_one_file_and_one_row(monkeypatch, tmp_path):
    def open_split(name, split, columns, data):
        rows = [(str(n), {"name": f"line {n}\n", "en": f"one {n}", "de": f"eins {n}"}) for n in range(40)]
        return picked(f"{split} of {name}", columns, [name, split], lambda: iter(rows))

    monkeypatch.setitem(sources.SOURCES, "toy", sources.Source("toy:NAME", ("text", "pairs")))
    monkeypatch.setitem(sys.modules, "train.data.sources.toy", SimpleNamespace(open_split=open_split))
    fields = {"source": "toy:set", "cache_dir": str(tmp_path), "batch_size": 4}
    text = TextData(**fields, text_column="name", context=8)
    assert text.examples(text.load())["train"].eval_length > 1
    pairs = TranslationData(**fields, source_column="de", target_column="en")
    assert pairs.load().texts("test", "target", np.arange(2)) == ["one 0", "one 1"]
    with pytest.raises(UsageError, match=r"Unknown data\.source 'toy:set'"):
        sources.checker("images")("toy:set", "data.source")


class TestDigits:
    def test_the_split_is_scikit_learns(self):
        """Published numbers depend on it: if this fails, the split changed, and so must every result."""
        labels = load_digits().target
        rest, test = train_test_split(np.arange(len(labels)), test_size=360, stratify=labels, random_state=0)
        train, validation = train_test_split(rest, test_size=288, stratify=labels[rest], random_state=0)
        chex.assert_trees_all_equal(digits.indices(), {"train": train, "validation": validation, "test": test})

    def test_pixels(self):
        source, original = load("digits", "test"), load_digits()
        for i, index in enumerate(digits.indices()["test"][:20]):
            image = source[i]["image"]
            assert image.dtype == np.uint8
            np.testing.assert_allclose(image[..., 0] / 255 * 16, original.images[index], atol=0.5 / 255 * 16)
            assert source[i]["label"] == original.target[index]
        assert (source.image_shape, source.num_classes) == ((8, 8, 1), 10)


class TestCaptions:
    def test_the_words_say_which_scans_are_in_the_image_from_left_to_right(self):
        images, captions = captioned("validation")
        by_pixels = {scan["image"].tobytes(): scan["label"] for scan in load("digits", "validation")}
        assert len(images) == len(captions) == COUNTS["validation"]
        for index in (0, 1, 2, 17, len(images) - 1):
            image, found, left = images[index], [], 0
            while left <= SHAPE[1] - SIDE:
                squares = (image[top : top + SIDE, left : left + SIDE] for top in range(SHAPE[0] - SIDE + 1))
                labels = [by_pixels[square.tobytes()] for square in squares if square.tobytes() in by_pixels]
                found += labels
                left += SIDE if labels else 1
            assert " ".join(WORDS[label] for label in found) == captions[index]

    def test_they_are_the_same_on_any_machine(self):
        captions = [row["target"] for row in opened("caption_digits", "test").read()]
        assert captions[:4] == ["nine seven", "five zero four nine", "zero", "one three zero seven"]


class TestPydoc:
    def test_every_topic_is_in_one_split_and_about_a_tenth_is_held_out_each(self):
        assert sorted(name for split in pydoc.splits().values() for name in split) == sorted(topics.topics)
        sizes = {split: sum(map(len, read("pydoc", split, text="text"))) for split in PARTS}
        for split in ("validation", "test"):
            assert 0.07 < sizes[split] / sum(sizes.values()) <= 0.1

    def test_held_out_topics_share_no_paragraph_with_others(self):
        def paragraphs(split):
            parts = "\n\n".join(read("pydoc", split, text="text")).split("\n\n")
            return {" ".join(part.split()) for part in parts if len(" ".join(part.split())) >= 60}

        train, validation, test = map(paragraphs, PARTS)
        assert min(len(train), len(validation), len(test)) > 50
        assert not train & (validation | test)
        assert not validation & test

    def test_it_has_no_classes(self):
        with pytest.raises(UsageError, match="pydoc has no classes"):
            opened("pydoc", text="text", label="label")


@pytest.mark.parametrize("source", ["digits", "caption_digits", "pydoc", "dates"])
def test_an_unknown_split_is_named_with_those_there_are(source):
    with pytest.raises(UsageError, match=rf"split of {source} 'tests'\. Did you mean 'test'\? Valid: test, train, val"):
        opened(source, "tests")


class TestArrays:
    def test_content_changes_with_images_and_labels(self):
        images, labels = np.arange(24, dtype=np.uint8).reshape(4, 3, 2), np.arange(4)
        changed = [(images, labels), (images ^ 1, labels), (images, labels[::-1])]
        contents = [labelled(*of).content for of in changed]
        assert len(set(contents)) == 3
        assert labelled(images, labels).view(Split.parse("x[1:]")).content == contents[0]

    @pytest.mark.parametrize(
        ("images", "labels", "message"),
        [
            (np.zeros((2, 6, 5)), [0, 1], r"must be uint8 .* but they are float64 \(2, 6, 5\)"),
            (np.zeros((2, 6, 5), np.uint8), [[0], [1]], r"Labels must be integers .* \(2, 1\)"),
            (np.zeros((2, 6, 5), np.uint8), [0, 1, 1], "as many labels as images, and some; got 3 and 2"),
            (np.zeros((2, 6, 5), np.uint8), [0, -1], "at least 0 and below 16,777,216, but they go from -1 to 0"),
        ],
    )
    def test_mistakes(self, images, labels, message):
        with pytest.raises(UsageError, match=message):
            labelled(images, labels)


class TestNumpy:
    def test_all_splits_have_the_classes_of_all_which_may_be_names(self, tmp_path):
        images = np.random.default_rng(0).integers(0, 256, (3, 4, 4), np.uint8)
        labels = {"train_label": np.array(["cat", "dog", "cat"]), "test_label": np.array(["eel", "cat", "dog"])}
        np.savez(tmp_path / "named.npz", train_image=images, test_image=images, **labels)
        for split, numbers in (("train", [0, 1, 0]), ("test", [2, 0, 1])):
            source = load(f"numpy:{tmp_path}/named.npz", split)
            assert [record["label"] for record in source] == numbers
            assert source.class_names == ("cat", "dog", "eel")
            np.testing.assert_array_equal(source[1]["image"][..., 0], images[1])
        numbered = {"train_label": np.array([0, 1, 0]), "test_label": np.array([0, 2, 0])}
        np.savez(tmp_path / "numbered.npz", train_image=images, test_image=images, **numbered)
        data = ImageData(source=f"numpy:{tmp_path}/numbered.npz", classes=0, image_shape="", validation_split="test")
        assert {part.split.num_classes for part in data.load().values()} == {3}

    def test_mistakes(self, tmp_path):
        (tmp_path / "text.npz").write_text("hello")
        np.savez(tmp_path / "bad.npz", train_image=np.zeros((2, 4, 4)), train_label=np.zeros(2, int))
        with pytest.raises(UsageError, match=r"'.*text\.npz' cannot be read as a \.npz file"):
            load(f"numpy:{tmp_path}/text.npz", "train")
        with pytest.raises(UsageError, match=r"Cannot use 'train' of .*bad\.npz: Images must be uint8"):
            load(f"numpy:{tmp_path}/bad.npz", "train")
        with pytest.raises(UsageError, match=r"'val_image'\. .*Valid: train_image, train_label"):
            load(f"numpy:{tmp_path}/bad.npz", "val")
