"""Folders, tables and hub sets of pictures: pixels, classes, splits, and mistakes."""

import dataclasses
import io
import json
import os
import pickle
import shutil

import datasets
import numpy as np
import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet

from attention.errors import UsageError
from tests.train.data.streams import load
from train.data import splits
from train.data.encodings import images
from train.data.images.section import ImageData

CLASSES = ("cat", "dog", "eel")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTENTION_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "hf"))
    return tmp_path / "cache"


def colour(label, number):
    return 60 * CLASSES.index(label), 3 * number, 200


def picture(label, number, size=(12, 8)):
    """Makes a picture of one colour, so that any scaling and cropping gives the same pixels."""
    return Image.new("RGB", size, colour(label, number))


def encoded(label, number):
    picture(label, number).save(file := io.BytesIO(), "png")
    return {"bytes": file.getvalue(), "path": None}


def write(folder, count=4, size=(12, 8), classes=CLASSES):
    for label in classes:
        (folder / label).mkdir(parents=True)
        for number in range(count):
            picture(label, number, size).save(folder / label / f"{number}.png")
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
        shutil.copytree(tmp_path / "a" / "cat", tmp_path / "a" / "train")  # which may be a class
        assert load(f"folder:{tmp_path}/a", "train").class_names == (*CLASSES, "train")

    @pytest.mark.parametrize(
        ("counts", "sizes", "said"),
        [
            ({"train": 4, "val": 2, "test": 1}, [12, 6, 3], None),
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
        said_of = list(splits.remarks(data, {part: images.split for part, images in parts.items()}))
        assert len(said_of) == (said is not None)
        assert all(said in line for line in said_of)
        if "" in counts:
            assert len({colour for images in parts.values() for colour in colours(images)}) == 60

    def test_a_part_may_lack_a_class_but_not_add_one(self, tmp_path):
        write(tmp_path / "a" / "train"), write(tmp_path / "a" / "test", classes=("eel",))
        assert {label for label, *_ in colours(section(f"folder:{tmp_path}/a").load()["test"].split)} == {2}
        write(tmp_path / "a" / "test", count=0, classes=("fox",))
        shutil.copy(tmp_path / "a" / "test" / "eel" / "0.png", tmp_path / "a" / "test" / "fox")
        with pytest.raises(UsageError, match="The test data have the class 'fox', which the training data lack"):
            section(f"folder:{tmp_path}/a").load()

    def test_every_size_and_mode_becomes_the_one_that_is_asked(self, tmp_path):
        place = write(tmp_path / "a", count=1, classes=("cat", "dog"))
        grey = np.full((9, 5), 1000 * 256 // 10, np.uint16)
        Image.fromarray(grey).save(place / "cat" / "sixteen.png")
        picture("cat", 5, (300, 40)).save(place / "cat" / "wide.jpg", quality=100)
        picture("cat", 6).quantize().save(place / "cat" / "palette.gif")
        picture("cat", 7).convert("CMYK").save(place / "cat" / "print.tif")
        picture("cat", 8).convert("RGBA").save(place / "cat" / "alpha.webp", lossless=True)
        source = load(f"folder:{place}", "train", image_shape="4x4x3")
        assert source.image_shape == (4, 4, 3)
        wanted = {"sixteen": (100, 100, 100), "wide": colour("cat", 5), "alpha": colour("cat", 8)}
        pixels = {record["image"][0, 0].tobytes() for record in source}
        distances = [
            [np.abs(np.frombuffer(p, np.uint8) - np.array(rgb)).max() for p in pixels] for rgb in wanted.values()
        ]
        assert np.min(distances, axis=1).max() <= 2
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

    def test_images_of_other_sizes_and_those_that_cannot_be_read_are_named(self, tmp_path, cache):
        place = write(tmp_path / "a", count=8)
        picture("eel", 0, (5, 5)).save(place / "eel" / "z.png")
        with pytest.raises(UsageError, match=r"differ in size: .*0\.png is 8x12x3 and .*z\.png is 5x5x3; set"):
            load(f"folder:{place}", "train")
        (place / "eel" / "z.png").unlink()
        whole = (place / "dog" / "0.png").read_bytes()
        for number in range(7):
            (place / "dog" / f"{number}.png").write_bytes(whole[: 40 + number])
        with pytest.raises(UsageError, match=r"7 of the images cannot be read: .*dog/0\.png \(.*and 2 more;") as e:
            load(f"folder:{place}", "train")
        assert str(e.value).count("dog/") == 5
        assert not [path for path in (cache / "images").iterdir() if path.is_dir()]

    def test_no_folder_of_classes(self, tmp_path, monkeypatch):
        place = write(tmp_path / "a")
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
            (
                "notes.txt",
                lambda path: path.write_text("x"),
                "is not named as an image; move it elsewhere, or convert",
            ),
            ("print.eps", lambda path: path.write_text("x"), "is not named as an image"),
        ],
    )
    def test_what_is_no_image_is_refused_unless_hidden(self, tmp_path, name, make, message):
        place = write(tmp_path / "a")
        (place / "cat" / ".DS_Store").write_text("x")
        assert len(load(f"folder:{place}", "train")) == 12
        make(place / "cat" / name)
        with pytest.raises(UsageError, match=message):
            load(f"folder:{place}", "train")

    def test_only_known_formats_are_opened_whatever_their_name(self, tmp_path, monkeypatch):
        """Pillow would run Ghostscript for PostScript, and has readers of many old formats."""
        monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *args, **options: pytest.fail("ran a program"))
        for number, kind in enumerate(("EPS", "PCX", "TGA")):
            place = write(tmp_path / str(number), count=1, classes=("cat",))
            picture("cat", 0).save(place / "cat" / "1.jpg", kind)
            with pytest.raises(UsageError, match=r"1 of the images cannot be read: .*1\.jpg \(not an image\)"):
                load(f"folder:{place}", "train")
            with pytest.raises(UsageError, match=r"The image '.*1\.jpg' cannot be read \(not an image\)"):
                images.read(place / "cat" / "1.jpg", (4, 4, 3))
        place = write(tmp_path / "all", count=0, classes=("cat",))
        for kind in ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM"):
            picture("cat", 0).save(place / "cat" / f"{kind}.{kind.lower()}")
        assert len(load(f"folder:{place}", "train", image_shape="4x4x3")) == 7


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
        data = section(f"folder:{write(tmp_path / 'a')}", image_shape="64x64x3")
        examples = data.load()["train"]
        examples.evaluate(0)
        copy = pickle.dumps(examples)
        assert len(copy) < 4000
        np.testing.assert_array_equal(pickle.loads(copy).evaluate(3)["image"], examples.evaluate(3)["image"])


class TestTable:
    @pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl"])
    def test_paths_stand_beside_the_table_and_labels_are_names(self, tmp_path, kind):
        write(tmp_path / "a")
        rows = [{"image": f"{label}/{n}.png", "label": label} for label in CLASSES[::-1] for n in range(4)]
        comma = {"csv": ",", "tsv": "\t"}.get(kind)
        lines = [comma.join(values) for values in [rows[0].keys(), *(row.values() for row in rows)]] if comma else None
        (tmp_path / "a" / f"t.{kind}").write_text("\n".join(lines or map(json.dumps, rows)) + "\n")
        source = load(f"file:{tmp_path}/a/t.{kind}", "train")
        assert source.class_names == CLASSES
        assert colours(source) == EXPECTED

    def test_numbers_stay_in_their_order_and_columns_have_any_name(self, tmp_path):
        write(tmp_path / "a")
        (tmp_path / "a" / "t.csv").write_text("path,age\n" + "".join(f"cat/0.png,{n}\n" for n in (10, 9, 100)))
        source = load(f"file:{tmp_path}/a/t.csv", "train", image_key="path", label_key="age")
        assert source.class_names == ("9", "10", "100")
        assert [record["label"] for record in source] == [1, 0, 2]
        with pytest.raises(UsageError, match=r"data.image_key for .*t.csv' \(line 2\) 'image'\..* Valid: age, path"):
            load(f"file:{tmp_path}/a/t.csv", "train")
        (tmp_path / "t.csv").write_text("image,label\nnone.png,cat\n")
        with pytest.raises(UsageError, match=r"t\.csv' \(line 2\) names '.*none\.png', which cannot be read"):
            load(f"file:{tmp_path}/t.csv", "train")

    def test_images_may_stand_in_the_table(self, tmp_path):
        rows = [{"image": encoded(label, n), "label": label} for label in CLASSES for n in range(4)]
        parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "t.parquet")
        assert colours(load(f"file:{tmp_path}/t.parquet", "train")) == EXPECTED


class TestHub:
    @staticmethod
    def table(image="image", label="label", named=True, parts=("train", "validation", "test")):
        rows = [(name, n) for n in range(4) for name in CLASSES]
        classes = datasets.ClassLabel(names=CLASSES[::-1]) if named else datasets.Value("string")
        features = datasets.Features({image: datasets.Image(), label: classes})
        columns = {image: [encoded(*row) for row in rows], label: [name for name, _ in rows]}
        return datasets.DatasetDict(dict.fromkeys(parts, datasets.Dataset.from_dict(columns, features=features)))

    def test_saved_sets_have_their_splits_and_the_sources_order_of_classes(self, tmp_path):
        self.table().save_to_disk(tmp_path / "set")
        parts = section(f"hf:{tmp_path}/set").load()
        assert [len(parts[part]) for part in splits.PARTS] == [12, 12, 12]
        source = parts["validation"].split
        assert source.class_names == CLASSES[::-1]
        assert colours(source) == sorted((2 - label, *rgb) for label, *rgb in EXPECTED)

    def test_columns_are_found_by_their_kind_and_names_of_classes_by_sorting(self, tmp_path):
        self.table(image="img", label="fine", parts=("train", "test")).save_to_disk(tmp_path / "set")
        parts = section(f"hf:{tmp_path}/set", image_shape="").load()
        assert [len(parts[part]) for part in splits.PARTS] == [11, 1, 12]
        assert parts["train"].split.image_shape == (8, 12, 3)
        self.table(label="kind", named=False).save_to_disk(tmp_path / "strings")
        named = load(f"hf:{tmp_path}/strings", "train", label_key="kind")
        assert colours(named) == EXPECTED
        with pytest.raises(UsageError, match=r"Unknown data.image_key for hf:.*set 'pixels'\. Valid: img"):
            load(f"hf:{tmp_path}/set", "train", image_key="pixels")

    def test_one_table_is_train(self, tmp_path):
        self.table()["train"].save_to_disk(tmp_path / "set")
        assert colours(load(f"hf:{tmp_path}/set", "train")) == sorted((2 - label, *rgb) for label, *rgb in EXPECTED)
        with pytest.raises(UsageError, match=r"Unknown split of hf:.*set 'test'\. Valid: train"):
            load(f"hf:{tmp_path}/set", "test")

    def test_a_folder_of_classes_is_read_by_datasets_too(self, tmp_path):
        source = load(f"hf:{write(tmp_path / 'a')}", "train", data_dir=str(tmp_path / "hub"))
        assert source.class_names == CLASSES
        assert colours(source) == EXPECTED
        data = section(f"hf:{tmp_path}/a", data_dir=str(tmp_path / "hub"))
        assert [len(images) for images in data.load().values()] == [10, 1, 1]


def test_an_unnamed_size_of_a_dry_run(tmp_path):
    blank = dataclasses.replace(section("folder:a"), classes=3).blank()
    assert blank.evaluate(0)["image"].shape == (4, 4, 3)
