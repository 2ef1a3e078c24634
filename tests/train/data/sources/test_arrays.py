"""Images in memory: what arrays must be, what identifies them, and files of them."""

import pickle

import numpy as np
import pytest

from attention.errors import UsageError
from tests.train.data.streams import labelled, load
from train.data.images.section import ImageData
from train.data.splits import Split


class TestArrays:
    def test_records(self, photos):
        assert (len(photos), photos.num_classes, photos.image_shape) == (21, 3, (6, 5, 3))
        assert photos[4]["label"] == 1
        assert labelled(np.zeros((2, 6, 5), np.uint8), [0, 1]).image_shape == (6, 5, 1)
        copy = pickle.loads(pickle.dumps(photos))
        np.testing.assert_array_equal(copy[3]["image"], photos[3]["image"])

    def test_content_changes_with_every_image_and_label(self, photos):
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
            (np.zeros((2, 6), np.uint8), [0, 1], r"must be uint8 .* but they are uint8 \(2, 6\)"),
            (np.zeros((2, 6, 5), np.uint8), [0.0, 1.0], "Labels must be integers"),
            (np.zeros((2, 6, 5), np.uint8), [[0], [1]], r"Labels must be integers .* \(2, 1\)"),
            (np.zeros((2, 6, 5), np.uint8), [0, 1, 1], "as many labels as images, and some; got 3 and 2"),
            (np.zeros((0, 6, 5), np.uint8), np.zeros(0, int), "and some; got 0 and 0"),
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
