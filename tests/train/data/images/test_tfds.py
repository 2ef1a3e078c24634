"""TFDS sets without TensorFlow. A small set is written as TFDS would leave it, with images of different sizes."""

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
from tests.train.data.streams import load
from train.data.images import sources, transforms
from train.data.rows import tfds as sets

NO_TENSORFLOW = (
    "preparing it needs TensorFlow: pip install -r requirements-prepare.txt, or set data.data_dir or TFDS_DATA_DIR"
)


@pytest.fixture
def pictures():
    """Three pictures of different sizes, the last one grey."""
    rng = np.random.default_rng(0)
    colour = [Image.fromarray(rng.integers(0, 256, (h, w, 3), np.uint8)) for h, w in ((9, 12), (20, 7))]
    return [*colour, Image.fromarray(rng.integers(0, 256, (8, 8), np.uint8))]


@pytest.fixture
def folder(tmp_path, pictures):
    """A prepared set `pictures` with the splits `train` and `test`."""
    _write_set(tmp_path / "pictures" / "1.0.0", pictures)
    return tmp_path


def _write_set(path, pictures):
    path.mkdir(parents=True)
    label, text = tfds.features.ClassLabel(num_classes=5), tfds.features.Text()
    tfds.features.FeaturesDict({"image": tfds.features.Image(), "label": label, "id": text}).save_config(path)
    _write_info(path, "array_record")
    for split in ("train", "test"):
        writer = ArrayRecordWriter(
            str(path / f"{path.parent.name}-{split}.array_record-00000-of-00001"), "group_size:1"
        )
        for number, picture in enumerate(pictures):
            writer.write(_example(picture, number).SerializeToString())
        writer.close()


def _write_info(path, file_format):
    template = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
    part = {"shardLengths": ["3"], "numBytes": "1", "filepathTemplate": template}
    info = {
        "name": path.parent.name,
        "version": path.name,
        "fileFormat": file_format,
        "splits": [{"name": "train"} | part, {"name": "test"} | part],
    }
    (path / "dataset_info.json").write_text(json.dumps(info))


def _example(picture, label):
    data = io.BytesIO()
    picture.save(data, "PNG")
    example = tf_example_pb2.Example()
    example.features.feature["image"].bytes_list.value.append(data.getvalue())
    example.features.feature["label"].int64_list.value.append(label)
    example.features.feature["id"].bytes_list.value.append(b"unused")
    return example


class TestReading:
    def test_records(self, folder, pictures):
        source = load("tfds:pictures", "train", data_dir=str(folder))
        assert (len(source), source.num_classes, source.image_shape) == (3, 5, (0, 0, 3))
        assert source.content == "pictures/1.0.0"
        for index, picture in enumerate(pictures):
            assert set(source[index]) == {"image", "label"}
            assert source[index]["label"] == index
            np.testing.assert_array_equal(source[index]["image"], np.asarray(picture.convert("RGB")))

    def test_pickles(self, folder):
        source = load("tfds:pictures", "train[1:]", data_dir=str(folder))
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(source))[1]["image"], source[1]["image"])

    def test_images_of_a_small_set_stay_decoded_in_this_process_alone(self, folder, monkeypatch):
        source = load("tfds:pictures", "train", data_dir=str(folder))
        first = source[1]
        assert source[1] is first
        assert pickle.loads(pickle.dumps(source)).records.kept == {}
        monkeypatch.setattr(sources, "KEPT_BYTES", 0)
        assert source[0] is not source[0]

    def test_the_environment_names_the_folder(self, folder, monkeypatch):
        monkeypatch.setenv("TFDS_DATA_DIR", str(folder))
        assert len(load("tfds:pictures", "test")) == 3

    def test_a_prepared_set_needs_no_network(self, folder, monkeypatch):
        monkeypatch.setattr(requests.Session, "request", lambda *args, **kwargs: pytest.fail("used the network"))
        assert len(load("tfds:pictures", "test", data_dir=str(folder))) == 3

    def test_images_of_different_sizes_must_be_made_one_size(self, folder):
        shape = load("tfds:pictures", "train", data_dir=str(folder)).image_shape
        chain = transforms.parse("resize(size=8, keep_aspect=True)|center_crop(size=6)")
        assert transforms.output_shape(chain, shape) == (6, 6, 3)
        with pytest.raises(UsageError, match="The images differ in size and the transforms leave it so"):
            transforms.output_shape(transforms.parse("resize(size=8, keep_aspect=True)"), shape)


class TestMistakes:
    def test_unknown_split(self, folder):
        with pytest.raises(
            UsageError, match=r"Unknown split of tfds:pictures 'trian'\. Did you mean 'train'\? Valid: test, train"
        ):
            load("tfds:pictures", "trian", data_dir=str(folder))

    def test_unknown_features(self, folder):
        with pytest.raises(UsageError, match=r"Unknown data.image_key for tfds:pictures 'img'.* Valid: image\."):
            load("tfds:pictures", "train", data_dir=str(folder), image_key="img")
        with pytest.raises(UsageError, match=r"Unknown data.label_key for tfds:pictures 'id'.* Valid: label\."):
            load("tfds:pictures", "train", data_dir=str(folder), label_key="id")

    def test_unknown_name(self, tmp_path):
        with pytest.raises(UsageError, match=r"Unknown TFDS data set 'cifar1000'.* Did you mean 'cifar100'\?"):
            load("tfds:cifar1000", "train", data_dir=str(tmp_path))

    @pytest.mark.parametrize("name", ["foo bar", "mnist:9.9.9", "mnist/none"])
    def test_unreadable_name(self, tmp_path, name):
        with pytest.raises(UsageError, match=f"Cannot open tfds:{name} in .*write 'tfds:NAME', 'tfds:NAME/CONFIG'"):
            load(f"tfds:{name}", "train", data_dir=str(tmp_path))

    def test_prepared_as_tfrecord(self, folder):
        _write_info(folder / "pictures" / "1.0.0", "tfrecord")
        way_out = f"rename {folder}/pictures/1.0.0 and run again with TensorFlow"
        command = "`tfds build pictures --file_format=array_record --data_dir=NEW_FOLDER`"
        with pytest.raises(UsageError, match=f"is prepared in {folder} as tfrecord, .*: {way_out} .* {command}"):
            load("tfds:pictures", "train", data_dir=str(folder))

    def test_missing_shard(self, folder):
        next(folder.glob("pictures/1.0.0/*train*")).unlink()
        with pytest.raises(
            UsageError, match=r"is damaged: .*train.array_record-00000-of-00001 is missing; prepare it again"
        ):
            load("tfds:pictures", "train", data_dir=str(folder))

    def test_tfds_missing(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
        with pytest.raises(UsageError, match=r"TFDS data need tensorflow-datasets .*pip install -r requirements.txt"):
            load("tfds:mnist", "train")


class TestPreparing:
    """Sets that are not there. TensorFlow, the network and the download are stand-ins."""

    @pytest.fixture
    def tensorflow(self, monkeypatch):
        monkeypatch.setattr(sets.importlib.util, "find_spec", lambda name: SimpleNamespace(name=name))

    @pytest.fixture
    def network(self, monkeypatch):
        monkeypatch.setattr(requests, "head", lambda url, timeout: None)

    @pytest.fixture
    def calls(self, monkeypatch):
        """What `download_and_prepare` was called with; it fails as a full disk would."""
        calls = []

        def prepare(builder, **options):
            calls.append((builder.name, options))
            raise OSError("No space left on device.\nMore lines.")

        monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", prepare)
        return calls

    def test_without_tensorflow(self, tmp_path, monkeypatch, calls):
        monkeypatch.setattr(sets.importlib.util, "find_spec", lambda name: None)
        with pytest.raises(UsageError, match=f"tfds:mnist is not prepared in {tmp_path}, and {NO_TENSORFLOW}"):
            load("tfds:mnist", "train", data_dir=str(tmp_path))
        assert not calls

    def test_without_network(self, tmp_path, monkeypatch, tensorflow, calls):
        def unreachable(url, timeout):
            raise requests.ConnectionError("no route")

        monkeypatch.setattr(requests, "head", unreachable)
        with pytest.raises(
            UsageError, match=rf"not prepared in {tmp_path}, and the network .* https://.*cannot be reached"
        ):
            load("tfds:mnist", "train", data_dir=str(tmp_path))
        assert not calls

    def test_preparing_fails(self, tmp_path, tensorflow, network, calls):
        with pytest.raises(UsageError, match=r"preparing it failed \(No space left on device\): mend that, or set"):
            load("tfds:mnist", "train", data_dir=str(tmp_path))
        assert calls == [("mnist", {"file_format": "array_record"})]

    def test_prepared_on_first_use(self, tmp_path, monkeypatch, tensorflow, network, pictures):
        def prepare(builder, file_format):
            _write_set(Path(builder.data_dir), [picture.convert("L") for picture in pictures])
            builder.info.set_file_format(file_format, override=True)
            builder.info.read_from_directory(builder.data_path)

        monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", prepare)
        source = load("tfds:mnist", "train", data_dir=str(tmp_path))
        np.testing.assert_array_equal(source[2]["image"][..., 0], np.asarray(pictures[2]))


class TestRealData:
    def test_mnist(self, tfds_folder):
        train, test = (load("tfds:mnist", split, data_dir=tfds_folder) for split in ("train", "test"))
        assert (len(train), len(test), train.num_classes, train.image_shape) == (60_000, 10_000, 10, (28, 28, 1))
        assert train[0]["image"].shape == (28, 28, 1)

    def test_cifar100(self, tfds_folder):
        train, test = (load("tfds:cifar100", split, data_dir=tfds_folder) for split in ("train", "test"))
        assert (len(train), len(test), train.num_classes, train.image_shape) == (50_000, 10_000, 100, (32, 32, 3))

    def test_cifar100_mean_is_the_published_one(self, tfds_folder):
        train = load("tfds:cifar100", "train", data_dir=tfds_folder)
        total = sum(record["image"].sum(axis=(0, 1), dtype=np.int64) for record in train)
        np.testing.assert_allclose(total / (255 * 50_000 * 32 * 32), [0.50707, 0.48655, 0.44092], atol=1e-5)

    def test_cifar100_test_classes_are_balanced(self, tfds_folder):
        test = load("tfds:cifar100", "test", data_dir=tfds_folder)
        np.testing.assert_array_equal(np.bincount([record["label"] for record in test]), 100)
