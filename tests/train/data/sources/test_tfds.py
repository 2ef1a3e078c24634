"""TFDS sets without TensorFlow. Small sets are written as TFDS would leave them."""

import io
import json
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import requests
import tensorflow_datasets as tfds
from array_record.python.array_record_module import ArrayRecordWriter
from PIL import Image
from tensorflow_datasets.proto import tf_example_pb2

from attention.errors import UsageError
from tests.train.data.streams import load, opened, read
from train.data.encodings import images
from train.data.images.section import ImageData
from train.data.sources import tfds as sets

NO_TENSORFLOW = (
    "preparing it needs TensorFlow: pip install -r requirements-prepare.txt, or set data.data_dir or TFDS_DATA_DIR"
)


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
                assert set(same[index]) == {"image", "label"}
                assert same[index]["label"] == index
                np.testing.assert_array_equal(same[index]["image"], np.asarray(picture.convert("RGB")))

    def test_images_of_one_size_are_decoded_once(self, folder, pictures, monkeypatch):
        for _ in range(2):
            source = load("tfds:squares", "train", data_dir=str(folder))
            assert (len(source), source.num_classes, source.image_shape) == (3, 5, (6, 6, 3))
            for index, picture in enumerate(pictures):
                assert source[index]["label"] == index
                np.testing.assert_array_equal(source[index]["image"], picture.resize((6, 6)).convert("RGB"))
            monkeypatch.setattr(images, "_decode", lambda *args: pytest.fail("decoded again"))

    def test_images_that_would_take_too_much_room_are_decoded_each_time(self, folder, monkeypatch, tmp_path):
        kept = load("tfds:squares", "train", data_dir=str(folder))
        monkeypatch.setattr(images, "KEPT_BYTES", 3 * 6 * 6 * 3 - 1)
        monkeypatch.setenv("ATTENTION_BENCH_CACHE", str(tmp_path / "cache"))
        for image, record in zip(load("tfds:squares", "train", data_dir=str(folder)), kept, strict=True):
            np.testing.assert_array_equal(image["image"], record["image"])
            assert image["label"] == record["label"]
        assert not (tmp_path / "cache").exists()

    def test_content_is_that_of_the_set_and_slices_keep_its_order(self, folder, pictures):
        whole, part = (load("tfds:pictures", split, data_dir=str(folder)) for split in ("train", "train[1:]"))
        assert whole.content == part.content
        np.testing.assert_array_equal(part[1]["image"], whole[2]["image"])
        write_pictures(folder / "pictures" / "1.0.1", pictures)
        assert load("tfds:pictures:1.0.1", "train", data_dir=str(folder)).content != whole.content
        splits = {"train_split": "train[1:]", "validation_split": "train[:1]"}
        data = ImageData(source="tfds:squares", data_dir=str(folder), classes=5, image_shape="6x6x3", **splits)
        assert [record["label"] for record in data.load()["train"].split] == [1, 2]

    def test_the_environment_names_the_folder_and_no_network_is_needed(self, folder, monkeypatch):
        monkeypatch.setenv("TFDS_DATA_DIR", str(folder))
        monkeypatch.setattr(requests.Session, "request", lambda *args, **kwargs: pytest.fail("used the network"))
        assert len(load("tfds:pictures", "test")) == 3


class TestTexts:
    @pytest.fixture(params=["", "translation/"])
    def pairs(self, tmp_path, request):
        """A set of two languages, alone or beside classes, and the names of its columns."""
        translation, label = tfds.features.Translation(("de", "en")), tfds.features.ClassLabel(names=["neg", "pos"])
        features = {"translation": translation, "n": label} if request.param else dict(translation)
        texts = (("Gut, schön!", "Fine!"), ("Böse.", "Bad."))
        more = [{"n": 1}, {"n": 0}] if request.param else [{}, {}]
        names = [f"{request.param}{language}" for language in ("de", "en")]
        rows = [dict(zip(names, map(str.encode, pair), strict=True)) for pair in texts]
        write(tmp_path / "pairs" / "1.0.0", features, [row | other for row, other in zip(rows, more, strict=True)])
        return str(tmp_path), [name.replace("/", ".") for name in names]

    def test_columns_may_be_nested(self, pairs):
        folder, (german, english) = pairs
        assert read("tfds:pairs", data_dir=folder, source=german, target=english) == [
            ("Gut, schön!", "Fine!"),
            ("Böse.", "Bad."),
        ]
        rows = opened("tfds:pairs", data_dir=folder, source=english, target=german)
        assert rows.name == "train of tfds:pairs"
        assert rows.content != opened("tfds:pairs", data_dir=folder, source=german, target=english).content
        message = rf"data.target_column for tfds:pairs 'fr'\..* Valid: {german}, {english}"
        with pytest.raises(UsageError, match=message):
            opened("tfds:pairs", data_dir=folder, source=german, target="fr")
        if "." in german:
            labelled = opened("tfds:pairs", data_dir=folder, text=german, label="n")
            assert labelled.class_names == ("neg", "pos")
            assert [row["label"] for row in labelled.read()] == ["pos", "neg"]
            with pytest.raises(UsageError, match=r"Unknown data.text_column for tfds:pairs 'n'"):
                opened("tfds:pairs", data_dir=folder, text="n")


class TestMistakes:
    @pytest.mark.parametrize(
        ("name", "split", "fields", "message"),
        [
            ("pictures", "trian", {}, r"split of tfds:pictures 'trian'\. Did you mean 'train'\? Valid: test, train"),
            ("pictures", "train", {"image_key": "img"}, r"data.image_key for tfds:pictures 'img'.* Valid: image\."),
            ("pictures", "train", {"label_key": "id"}, r"data.label_key for tfds:pictures 'id'.* Valid: label\."),
            ("cifar1000", "train", {}, r"Unknown TFDS data set 'cifar1000'.* Did you mean 'cifar100'\?"),
            ("foo bar", "train", {}, "Cannot open tfds:foo bar in .*write 'tfds:NAME', 'tfds:NAME/CONFIG'"),
            ("mnist:9.9.9", "train", {}, "Cannot open tfds:mnist:9.9.9 in .*write 'tfds:NAME', 'tfds:NAME/CONFIG'"),
        ],
    )
    def test_names(self, folder, name, split, fields, message):
        with pytest.raises(UsageError, match=message):
            load(f"tfds:{name}", split, data_dir=str(folder), **fields)

    def test_a_missing_shard_and_one_prepared_as_tfrecord(self, folder):
        next(folder.glob("pictures/1.0.0/*train*")).unlink()
        message = r"is damaged: .*train.array_record-00000-of-00001 is missing; prepare it again"
        with pytest.raises(UsageError, match=message):
            load("tfds:pictures", "train", data_dir=str(folder))
        describe(folder / "pictures" / "1.0.0", "tfrecord", 3)
        way_out = f"rename {folder}/pictures/1.0.0 and run again with TensorFlow"
        command = "`tfds build pictures --file_format=array_record --data_dir=NEW_FOLDER`"
        with pytest.raises(UsageError, match=f"is prepared in {folder} as tfrecord, .*: {way_out} .* {command}"):
            load("tfds:pictures", "train", data_dir=str(folder))

    def test_tfds_missing(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
        with pytest.raises(UsageError, match=r"need the package tensorflow_datasets .*pip install -r requirements.txt"):
            load("tfds:mnist", "train")


class TestPreparing:
    """Sets that are missing. TensorFlow, the network and the download are stand-ins."""

    @pytest.fixture(autouse=True)
    def there(self, monkeypatch):
        monkeypatch.setattr(sets.importlib.util, "find_spec", lambda name: SimpleNamespace(name=name))
        monkeypatch.setattr(requests, "head", lambda url, timeout: None)

    @pytest.mark.parametrize(
        ("missing", "message"),
        [
            ("tensorflow", f", and {NO_TENSORFLOW}"),
            ("network", ", and the network .* https://.*cannot be reached"),
            ("space", r", and preparing it failed \(No space left on device\): fix that, or set"),
        ],
    )
    def test_what_is_missing_is_said_before_anything_is_prepared(self, tmp_path, monkeypatch, missing, message):
        calls = []

        def unreachable(url, timeout):
            raise requests.ConnectionError("no route")

        def prepare(builder, **options):
            calls.append((builder.name, options))
            raise OSError("No space left on device.\nMore lines.")

        if missing == "tensorflow":
            monkeypatch.setattr(sets.importlib.util, "find_spec", lambda name: None)
        if missing == "network":
            monkeypatch.setattr(requests, "head", unreachable)
        monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", prepare)
        with pytest.raises(UsageError, match=f"tfds:mnist is not prepared in {tmp_path}{message}"):
            load("tfds:mnist", "train", data_dir=str(tmp_path))
        assert calls == ([("mnist", {"file_format": "array_record"})] if missing == "space" else [])

    def test_prepared_on_first_use(self, tmp_path, monkeypatch, pictures):
        def prepare(builder, file_format):
            write_pictures(
                Path(builder.data_dir), [picture.resize((28, 28)).convert("L") for picture in pictures], (28, 28, 1)
            )
            builder.info.set_file_format(file_format, override=True)
            builder.info.read_from_directory(builder.data_path)

        monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", prepare)
        source = load("tfds:mnist", "train", data_dir=str(tmp_path))
        np.testing.assert_array_equal(source[2]["image"][..., 0], np.asarray(pictures[2].resize((28, 28))))
