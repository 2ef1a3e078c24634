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
from train.data.splits import Split
from train.data.text.section import TextData

SIZES = {"train": 1149, "validation": 288, "test": 360}
OWN = ["file:a|b", "hf:a/b:c", "file:a(b"]
VALID = {
    "images": ["digits", "numpy:a.npz", "folder:a", "tfds:a/b:1.0.0", *OWN],
    "text": ["pydoc", "tfds:a", *OWN],
    "pairs": ["dates", "dates()", "dates(forms=('full', 'long'))", "tfds:a/b", *OWN],
    "captions": ["caption_digits", *OWN],
}
INVALID = ["", "date", "digit", "digits:x", "digits()", "pydocs", "pydoc:x", "imdb", "file:", "hf", "numpy", "tfds:"]
INVALID += ["dates|dates", "dates('en')", "dates(", "caption_digit"]


@pytest.mark.parametrize("kind", VALID)
def test_names_are_checked_before_anything_is_opened(kind):
    check = sources.checker(kind)
    for source in VALID[kind]:
        check(source, "data.source")
    others = {source for other in VALID.values() for source in other} - {*VALID[kind]}
    others -= {source for source in others if source.startswith("tfds:") and kind != "captions"}
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
    def test_every_digit_is_in_one_split_and_classes_are_balanced(self):
        assert {split: len(load("digits", split)) for split in SIZES} == SIZES
        assert sorted(np.concatenate(list(digits.indices().values()))) == list(range(1797))
        shares = np.bincount(load_digits().target) / 1797
        for split, size in SIZES.items():
            labels = [record["label"] for record in load("digits", split)]
            np.testing.assert_allclose(np.bincount(labels), shares * size, atol=1)

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
    @pytest.mark.parametrize("part", SIZES)
    def test_the_words_say_which_scans_are_in_the_image_from_left_to_right(self, part):
        images, captions = captioned(part)
        by_pixels = {scan["image"].tobytes(): scan["label"] for scan in load("digits", part)}
        assert len(images) == len(captions) == COUNTS[part]
        for index in (0, 1, 2, 17, len(images) - 1):
            image, found, left = images[index], [], 0
            assert image.shape == SHAPE
            while left <= SHAPE[1] - SIDE:
                squares = (image[top : top + SIDE, left : left + SIDE] for top in range(SHAPE[0] - SIDE + 1))
                labels = [by_pixels[square.tobytes()] for square in squares if square.tobytes() in by_pixels]
                found += labels
                left += SIDE if labels else 1
            assert " ".join(WORDS[label] for label in found) == captions[index]

    def test_they_differ_in_number_and_are_the_same_each_time(self):
        rows = opened("caption_digits", "test")
        captions = [row["target"] for row in rows.read()]
        lengths = [len(caption.split()) for caption in captions]
        assert np.bincount(lengths, minlength=5)[1:].min() > len(captions) / 5
        assert captions[:4] == ["nine seven", "five zero four nine", "zero", "one three zero seven"]  # on any machine
        assert rows.content != opened("caption_digits", "validation").content


class TestPydoc:
    def test_every_topic_is_in_one_split_and_about_a_tenth_is_held_out_each(self):
        assert sorted(name for split in pydoc.splits().values() for name in split) == sorted(topics.topics)
        sizes = {split: sum(map(len, read("pydoc", split, text="text"))) for split in SIZES}
        for split in ("validation", "test"):
            assert 0.07 < sizes[split] / sum(sizes.values()) <= 0.1

    def test_held_out_topics_share_no_paragraph_with_others(self):
        def paragraphs(split):
            parts = [
                " ".join(part.split()) for text in read("pydoc", split, text="text") for part in text.split("\n\n")
            ]
            return {part for part in parts if len(part) >= 60}

        train, validation, test = map(paragraphs, SIZES)
        assert min(len(train), len(validation), len(test)) > 50
        assert not train & validation
        assert not train & test
        assert not validation & test

    def test_mistakes(self):
        with pytest.raises(UsageError, match="pydoc has no classes"):
            opened("pydoc", text="text", label="label")


@pytest.mark.parametrize("source", ["digits", "caption_digits", "pydoc", "dates"])
def test_an_unknown_split_is_named_with_those_there_are(source):
    columns = {"pydoc": {"text": "text"}}.get(source, {})
    with pytest.raises(UsageError, match=rf"split of {source} 'tests'\. Did you mean 'test'\? Valid: test, train, val"):
        opened(source, "tests", **columns)


class TestArrays:
    def test_content_changes_with_images_and_labels(self, photos):
        images, labels = np.stack([photos[i]["image"] for i in range(4)]), np.arange(4)
        darker, swapped = images.copy(), labels[::-1]
        darker[0, 0, 0, 0] ^= 1
        contents = [labelled(*of).content for of in ((images, labels), (darker, labels), (images, swapped))]
        assert len(set(contents)) == 3
        assert labelled(images.copy(), labels.copy()).view(Split.parse("x[1:]")).content == contents[0]

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
    @pytest.fixture
    def file(self, tmp_path, photos):
        images = np.stack([record["image"] for record in photos])
        labels = np.array([record["label"] for record in photos])
        arrays = {"train_image": images, "train_label": labels, "test_image": images[:2], "test_label": labels[:2]}
        np.savez(tmp_path / "photos.npz", **arrays)
        return tmp_path / "photos.npz"

    def test_records(self, file, photos):
        source = load(f"numpy:{file}", "train[10:]")
        assert len(source) == 11
        np.testing.assert_array_equal(source[0]["image"], photos[10]["image"])

    def test_all_splits_have_the_classes_of_all(self, file):
        parts = ImageData(source=f"numpy:{file}", classes=0, image_shape="", validation_split="test").load()
        assert {part.split.num_classes for part in parts.values()} == {3}

    def test_labels_may_be_names(self, tmp_path):
        images = np.zeros((3, 4, 4), np.uint8)
        labels = {"train_label": np.array(["cat", "dog", "cat"]), "test_label": np.array(["eel", "cat", "dog"])}
        np.savez(tmp_path / "named.npz", train_image=images, test_image=images, **labels)
        for split, numbers in (("train", [0, 1, 0]), ("test", [2, 0, 1])):
            source = load(f"numpy:{tmp_path}/named.npz", split)
            assert [record["label"] for record in source] == numbers
            assert source.class_names == ("cat", "dog", "eel")

    def test_mistakes(self, file, tmp_path):
        (tmp_path / "text.npz").write_text("hello")
        np.save(tmp_path / "one.npy", np.zeros(3))
        np.savez(tmp_path / "bad.npz", train_image=np.zeros((2, 4, 4)), train_label=np.zeros(2, int))
        for name, message in {
            "none.npz": r"There is no file '.*none\.npz'",
            "text.npz": r"'.*text\.npz' cannot be read as a \.npz file",
            "one.npy": r"one\.npy' cannot be read as a \.npz file",
            "bad.npz": r"Cannot use 'train' of .*bad\.npz: Images must be uint8",
        }.items():
            with pytest.raises(UsageError, match=message):
                load(f"numpy:{tmp_path}/{name}", "train")
        with pytest.raises(UsageError, match=r"'val_image'\. .*Valid: test_image, test_label, train_image, train_labe"):
            load(f"numpy:{file}", "val")
