import pickle

import chex
import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from attention.errors import UsageError
from tests.train.data.streams import load
from train.data.images import sources
from train.data.images.sources import LabelledArrays
from train.data.rows.splits import Split

SIZES = {"train": 1149, "validation": 288, "test": 360}


class TestDigits:
    def test_sizes(self):
        assert {split: len(load("digits", split)) for split in SIZES} == SIZES

    def test_every_digit_is_in_one_split(self):
        indices = np.concatenate(list(sources.digits_indices().values()))
        assert sorted(indices) == list(range(1797))

    def test_classes_are_balanced(self):
        shares = np.bincount(load_digits().target) / 1797
        for split, size in SIZES.items():
            labels = [record["label"] for record in load("digits", split)]
            np.testing.assert_allclose(np.bincount(labels), shares * size, atol=1)

    def test_the_split_is_scikit_learns(self):
        """Published numbers depend on it: if this fails, the split changed, and so must every result."""
        labels = load_digits().target
        rest, test = train_test_split(np.arange(len(labels)), test_size=360, stratify=labels, random_state=0)
        train, validation = train_test_split(rest, test_size=288, stratify=labels[rest], random_state=0)
        chex.assert_trees_all_equal(sources.digits_indices(), {"train": train, "validation": validation, "test": test})

    def test_pixels(self):
        source = load("digits", "test")
        original = load_digits()
        for i, index in enumerate(sources.digits_indices()["test"][:20]):
            assert source[i]["image"].dtype == np.uint8
            np.testing.assert_allclose(
                source[i]["image"][..., 0] / 255 * 16, original.images[index], atol=0.5 / 255 * 16
            )
            assert source[i]["label"] == original.target[index]
        assert source.image_shape == source[0]["image"].shape == (8, 8, 1)
        assert source.num_classes == 10

    def test_unknown_split(self):
        with pytest.raises(
            UsageError, match=r"Unknown split of digits 'tests'. Did you mean 'test'\? Valid: test, train"
        ):
            load("digits", "tests")


class TestSlices:
    def test_slices_of_any_source_make_up_the_whole(self):
        whole = load("digits", "validation")
        parts = [load("digits", text) for text in ("validation[:90%]", "validation[90%:]")]
        assert [len(part) for part in parts] == [259, 29]
        joined = [record for part in parts for record in part]
        for expected, record in zip(whole, joined, strict=True):
            np.testing.assert_array_equal(expected["image"], record["image"])
            assert expected["label"] == record["label"]

    def test_a_slice_ends_where_it_ends(self):
        part = load("digits", "validation[:10]")
        for index in (10, -11):
            with pytest.raises(IndexError):
                part[index]

    def test_a_slice_keeps_the_number_of_classes(self):
        assert load("digits", "train[:1]").num_classes == 10


class TestArrays:
    def test_records(self, photos):
        assert (len(photos), photos.num_classes, photos.image_shape) == (21, 3, (6, 5, 3))
        assert photos[4]["label"] == 1

    def test_content_changes_with_every_image_and_label(self, photos):
        images, labels = np.stack([photos[i]["image"] for i in range(4)]), np.arange(4)
        darker, swapped = images.copy(), labels[::-1]
        darker[0, 0, 0, 0] ^= 1
        contents = [LabelledArrays(*of).content for of in ((images, labels), (darker, labels), (images, swapped))]
        assert len(set(contents)) == 3
        assert LabelledArrays(images.copy(), labels.copy()).view(Split.parse("x[1:]")).content == contents[0]

    def test_a_channel_axis_is_added(self):
        assert LabelledArrays(np.zeros((2, 6, 5), np.uint8), np.array([0, 1])).image_shape == (6, 5, 1)

    def test_pickles(self, photos):
        copy = pickle.loads(pickle.dumps(photos))
        np.testing.assert_array_equal(copy[3]["image"], photos[3]["image"])
        assert copy.num_classes == 3

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
            LabelledArrays(images, np.array(labels))


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
        assert load(f"numpy:{file}", "test").num_classes == 3

    def test_labels_may_be_names(self, tmp_path):
        images = np.zeros((3, 4, 4), np.uint8)
        labels = {"train_label": np.array(["cat", "dog", "cat"]), "test_label": np.array(["eel", "cat", "dog"])}
        np.savez(tmp_path / "named.npz", train_image=images, test_image=images, **labels)
        for split, numbers in (("train", [0, 1, 0]), ("test", [2, 0, 1])):
            source = load(f"numpy:{tmp_path}/named.npz", split)
            assert [record["label"] for record in source] == numbers
            assert source.class_names == ("cat", "dog", "eel")

    def test_missing_array(self, file):
        with pytest.raises(
            UsageError, match=r"'val_image'\. .*Valid: test_image, test_label, train_image, train_label"
        ):
            load(f"numpy:{file}", "val")

    def test_missing_file(self, tmp_path):
        with pytest.raises(UsageError, match=r"There is no file '.*none\.npz'"):
            load(f"numpy:{tmp_path}/none.npz", "train")

    def test_not_an_archive(self, tmp_path):
        (tmp_path / "text.npz").write_text("hello")
        with pytest.raises(UsageError, match=r"'.*text\.npz' cannot be read as a \.npz file"):
            load(f"numpy:{tmp_path}/text.npz", "train")
        np.save(tmp_path / "one.npy", np.zeros(3))
        with pytest.raises(UsageError, match=r"one\.npy' cannot be read as a \.npz file"):
            load(f"numpy:{tmp_path}/one.npy", "train")

    def test_wrong_arrays(self, tmp_path):
        np.savez(tmp_path / "bad.npz", train_image=np.zeros((2, 4, 4)), train_label=np.zeros(2, int))
        with pytest.raises(UsageError, match=r"Cannot use 'train' of .*bad\.npz: Images must be uint8"):
            load(f"numpy:{tmp_path}/bad.npz", "train")


@pytest.mark.parametrize("source", ["digit", "cifar100", "tfds:", "numpy", "digits:x"])
def test_unknown_source(source):
    with pytest.raises(UsageError, match=f"Unknown data.source '{source}'.* Valid: digits, file:TABLE, folder:DIR"):
        load(source, "train")
