"""Hugging Face data sets: rows, classes, versions, and mistakes."""

from types import SimpleNamespace

import datasets
import pytest

from attention.errors import UsageError
from tests.train.data.streams import opened, read


@pytest.fixture
def place(tmp_path):
    """Writes local folders that `datasets` reads, by the tables of their parts."""

    def write(name, **parts):
        (tmp_path / name).mkdir()
        for part, table in parts.items():
            table.to_parquet(tmp_path / name / f"{part}.parquet")
        return {"data_dir": tmp_path / "downloads"}, f"hf:{tmp_path / name}"

    return write


@pytest.fixture
def texts(place):
    table = datasets.Dataset.from_list([{"text": f"text {i}\n", "stars": i % 3} for i in range(5)])
    fields, source = place("set", train=table, test=table.select(range(2)))
    return lambda split="train", text="text", **more: opened(source, split, **fields, text=text, **more)


def values(rows, *roles):
    return [tuple(row[role] for role in roles) for row in rows.read()]


def test_rows_and_their_content(texts):
    assert values(texts(), "text") == [(f"text {i}\n",) for i in range(5)]
    assert values(texts("test", label="stars"), "label") == [("0",), ("1",)]
    assert texts().content == texts().content
    assert len({texts().content, texts("test").content, texts(label="stars").content}) == 3


def test_class_names_are_the_sources(place):
    features = datasets.Features({"text": datasets.Value("string"), "c": datasets.ClassLabel(names=["pos", "neg"])})
    labelled = datasets.Dataset.from_dict({"text": ["a", "b"], "c": [1, 0]}, features=features)
    fields, source = place("named", train=labelled)
    for name in ("c", "label"):  # the only column of classes, in place of the default
        rows = opened(source, text="text", label=name, **fields)
        assert rows.class_names == ("pos", "neg")
        assert values(rows, "text", "label") == [("a", "neg"), ("b", "pos")]


def test_translations_are_columns_of_a_column(place):
    pairs = [("Zwei Hunde.", "Two dogs."), ("猫", "a cat")]
    kinds = {"id": datasets.Value("int64"), "translation": datasets.Translation(("de", "en"))}
    columns = {"id": [0, 1], "translation": [{"de": de, "en": en} for de, en in pairs]}
    fields, source = place("pairs", train=datasets.Dataset.from_dict(columns, datasets.Features(kinds)))
    sides = {"source": "translation.de", "target": "translation.en"}
    assert read(source, **fields, **sides) == pairs
    with pytest.raises(UsageError, match=r"data.target_column for hf:.*pairs 'en'\..* Valid: id, translation.de"):
        opened(source, **fields, **sides | {"target": "en"})


def test_streams_are_known_by_their_commit(texts, monkeypatch):
    with pytest.raises(UsageError, match=r"Cannot tell the version of hf:.*streaming needs the hub"):
        texts(streaming=True)
    shas = {"main": "abc", "old": "def"}
    monkeypatch.setattr(
        "huggingface_hub.HfApi.dataset_info",
        lambda self, name, revision: SimpleNamespace(sha=shas[revision or "main"]),
    )
    stream = texts(streaming=True)
    assert values(stream, "text") == values(texts(), "text")
    assert stream.content != texts(streaming=True, revision="old").content


def test_streams_that_break_off(texts, monkeypatch):
    def rows(self):
        raise ConnectionError("reset by peer")

    monkeypatch.setattr("datasets.Dataset.__iter__", rows)
    with pytest.raises(UsageError, match=r"Reading train of hf:.* broke off \(reset by peer\): check the network"):
        list(texts().read())


def test_mistakes(texts, place):
    with pytest.raises(UsageError, match=r"Cannot load 'dev' of hf:.*: check the name, the split and the network"):
        texts("dev")
    with pytest.raises(UsageError, match=r"Row 0 of train of hf:.* has 0 in 'stars', which is not text"):
        list(texts(text="stars").read())
    holes = datasets.Dataset.from_list([{"text": "a", "stars": 1}, {"text": "b", "stars": None}])
    fields, source = place("holes", train=holes)
    with pytest.raises(UsageError, match=r"Row 1 of train of hf:.* has no class in 'stars'"):
        read(source, text="text", label="stars", **fields)


def test_a_set_made_by_a_script_is_told_where_its_tables_are(monkeypatch):
    def refuse(*args, **options):
        raise RuntimeError("Dataset scripts are no longer supported, but found iwslt2017.py")

    monkeypatch.setattr("datasets.load_dataset", refuse)
    with pytest.raises(UsageError, match=r"set data.revision='refs/convert/parquet'"):
        opened("hf:iwslt2017", text="text")
