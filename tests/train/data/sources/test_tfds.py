"""TFDS sets without TensorFlow. Small sets are written as TFDS would leave them."""

import dataclasses
import io
import json
import pickle
import sys

import numpy as np
import pytest
import requests
import tensorflow_datasets as tfds
from array_record.python.array_record_module import ArrayRecordWriter
from PIL import Image
from tensorflow_datasets.proto import tf_example_pb2

from attention.errors import UsageError
from tests.train.data.streams import load, opened, read
from train.data.encodings import cache, images
from train.data.images.section import ImageData
from train.data.sources import tfds as sets


def write(path, features, examples, splits=("train",)):
    """Writes a prepared set; its examples map features to bytes or numbers."""
    path.mkdir(parents=True)
    tfds.features.FeaturesDict(features).save_config(path)
    describe(path, "array_record", len(examples), splits)
    for split in splits:
        file = path / f"{path.parent.name}-{split}.array_record-00000-of-00001"
        writer = ArrayRecordWriter(str(file), "group_size:1")
        for example in examples:
            made = tf_example_pb2.Example()
            for name, value in example.items():
                feature = made.features.feature[name]
                (feature.bytes_list if isinstance(value, bytes) else feature.int64_list).value.append(value)
            writer.write(made.SerializeToString())
        writer.close()


def describe(path, file_format, count, splits=("train",)):
    template = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
    part = {"shardLengths": [str(count)], "numBytes": "1", "filepathTemplate": template}
    info = {"name": path.parent.name, "version": path.name, "fileFormat": file_format}
    info |= {"splits": [{"name": name} | part for name in splits]}
    (path / "dataset_info.json").write_text(json.dumps(info))


def encoded(picture):
    picture.save(data := io.BytesIO(), "PNG")
    return data.getvalue()


def write_pictures(path, pictures, shape=(None, None, 3)):
    kinds = {"image": tfds.features.Image(shape=shape), "label": tfds.features.ClassLabel(num_classes=5)}
    examples = [{"image": encoded(picture), "label": n, "id": b"unused"} for n, picture in enumerate(pictures)]
    write(path, kinds | {"id": tfds.features.Text()}, examples, ("train", "test"))


@pytest.fixture
def pictures():
    """Three pictures of different sizes, the last one grey."""
    rng = np.random.default_rng(0)
    colour = [Image.fromarray(rng.integers(0, 256, (h, w, 3), np.uint8)) for h, w in ((9, 12), (20, 7))]
    return [*colour, Image.fromarray(rng.integers(0, 256, (8, 8), np.uint8))]


@pytest.fixture
def folder(tmp_path, pictures):
    """A prepared set `pictures` of any size with the splits `train` and `test`, and a set `squares` of one size."""
    write_pictures(tmp_path / "pictures" / "1.0.0", pictures)
    squares = [picture.resize((6, 6)).convert("RGB") for picture in pictures]
    write_pictures(tmp_path / "squares" / "1.0.0", squares, (6, 6, 3))
    return tmp_path


class TestImages:
    def test_records_of_any_size(self, folder, pictures):
        source = load("tfds:pictures", "train", data_dir=str(folder))
        assert (len(source), source.num_classes, source.image_shape) == (3, 5, (0, 0, 3))
        for same in (source, pickle.loads(pickle.dumps(source))):
            for index, picture in enumerate(pictures):
                assert same[index]["label"] == index
                np.testing.assert_array_equal(same[index]["image"], np.asarray(picture.convert("RGB")))

    def test_images_of_one_size_are_decoded_once_unless_they_take_too_much_room(self, folder, pictures, monkeypatch):
        def assert_right():
            source = load("tfds:squares", "train", data_dir=str(folder))
            assert (len(source), source.num_classes, source.image_shape) == (3, 5, (6, 6, 3))
            for index, picture in enumerate(pictures):
                assert source[index]["label"] == index
                np.testing.assert_array_equal(source[index]["image"], picture.resize((6, 6)).convert("RGB"))

        assert_right()
        monkeypatch.setattr(images, "_decode", lambda *args: pytest.fail("decoded again"))
        assert_right()
        monkeypatch.setattr(images, "KEPT_BYTES", 3 * 6 * 6 * 3 - 1)
        monkeypatch.setattr(cache, "arrays", lambda *args: pytest.fail("kept"))
        assert_right()

    def test_slices_keep_the_order_of_the_set_and_its_content(self, folder):
        whole, part = (load("tfds:squares", split, data_dir=str(folder)) for split in ("train", "train[1:]"))
        assert whole.content == part.content != load("tfds:pictures", "train", data_dir=str(folder)).content
        data = ImageData(source="tfds:squares", data_dir=str(folder), classes=5, image_shape="6x6x3")
        data = dataclasses.replace(data, train_split="train[1:]", validation_split="train[:1]")
        assert [record["label"] for record in data.load()["train"].split] == [1, 2]

    def test_the_environment_names_the_folder_and_no_network_is_needed(self, folder, monkeypatch):
        monkeypatch.setenv("TFDS_DATA_DIR", str(folder))
        monkeypatch.setattr(requests.Session, "request", lambda *args, **kwargs: pytest.fail("used the network"))
        assert len(load("tfds:pictures", "test")) == 3


def test_texts_may_be_nested(tmp_path):
    translation, label = tfds.features.Translation(("de", "en")), tfds.features.ClassLabel(names=["neg", "pos"])
    texts = [("Gut, schön!", "Fine!", 1), ("Böse.", "Bad.", 0)]
    examples = [{"both/de": de.encode(), "both/en": en.encode(), "n": n} for de, en, n in texts]
    write(tmp_path / "pairs" / "1.0.0", {"both": translation, "n": label}, examples)
    place = str(tmp_path)
    found = read("tfds:pairs", data_dir=place, source="both.de", target="both.en")
    assert found == [("Gut, schön!", "Fine!"), ("Böse.", "Bad.")]
    labelled = opened("tfds:pairs", data_dir=place, text="both.de", label="n")
    assert labelled.class_names == ("neg", "pos")
    assert [row["label"] for row in labelled.read()] == ["pos", "neg"]
    with pytest.raises(UsageError, match=r"data.text_column for tfds:pairs 'n'\..* Valid: both.de, both.en"):
        opened("tfds:pairs", data_dir=place, text="n")


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("pictures", {"split": "trian"}, r"split of tfds:pictures 'trian'\. Did you mean 'train'\? Valid: test, train"),
        ("pictures", {"image_key": "img"}, r"data.image_key for tfds:pictures 'img'.* Valid: image\."),
        ("pictures", {"label_key": "id"}, r"data.label_key for tfds:pictures 'id'.* Valid: label\."),
        ("cifar1000", {}, r"Unknown TFDS data set 'cifar1000'.* Did you mean 'cifar100'\?"),
        ("foo bar", {}, "Cannot open tfds:foo bar in .*write 'tfds:NAME', 'tfds:NAME/CONFIG'"),
    ],
)
def test_mistakes_in_names(folder, name, fields, message):
    with pytest.raises(UsageError, match=message):
        load(f"tfds:{name}", **{"split": "train"} | fields, data_dir=str(folder))


def test_a_missing_shard_and_one_prepared_as_tfrecord(folder):
    next(folder.glob("pictures/1.0.0/*train*")).unlink()
    message = r"is damaged: .*train.array_record-00000-of-00001 is missing; prepare it again"
    with pytest.raises(UsageError, match=message):
        load("tfds:pictures", "train", data_dir=str(folder))
    describe(folder / "pictures" / "1.0.0", "tfrecord", 3)
    way_out = f"rename {folder}/pictures/1.0.0 and run again with TensorFlow"
    command = "`tfds build pictures --file_format=array_record --data_dir=NEW_FOLDER`"
    with pytest.raises(UsageError, match=f"is prepared in {folder} as tfrecord, .*: {way_out} .* {command}"):
        load("tfds:pictures", "train", data_dir=str(folder))


def test_tfds_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(UsageError, match=r"need the package tensorflow_datasets .*pip install -r requirements.txt"):
        load("tfds:mnist", "train")


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("tensorflow", ", and preparing it needs TensorFlow: pip install -r requirements-prepare.txt, or set data.dat"),
        ("network", ", and the network .* https://.*cannot be reached"),
        ("space", r", and preparing it failed \(No space left on device\): fix that, or set"),
    ],
)
def test_what_is_missing_to_prepare_a_set_is_said(tmp_path, monkeypatch, missing, message):
    """TensorFlow, the network and the download are stand-ins."""

    def fail(*args, **options):
        raise requests.ConnectionError if missing == "network" else OSError("No space left on device.\nMore lines.")

    monkeypatch.setattr(sets.importlib.util, "find_spec", lambda name: None if missing == "tensorflow" else name)
    monkeypatch.setattr(requests, "head", fail if missing == "network" else lambda url, timeout: None)
    monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", fail)
    with pytest.raises(UsageError, match=f"tfds:mnist is not prepared in {tmp_path}{message}"):
        load("tfds:mnist", "train", data_dir=str(tmp_path))
