"""Tables, plain text and aligned files: rows, splits, and mistakes."""

import bz2
import csv
import gzip
import json
import lzma
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from attention.errors import UsageError
from tests.train.data.streams import opened, read
from train.data.encodings.corpus import stripped
from train.data.sources.rows import DataColumn

ROWS = [("plain", "a"), ('with "quotes", commas', "b"), ("two\nlines", "a"), ("Ünï 猫", "b"), ("", "a")]
PAIRS = [("Zwei Hunde.", "Two dogs."), ('Er sagt "ja".', 'He says "yes".'), ("猫", "a cat")]
GERMAN, ENGLISH = ("".join(f"{text}\n" for text in texts) for texts in zip(*PAIRS, strict=True))
# Aligned files of three splits, some compressed, beside others.
ALIGNED = {"train.de.xz": GERMAN, "train.en.xz": ENGLISH, "train.fr": "non\n", "README.txt": "No pairs here.\n"}
ALIGNED |= {"val.de": "Zwei Hunde.", "val.en": "Two dogs."}
ALIGNED |= {f"test_2016_flickr.{name}": text.replace("\n", " \r\n") for name, text in (("de", GERMAN), ("en", ENGLISH))}
NESTED = "\n".join(json.dumps({"id": 0, "pair": {"de": f" {de}", "en": f"{en}\t"}}) for de, en in PAIRS)
THREE = {"train.txt": "a\nb\n", "valid.txt": "c\n", "test.txt": "d\n"}
LONG = "x" * 300_000
PACKERS = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}


def pairs(path, split="train", source="de", target="en"):
    """Reads pairs without white space and empty ones, as a corpus does."""
    rows = stripped(opened(f"file:{path}", split, source=source, target=target))
    return [(row["source"], row["target"]) for row in rows.read()]


def texts(path, split="train", text="text", label=""):
    return read(f"file:{path}", split, text=text, **({"label": label} if label else {}))


def write(folder, files):
    for name, content in files.items():
        content = content.encode() if isinstance(content, str) else content
        (folder / name).write_bytes(PACKERS.get(Path(name).suffix, bytes)(content))
    return folder


@pytest.mark.parametrize("value", [2, -2, 0.5, "1", [0], float("nan")])
def test_a_class_that_is_none_is_named(value):
    column = DataColumn("label", "data.label_column", "stars", classes=("bad", "good"))
    with pytest.raises(UsageError, match=r"Row 3 has .* in 'stars', but classes are numbers from 0 to 1\."):
        column.value({"stars": value}, "Row 3")


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "jsonl.gz"])
def test_columns_of_tables_come_back(tmp_path, kind):
    path = tmp_path / f"a.{kind}"
    rows = [{"id": i, "text": text, "class": label} for i, (text, label) in enumerate(ROWS)]
    if kind == "csv":
        with open(path, "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, ["id", "text", "class"])
            writer.writeheader()
            writer.writerows(rows)
    elif kind == "parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        write(tmp_path, {path.name: "\n".join(map(json.dumps, rows)) + "\n\n"})
    assert texts(path, label="class") == ROWS
    assert texts(path) == [text for text, _ in ROWS]
    with pytest.raises(UsageError, match=r"data.text_column for '.*a\..*' \(.*\) 'review'\. .*Valid: class, id, text"):
        texts(path, text="review")
    with pytest.raises(UsageError, match=r"data.label_column .* 'clas'\. Did you mean 'class'"):
        texts(path, label="clas")


@pytest.mark.parametrize(
    ("files", "path", "query", "rows"),
    [
        ({"a.tsv.xz": 'text\tn\na "b"\t1\n"open\t2\n'}, "a.tsv.xz", {"label": "n"}, [('a "b"', "1"), ('"open', "2")]),
        ({"a.csv": f"text,n\n{LONG},007\nNA,1.0\n"}, "a.csv", {"label": "n"}, [(LONG, "007"), ("NA", "1.0")]),
        # A byte order mark is not text, and lines keep their ends.
        ({"a.txt": b"\xef\xbb\xbfone\n\n  zw\xc3\xb6 \r\nlast"}, "a.txt", {}, ["one\n", "\n", "  zwö \r\n", "last"]),
        (THREE, "", {}, ["a\n", "b\n"]),
        (THREE, "", {"split": "valid"}, ["c\n"]),
        (THREE, "", {"split": "test"}, ["d\n"]),
        (THREE | {"train-00002.txt": "more\n"}, "", {}, ["more\n", "a\n", "b\n"]),
        (THREE, "*.txt", {}, ["d\n", "a\n", "b\n", "c\n"]),
        ({"b.txt": "b", "a.txt": "a", "notes.md": "c"}, "", {}, ["a", "b"]),
    ],
)
def test_texts_and_their_splits(tmp_path, files, path, query, rows):
    assert texts(write(tmp_path, files) / path, **query) == rows


@pytest.mark.parametrize(
    ("files", "path", "query", "rows"),
    [
        ({"a.jsonl": NESTED}, "a.jsonl", {"source": "pair.de", "target": "pair.en"}, PAIRS),
        ({"a.tsv": "text.de\ttext.en\na\tb\n"}, "a.tsv", {"source": "text.de", "target": "text.en"}, [("a", "b")]),
        (
            {"spa.txt.xz": "Go.\tVe.\tCC-BY\r\n\nHi!\t ¡Hola! \tCC-BY\n \t \n"},
            "spa.txt.xz",
            {"source": "2", "target": "1"},
            [("Ve.", "Go."), ("¡Hola!", "Hi!")],
        ),
        (ALIGNED, "", {}, PAIRS),
        (ALIGNED, "", {"source": "en", "target": "de"}, [pair[::-1] for pair in PAIRS]),
        (ALIGNED, "", {"split": "test"}, PAIRS),
        (ALIGNED, "", {"split": "validation"}, PAIRS[:1]),
        (ALIGNED, "train", {}, PAIRS),
        (ALIGNED | {"train-2.de": "Ende.", "train-2.en": "The end."}, "", {}, [*PAIRS, ("Ende.", "The end.")]),
        (ALIGNED | {"train.de": GERMAN}, "", {}, PAIRS),  # beside its compressed form
        ({"v7.es-en.es": "uno\n\n", "v7.es-en.en": "one\n\n"}, "", {"source": "es"}, [("uno", "one")]),
        # Lines end at line feeds only.
        ({"a.de": "a\u2028b\x0cc\nd\n", "a.en": "abc\nd\n"}, "a", {}, [("a\u2028b\x0cc", "abc"), ("d", "d")]),
    ],
)
def test_pairs_and_their_splits(tmp_path, files, path, query, rows):
    assert pairs(write(tmp_path, files) / path, **query) == rows


@pytest.mark.parametrize(
    ("name", "content", "query", "message"),
    [
        ("a.csv", "text,n\na,1\nb\n", {"label": "n"}, r"line 3 has 1 fields and the header 2"),
        ("a.csv", 'text,n\na,1\n"b,2\n', {"label": "n"}, r"line 3 is not as CSV should be"),
        ("a.csv", "text,n\na,\n", {"label": "n"}, r"a.csv' \(line 2\) has no class in 'n'"),
        ("a.jsonl", '{"text": "a"}\n{"text"\n', {}, r"line 2 is damaged .*write one object a line"),
        ("a.jsonl", '{"text": 3}\n', {}, r"\(line 1\) has 3 in 'text', which is not text"),
        ("a.jsonl", '{"text": "a"}\n{"txt": "a", "n": 1}\n', {}, r"\(line 2\) 'text'\. .*Valid: n, txt"),
        ("a.jsonl", '{"text": "\\ud83d", "n": 1}\n', {}, r"line 1 is damaged \(it has half of a surrogate pair\)"),
        ("a.parquet", "text", {}, r"cannot be read as Parquet"),
        ("a.txt", b"", {}, r"'.*a\.txt' is empty; remove it or give another"),
        ("a.txt", b"one\ntwo\0\n", {}, r"'.*a\.txt' holds a zero byte in line 2"),
        ("a.txt", b"one\n\ncaf\xe9s\n", {}, r"is not in UTF-8: line 3 has the byte 0xe9 at position 4; convert it"),
        ("train.txt", "a\n", {"label": "n"}, r"train.txt' is plain text, which has no classes; use one of .csv"),
        ("a.txt", "a\n", {"split": "test"}, r"file:.* 'test'\. Valid: train\. A part of one is .*train\[90%:\]"),
        ("a.doc", "a\n", {}, r"Cannot tell from its name what '.*a\.doc' is; give a file, folder"),
    ],
)
def test_mistakes_in_texts(tmp_path, name, content, query, message):
    with pytest.raises(UsageError, match=message):
        texts(write(tmp_path, {name: content}) / name, **query)


@pytest.mark.parametrize(
    ("files", "query", "message"),
    [
        ({"a.txt": "a\tb\nc d\n"}, ("1", "2"), r"'.*a.txt' \(line 2\) has no tab between source and target"),
        ({"a.txt": "a\tb\n"}, ("1", "3"), r"\(line 1\) has 2 columns, but data.source_column and .* are 1 and 3"),
        ({"a.txt": "a\tb\n\tc\n"}, ("1", "2"), r"\(line 2\) has an empty source beside the target 'c'"),
        ({"a.txt": f"a\tb\n{'c ' * 99}\t\n"}, ("1", "2"), r"has an empty target beside the source 'c .* …'; fix"),
        ({"a.txt": "a\tb\n"}, ("en", "es"), r"data.source_column must be the number of a column .* but it is 'en'"),
        ({"a.txt": "a\tb\n"}, ("1", "1"), r"must name two columns \(or languages\), but they are \('1', '1'\)"),
        ({"a.jsonl": NESTED}, ("pair.de", "pair.fr"), r"\(line 1\) 'pair.fr'\..* Valid: id, pair.de, pair.en"),
        (ALIGNED, ("de", "cs"), r"There is '.*train\.de\.xz', but no train\.cs aligned with it"),
        ({"a.de": "x\n" * 2, "a.en": "x\n" * 5}, ("de", "en"), r"'.*a\.de' has 2 lines and '.*a\.en' has 5, but line"),
        ({"a.de": "a\n\n\n", "a.en": "b\n\nc\n"}, ("de", "en"), r"^Line 3 of '.*a\.de' and '.*a\.en' has an empty"),
    ],
)
def test_mistakes_in_pairs(tmp_path, files, query, message):
    with pytest.raises(UsageError, match=message):
        pairs(write(tmp_path, files), source=query[0], target=query[1])


@pytest.mark.parametrize("suffix", PACKERS)
def test_compressed_files_that_are_damaged(tmp_path, suffix):
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(PACKERS[suffix](b"one\ntwo\n"))
    assert texts(path) == ["one\n", "two\n"]
    for damaged in (PACKERS[suffix](b"one\ntwo\n" * 10_000)[:-9], b"one\ntwo\n"):
        path.write_bytes(damaged)
        with pytest.raises(UsageError, match=r"Cannot read '.*' \(.*\); fix it, or fetch it again"):
            texts(path)


def test_paths_that_lead_nowhere_and_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(write(tmp_path, THREE | ALIGNED)))
    assert texts("~/test.txt") == ["d\n"]
    (tmp_path / "empty").mkdir()
    for name in ("none.txt", "none*.txt", "empty"):
        with pytest.raises(UsageError, match=r"There is no file to read at '.*'; data.source names it: give a file"):
            texts(tmp_path / name)
    with pytest.raises(UsageError, match=r"no file to read at .*aligned files are, named SPLIT\.de and SPLIT\.en"):
        pairs(tmp_path / "none")
    for act in (texts, pairs):
        with pytest.raises(UsageError, match=r"'tests'\. Did you mean 'test'\? Valid: test, train, validation"):
            act(tmp_path, "tests")
    with pytest.raises(UsageError, match=r"Unknown split of file:.*train 'test'\. Valid: train\. A part"):
        pairs(tmp_path / "train", "test")


def test_content_follows_bytes_and_columns_not_names(tmp_path):
    def content(name, split="train", **columns):
        return opened(f"file:{tmp_path / name}", split, **columns).content

    write(tmp_path, {"a.csv": "text,class\nx,y\n", "b.csv": "text,class\nx,y\n"} | ALIGNED)
    both, reverse = {"source": "de", "target": "en"}, {"source": "en", "target": "de"}
    table, aligned = content("a.csv", text="text"), content("", **both)
    assert table == content("b.csv", text="text")
    assert aligned == content("", **both) == content("train", **both)
    others = [content("a.csv", text="class"), content("a.csv", text="text", label="class")]
    others += [content("", **reverse), content("", "test", **both)]
    write(tmp_path, {"a.csv": "text,class\nx,z\n", "train.en.xz": "another\n"})
    assert len({table, aligned, *others, content("a.csv", text="text"), content("", **both)}) == 8
