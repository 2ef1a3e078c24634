import json
import sys
from pydoc_data import topics
from types import SimpleNamespace

import pyarrow
import pytest
import tensorflow_datasets as tfds
from array_record.python.array_record_module import ArrayRecordWriter
from pyarrow import parquet
from tensorflow_datasets.proto import tf_example_pb2

from attention.errors import UsageError
from train.data.text import pydoc, sources

DATA = SimpleNamespace(source="pydoc", text_column="text", label_column="", revision="", streaming=False, data_dir="")


def data(**changes):
    return SimpleNamespace(**(vars(DATA) | changes))


class TestPydoc:
    def test_every_topic_is_in_one_split(self):
        names = [name for split in pydoc.splits().values() for name in split]
        assert sorted(names) == sorted(topics.topics)

    def test_held_out_topics_share_no_paragraph_with_others(self):
        def paragraphs(split):
            texts = [document.text for document in sources.load(data(), split).read()]
            parts = [" ".join(part.split()) for text in texts for part in text.split("\n\n")]
            return {part for part in parts if len(part) >= 60}

        train, validation, test = (paragraphs(split) for split in ("train", "validation", "test"))
        assert min(len(train), len(validation), len(test)) > 50
        assert not train & validation
        assert not train & test
        assert not validation & test

    def test_about_a_tenth_is_held_out_each(self):
        sizes = {s: sum(len(d.text) for d in sources.load(data(), s).read()) for s in pydoc.splits()}
        for split in ("validation", "test"):
            assert 0.07 < sizes[split] / sum(sizes.values()) <= 0.1

    def test_mistakes(self):
        with pytest.raises(UsageError, match=r"Unknown split of pydoc 'valid'\. Did you mean 'validation'"):
            sources.load(data(), "valid")
        with pytest.raises(UsageError, match="pydoc has no classes"):
            sources.load(data(label_column="label"), "train")


class TestHub:
    @pytest.fixture
    def repository(self, tmp_path):
        (tmp_path / "set").mkdir()
        for split, count in (("train", 5), ("test", 2)):
            rows = [{"text": f"text {i}\n", "stars": i % 3} for i in range(count)]
            parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "set" / f"{split}.parquet")
        return str(tmp_path / "set")

    @pytest.fixture
    def load(self, repository, tmp_path):
        def load(split="train", **changes):
            fields = {"source": f"hf:{repository}", "data_dir": str(tmp_path / "downloads")} | changes
            return sources.load(data(**fields), split)

        return load

    def test_rows(self, load):
        assert [document.text for document in load().read()] == [f"text {i}\n" for i in range(5)]
        assert [document.label for document in load("test", label_column="stars").read()] == ["0", "1"]

    def test_the_content_has_a_digest_of_its_own(self, load):
        assert load().content == load().content
        assert len({load().content, load("test").content, load(label_column="stars").content}) == 3

    def test_class_names_are_the_sources(self, tmp_path, load):
        import datasets

        features = datasets.Features({"text": datasets.Value("string"), "c": datasets.ClassLabel(names=["pos", "neg"])})
        labelled = datasets.Dataset.from_dict({"text": ["a", "b"], "c": [1, 0]}, features=features)
        (tmp_path / "named").mkdir()
        labelled.to_parquet(tmp_path / "named" / "train.parquet")
        documents = load(source=f"hf:{tmp_path}/named", label_column="c")
        assert documents.class_names == ("pos", "neg")
        assert list(documents.read()) == [("a", "neg"), ("b", "pos")]

    def test_streams_are_known_by_their_commit(self, load, monkeypatch):
        shas = {"main": "abc", "old": "def"}
        info = lambda self, name, revision: SimpleNamespace(sha=shas[revision or "main"])  # noqa: E731
        monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", info)
        stream = load(streaming=True)
        assert [document.text for document in stream.read()] == [document.text for document in load().read()]
        assert stream.content != load(streaming=True, revision="old").content

    def test_streams_that_break_off(self, load, monkeypatch):
        def rows(self):
            yield {"text": "a"}
            raise ConnectionError("reset by peer")

        monkeypatch.setattr("datasets.Dataset.__iter__", rows)
        with pytest.raises(UsageError, match=r"Reading train of hf:.* broke off \(reset by peer\): check the network"):
            list(load().read())

    def test_streams_need_the_hub(self, load, monkeypatch):
        with pytest.raises(UsageError, match=r"Cannot tell the version of hf:.*streaming needs the hub"):
            load(streaming=True)

    def test_mistakes(self, load):
        with pytest.raises(UsageError, match=r"Unknown data.text_column for hf:.* 'review'\. Valid: stars, text"):
            load(text_column="review")
        with pytest.raises(UsageError, match=r"Cannot load 'dev' of hf:.*: check the name, the split and the network"):
            load("dev")
        with pytest.raises(UsageError, match=r"Row 0 of train of hf:.* has 0 in 'stars', which is no text"):
            list(load(text_column="stars").read())

    def test_missing_classes(self, tmp_path, load):
        (tmp_path / "holes").mkdir()
        rows = [{"text": "a", "stars": 1}, {"text": "b", "stars": None}]
        parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "holes" / "train.parquet")
        with pytest.raises(UsageError, match=r"Row 1 of train of hf:.* has no class in 'stars'"):
            list(load(source=f"hf:{tmp_path}/holes", label_column="stars").read())

    def test_without_network(self, load, monkeypatch):
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
        with pytest.raises(UsageError, match=r"Cannot load 'train' of hf:no/such \(.*network"):
            load(source="hf:no/such")

    def test_scripts_have_a_revision_without(self, load, monkeypatch):
        def refuse(*args, **options):
            raise RuntimeError("Dataset scripts are no longer supported, but found iwslt2017.py")

        monkeypatch.setattr("datasets.load_dataset", refuse)
        with pytest.raises(UsageError, match=r"set data.revision='refs/convert/parquet'"):
            load(source="hf:iwslt2017")

    def test_without_the_package(self, load, monkeypatch):
        monkeypatch.setitem(sys.modules, "datasets", None)
        with pytest.raises(UsageError, match=r"Hub names need the package datasets .*requirements.txt"):
            load()


class TestTfds:
    @pytest.fixture
    def prepared(self, tmp_path):
        """A set `reviews` with a split `train`, as TFDS leaves it behind."""
        path = tmp_path / "reviews" / "1.0.0"
        path.mkdir(parents=True)
        label, text = tfds.features.ClassLabel(names=["neg", "pos"]), tfds.features.Text()
        tfds.features.FeaturesDict({"text": text, "label": label}).save_config(path)
        part = {
            "name": "train",
            "shardLengths": ["2"],
            "numBytes": "1",
            "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
        }
        info = {"name": "reviews", "version": "1.0.0", "fileFormat": "array_record", "splits": [part]}
        (path / "dataset_info.json").write_text(json.dumps(info))
        writer = ArrayRecordWriter(str(path / "reviews-train.array_record-00000-of-00001"), "group_size:1")
        for review, number in (("Gut, schön!", 1), ("Bad.", 0)):
            example = tf_example_pb2.Example()
            example.features.feature["text"].bytes_list.value.append(review.encode())
            example.features.feature["label"].int64_list.value.append(number)
            writer.write(example.SerializeToString())
        writer.close()
        return data(source="tfds:reviews", data_dir=str(tmp_path))

    def test_examples(self, prepared):
        assert list(sources.load(prepared, "train").read()) == [("Gut, schön!", ""), ("Bad.", "")]
        prepared.label_column = "label"
        documents = sources.load(prepared, "train")
        assert documents.class_names == ("neg", "pos")
        assert list(documents.read()) == [("Gut, schön!", "pos"), ("Bad.", "neg")]

    def test_mistakes(self, prepared):
        with pytest.raises(UsageError, match=r"Unknown split of tfds:reviews 'test'"):
            sources.load(prepared, "test")
        prepared.text_column = "label"
        with pytest.raises(UsageError, match=r"Unknown data.text_column for tfds:reviews 'label'. Valid: text"):
            sources.load(prepared, "train")


@pytest.mark.parametrize("source", ["pydocs", "file:", "imdb", "hf", "pydoc:x"])
def test_unknown_source(source):
    with pytest.raises(UsageError, match=f"Unknown data.source '{source}'.*Valid: file:PATH, hf:NAME"):
        sources.check(source)
