"""Folders, tables and hub sets of pictures: pixels, classes, splits, and mistakes."""

import os
import pickle

import datasets
import numpy as np
import pytest
from PIL import Image

from attention.errors import UsageError
from tests.train.data.streams import load
from train.data import splits
from train.data.encodings import images
from train.data.images.section import ImageData

CLASSES = ("cat", "dog", "eel")


def colour(label, number):
    return 60 * CLASSES.index(label), 3 * number, 200


def picture(label, number, size=(12, 8)):
    """Makes a picture of one colour, so that any scaling and cropping gives the same pixels."""
    return Image.new("RGB", size, colour(label, number))


def write(folder, count=4, classes=CLASSES):
    for label in classes:
        (folder / label).mkdir(parents=True)
        for number in range(count):
            picture(label, number).save(folder / label / f"{number}.png")
    return folder


def section(source, **fields):
    return ImageData(source=str(source), classes=0, **{"image_shape": "4x4x3", **fields})


def colours(images):
    """Lists the label and the colour of every picture; each has only one."""
    for record in images:
        assert len(np.unique(record["image"].reshape(-1, 3), axis=0)) == 1
    return sorted((record["label"], *record["image"][0, 0].tolist()) for record in images)


EXPECTED = sorted((CLASSES.index(label), *colour(label, n)) for label in CLASSES for n in range(4))


class TestFolder:
    def test_folders_are_classes_in_alphabetical_order(self, tmp_path):
        source = load(f"folder:{write(tmp_path / 'a')}", "train")
        assert (len(source), source.class_names, source.image_shape) == (12, CLASSES, (8, 12, 3))
        assert colours(source) == EXPECTED
        (tmp_path / "a" / "eel").rename(tmp_path / "a" / "train")  # which may be a class
        assert load(f"folder:{tmp_path}/a", "train").class_names == ("cat", "dog", "train")

    @pytest.mark.parametrize(
        ("counts", "sizes", "said"),
        [
            ({"train": 4, "val": 2, "test": 1}, [12, 6, 3], ""),
            ({"train": 20, "test": 1}, [54, 6, 3], "has no 'validation', so train is train[:90%], validation is "),
            ({"": 20}, [48, 6, 6], "has no 'validation' and no 'test', so train is train[:80%], validation is"),
        ],
    )
    def test_what_is_missing_is_cut_so_that_parts_have_all_classes(self, tmp_path, counts, sizes, said):
        for name, count in counts.items():
            write(tmp_path / "a" / name, count)
        data = section(f"folder:{tmp_path}/a")
        parts = {part: examples.split for part, examples in data.load().items()}
        assert [len(parts[part]) for part in splits.PARTS] == sizes
        assert {label for label, *_ in colours(parts["test"])} == {0, 1, 2}
        remarks = "".join(splits.remarks(data, {part: images.split for part, images in parts.items()}))
        assert said in remarks
        assert bool(said) == bool(remarks)
        if "" in counts:
            assert len({colour for images in parts.values() for colour in colours(images)}) == 60

    def test_a_part_may_lack_a_class_but_not_add_one(self, tmp_path):
        write(tmp_path / "a" / "train"), write(tmp_path / "a" / "test", classes=("eel",))
        assert {label for label, *_ in colours(section(f"folder:{tmp_path}/a").load()["test"].split)} == {2}
        (tmp_path / "a" / "test" / "eel").rename(tmp_path / "a" / "test" / "fox")
        with pytest.raises(UsageError, match="The test data have the class 'fox', which the training data lack"):
            section(f"folder:{tmp_path}/a").load()

    def test_every_size_and_mode_becomes_the_one_that_is_asked(self, tmp_path):
        place = write(tmp_path / "a", count=0, classes=("cat",))
        Image.fromarray(np.full((9, 5), 1000 * 256 // 10, np.uint16)).save(place / "cat" / "0.png")
        picture("cat", 5, (300, 40)).save(place / "cat" / "1.jpg", quality=100)
        picture("cat", 8).convert("RGBA").save(place / "cat" / "2.webp", lossless=True)
        source = load(f"folder:{place}", "train", image_shape="4x4x3")
        for record, expected in zip(source, [(100, 100, 100), colour("cat", 5), colour("cat", 8)], strict=True):
            np.testing.assert_allclose(record["image"], np.broadcast_to(expected, (4, 4, 3)), atol=2)
        assert load(f"folder:{place}", "train", image_shape="5x3x1")[0]["image"].shape == (5, 3, 1)

    def test_the_middle_stays_with_its_proportions_and_photographs_stand_as_the_camera_says(self, tmp_path):
        place = write(tmp_path / "a", count=0, classes=("cat",))
        pixels = np.zeros((8, 24, 3), np.uint8)
        pixels[:, 8:16] = 255
        Image.fromarray(pixels).save(place / "cat" / "0.png")
        image = load(f"folder:{place}", "train", image_shape="4x4x3")[0]["image"]
        assert (image[:, 1:3] == 255).all()
        assert (image > 200).all()  # scaled as a whole, nine of twelve columns would be black
        exif = Image.Exif()
        exif[0x0112] = 6  # to be turned by a quarter, clockwise
        Image.fromarray(pixels[:, :12]).save(place / "cat" / "0.png", exif=exif)
        turned = load(f"folder:{place}", "train")[0]["image"]
        np.testing.assert_array_equal(turned, np.rot90(pixels[:, :12], -1))

    def test_images_of_other_sizes_and_those_that_cannot_be_read_are_named(self, tmp_path):
        place = write(tmp_path / "a", count=8)
        picture("eel", 0, (5, 5)).save(place / "eel" / "z.png")
        with pytest.raises(UsageError, match=r"differ in size: .*0\.png is 8x12x3 and .*z\.png is 5x5x3; set"):
            load(f"folder:{place}", "train")
        for number in range(7):
            (place / "dog" / f"{number}.png").write_bytes(b"none")
        with pytest.raises(UsageError, match=r"7 of the images cannot be read: .*dog/0\.png \(.*and 2 more;"):
            load(f"folder:{place}", "train", image_shape="4x4x3")

    def test_no_folder_of_classes(self, tmp_path, monkeypatch):
        place = write(tmp_path / "a", 1)
        with pytest.raises(UsageError, match="There is no folder"):
            load(f"folder:{tmp_path}/none", "train")
        with pytest.raises(UsageError, match=r"There is no image in a folder in .*; put them in as DIR/train/CLASS/"):
            load(f"folder:{place}/cat", "train")
        with pytest.raises(UsageError, match=r"The folders in .* are splits, not classes; lay it out as DIR/train/"):
            load(f"folder:{write(tmp_path / 'b', 0, classes=('val', 'test'))}", "train")

        def denied(path, pattern):
            raise PermissionError(13, "Permission denied", str(path))

        monkeypatch.setattr("pathlib.Path.rglob", denied)
        with pytest.raises(UsageError, match=r"a/cat' cannot be read \(Permission denied\)"):
            load(f"folder:{place}", "train")

    @pytest.mark.parametrize(
        ("name", "make", "message"),
        [
            ("gone.png", lambda path: path.symlink_to("nowhere.png"), "The folder names '.*', which cannot be read"),
            ("pipe.png", os.mkfifo, r"names '.*', which cannot be read \(it is not a file\)"),  # which may never end
            ("notes.txt", lambda path: path.write_text("x"), "is not named as an image; move it elsewhere, or convert"),
        ],
    )
    def test_what_is_no_image_is_refused_unless_hidden(self, tmp_path, name, make, message):
        place = write(tmp_path / "a", 1)
        (place / "cat" / ".DS_Store").write_text("x")
        assert len(load(f"folder:{place}", "train")) == 3
        make(place / "cat" / name)
        with pytest.raises(UsageError, match=message):
            load(f"folder:{place}", "train")

    def test_only_known_formats_are_opened_whatever_their_name(self, tmp_path, monkeypatch):
        """Pillow would run Ghostscript for PostScript, and has readers of many old formats."""
        monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *args, **options: pytest.fail("ran a program"))
        place = write(tmp_path / "a", count=0, classes=("cat",))
        picture("cat", 0).save(place / "cat" / "1.jpg", "EPS")
        with pytest.raises(UsageError, match=r"1 of the images cannot be read: .*1\.jpg \(not an image\)"):
            load(f"folder:{place}", "train")
        with pytest.raises(UsageError, match=r"The image '.*1\.jpg' cannot be read \(not an image\)"):
            images.read(place / "cat" / "1.jpg", (4, 4, 3))


class TestStore:
    def test_it_is_decoded_once_and_again_when_a_file_changes(self, tmp_path, monkeypatch):
        """The content is that of pixels and classes, wherever they are."""
        place, other = write(tmp_path / "a"), write(tmp_path / "b")
        before = load(f"folder:{place}", "train").content
        assert load(f"folder:{other}", "train").content == before
        (other / "cat").rename(other / "cow")
        assert load(f"folder:{other}", "train").content != before
        decoded, decode = [], images._decode
        monkeypatch.setattr(images, "_decode", lambda *args, **rest: decoded.append(args) or decode(*args, **rest))
        assert load(f"folder:{place}", "train").content == before
        assert decoded == []
        picture("dog", 30).save(place / "cat" / "0.png")
        assert load(f"folder:{place}", "train").content != before
        assert len(decoded) == 12

    def test_pickles_have_no_pixels(self, tmp_path):
        examples = section(f"folder:{write(tmp_path / 'a')}", image_shape="64x64x3").load()["train"]
        expected = examples.evaluate(3)["image"]
        copy = pickle.dumps(examples)
        assert len(copy) < 4000
        np.testing.assert_array_equal(pickle.loads(copy).evaluate(3)["image"], expected)


def test_paths_stand_beside_their_table_and_columns_have_any_name(tmp_path):
    rows = [f"{label}/{n}.png,{label}" for label in CLASSES[::-1] for n in range(4)]
    table = write(tmp_path / "a") / "t.csv"
    table.write_text("\n".join(["path,kind", *rows]))
    source = load(f"file:{table}", "train", image_key="path", label_key="kind")
    assert source.class_names == CLASSES
    assert colours(source) == EXPECTED
    table.write_text("image,label\nnone.png,cat\n")
    with pytest.raises(UsageError, match=r"t\.csv' \(line 2\) names '.*none\.png', which cannot be read"):
        load(f"file:{table}", "train")


def test_columns_of_a_hub_set_are_found_by_their_kind_and_classes_have_the_sources_order(tmp_path):
    rows = [(name, n) for n in range(4) for name in CLASSES]
    features = datasets.Features({"img": datasets.Image(), "fine": datasets.ClassLabel(names=CLASSES[::-1])})
    columns = {"img": [picture(*row) for row in rows], "fine": [name for name, _ in rows]}
    both = datasets.DatasetDict(dict.fromkeys(("train", "test"), datasets.Dataset.from_dict(columns, features)))
    both.save_to_disk(tmp_path / "set")
    parts = section(f"hf:{tmp_path}/set", image_shape="").load()
    assert [len(parts[part]) for part in splits.PARTS] == [11, 1, 12]
    assert parts["train"].split.class_names == CLASSES[::-1]
    assert colours(parts["test"].split) == sorted((2 - label, *rgb) for label, *rgb in EXPECTED)
    with pytest.raises(UsageError, match=r"Unknown data.image_key for hf:.*set 'pixels'\. Valid: img"):
        load(f"hf:{tmp_path}/set", "train", image_key="pixels")
    with pytest.raises(UsageError, match=r"Unknown split of hf:.*set 'dev'\. Valid: test, train"):
        load(f"hf:{tmp_path}/set", "dev")
