"""Tables, plain text and aligned files: rows, splits, and mistakes."""

import bz2
import gzip
import json
import lzma
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from attention.errors import UsageError
from tests.train.data.streams import opened, read
from train.data.sources.rows import DataColumn

PAIRS = [("Zwei Hunde.", "Two dogs."), ('Er sagt "ja".', 'He says "yes".'), ("猫", "a cat")]
GERMAN, ENGLISH = ("".join(f"{text}\n" for text in texts) for texts in zip(*PAIRS, strict=True))
# Aligned files of three splits, some compressed, beside others.
ALIGNED = {"train.de.xz": GERMAN, "train.en.xz": ENGLISH, "train.fr": "non\n", "README.txt": "No pairs here.\n"}
ALIGNED |= {"val.de": "Zwei Hunde.", "val.en": "Two dogs."}
ALIGNED |= {f"test_2016_flickr.{name}": text.replace("\n", " \r\n") for name, text in (("de", GERMAN), ("en", ENGLISH))}
NESTED = "\n".join(json.dumps({"id": 0, "pair": {"de": f" {de}", "en": f"{en}\t"}}) for de, en in PAIRS)
THREE = {"train.txt": "a\nb\n", "valid.txt": "c\n", "test.txt": "d\n"}
TABBED = "Go.\tVe.\tCC-BY\r\n\nHi!\t ¡Hola! \tCC-BY\n \t \n"
LONG = "x" * 300_000
TEXT, CLASSES = {"text": "text"}, {"text": "text", "label": "n"}
SIDES, FIRST = {"source": "de", "target": "en"}, {"source": "1", "target": "2"}
PACKERS = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}


def values(path, split="train", **columns):
    return read(f"file:{path}", split, **columns)


def write(folder, files):
    for name, content in files.items():
        content = content.encode() if isinstance(content, str) else content
        (folder / name).write_bytes(PACKERS.get(Path(name).suffix, bytes)(content))
    return folder


@pytest.mark.parametrize("value", [2, "1", [0]])
def test_a_class_that_is_none_is_named(value):
    column = DataColumn("label", "data.label_column", "stars", classes=("bad", "good"))
    with pytest.raises(UsageError, match=r"Row 3 has .* in 'stars', but classes are numbers from 0 to 1\."):
        column.value({"stars": value}, "Row 3")


def test_parquet(tmp_path):
    rows = [{"id": 0, "text": "two\nlines", "class": "a"}, {"id": 1, "text": "", "class": "b"}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    assert values(tmp_path / "a.parquet", text="text", label="class") == [("two\nlines", "a"), ("", "b")]
    with pytest.raises(UsageError, match=r"data.text_column for '.*a\..*' \(.*\) 'review'\. .*Valid: class, id, text"):
        values(tmp_path / "a.parquet", text="review")


@pytest.mark.parametrize(
    ("files", "path", "columns", "rows"),
    [
        ({"a.tsv.xz": 'text\tn\na "b"\t1\n"open\t2\n'}, "a.tsv.xz", CLASSES, [('a "b"', "1"), ('"open', "2")]),
        ({"a.csv": f"text,n\n{LONG},007\nNA,1.0\n"}, "a.csv", CLASSES, [(LONG, "007"), ("NA", "1.0")]),
        ({"a.csv": 'id,text\n0,"with ""quotes"", and\nlines"\n'}, "a.csv", TEXT, ['with "quotes", and\nlines']),
        ({"a.jsonl.gz": '{"id": 0, "text": "\\n"}\n\n{"text": "b"}'}, "a.jsonl.gz", TEXT, ["\n", "b"]),
        # A byte order mark is not text, and lines keep their ends.
        ({"a.txt": b"\xef\xbb\xbfone\n\n  zw\xc3\xb6 \r\nlast"}, "a.txt", TEXT, ["one\n", "\n", "  zwö \r\n", "last"]),
        (THREE, "", TEXT, ["a\n", "b\n"]),
        (THREE | {"train-00002.txt": "more\n"}, "", TEXT, ["more\n", "a\n", "b\n"]),
        (THREE, "*.txt", TEXT, ["d\n", "a\n", "b\n", "c\n"]),
        ({"b.txt": "b", "a.txt": "a", "notes.md": "c"}, "", TEXT, ["a", "b"]),
        ({"a.jsonl": NESTED}, "a.jsonl", {"source": "pair.de", "target": "pair.en"}, PAIRS),
        ({"a.txt.xz": TABBED}, "a.txt.xz", {"source": "2", "target": "1"}, [("Ve.", "Go."), ("¡Hola!", "Hi!")]),
        (ALIGNED, "", SIDES, PAIRS),
        (ALIGNED, "train", SIDES, PAIRS),
        (ALIGNED | {"train-2.de": "Ende.", "train-2.en": "The end."}, "", SIDES, [*PAIRS, ("Ende.", "The end.")]),
        # A plain file wins over its compressed form.
        (ALIGNED | {"train.de": "A\nB\nC\n"}, "", SIDES, [*zip("ABC", ENGLISH.splitlines(), strict=True)]),
        ({"v7.es-en.de": "uno\n\n", "v7.es-en.en": "one\n\n"}, "", SIDES, [("uno", "one")]),
        # Lines end at line feeds only.
        ({"a.de": "a\u2028b\x0cc\nd\n", "a.en": "abc\nd\n"}, "a", SIDES, [("a\u2028b\x0cc", "abc"), ("d", "d")]),
    ],
)
def test_rows(tmp_path, files, path, columns, rows):
    assert values(write(tmp_path, files) / path, **columns) == rows


def test_splits(tmp_path):
    write(tmp_path, THREE | ALIGNED)
    assert [values(tmp_path, split, **TEXT) for split in ("valid", "dev", "test")] == [["c\n"], ["c\n"], ["d\n"]]
    assert values(tmp_path, "validation", **SIDES) == PAIRS[:1]
    with pytest.raises(UsageError, match=r"'tests'\. Did you mean 'test'\? Valid: test, train, validation"):
        values(tmp_path, "tests", **TEXT)
    with pytest.raises(UsageError, match=r"file:.* 'test'\. Valid: train\. A part of one is .*train\[90%:\]"):
        values(tmp_path / "train.txt", "test", **TEXT)


@pytest.mark.parametrize(
    ("files", "columns", "message"),
    [
        ({"a.csv": "text,n\na,1\nb\n"}, CLASSES, r"line 3 has 1 fields and the header 2"),
        ({"a.csv": 'text,n\na,1\n"b,2\n'}, CLASSES, r"line 3 is not as CSV should be"),
        ({"a.csv": "text,n\na,\n"}, CLASSES, r"a.csv' \(line 2\) has no class in 'n'"),
        ({"a.jsonl": '{"text": "a"}\n{"text"\n'}, TEXT, r"line 2 is damaged .*write one object a line"),
        ({"a.jsonl": '{"text": 3}\n'}, TEXT, r"\(line 1\) has 3 in 'text', which is not text"),
        ({"a.jsonl": '{"text": "\\ud83d", "n": 1}\n'}, TEXT, r"line 1 is damaged \(it has half of a surrogate pair\)"),
        ({"a.parquet": "text"}, TEXT, r"cannot be read as Parquet"),
        ({"a.txt": b""}, TEXT, r"'.*a\.txt' is empty; remove it or give another"),
        ({"a.txt": b"one\ntwo\0\n"}, TEXT, r"'.*a\.txt' holds a zero byte in line 2"),
        ({"a.txt": b"one\n\ncaf\xe9s\n"}, TEXT, r"not in UTF-8: line 3 has the byte 0xe9 at position 4; convert it"),
        ({"train.txt": "a\n"}, CLASSES, r"train.txt' is plain text, which has no classes; use one of .csv"),
        ({"a.txt": "a\tb\nc d\n"}, FIRST, r"'.*a.txt' \(line 2\) has no tab between source and target"),
        ({"a.txt": "a\tb\n\tc\n"}, FIRST, r"\(line 2\) has an empty source beside the target 'c'"),
        ({"a.txt": "a\tb\n"}, FIRST | {"target": "3"}, r"has 2 columns, but data.source_column and .* 1 and 3"),
        ({"a.txt": "a\tb\n"}, SIDES, r"data.source_column must be the number of a column .* but it is 'de'"),
        ({"a.txt": "a\tb\n"}, FIRST | {"target": "1"}, r"name two columns .*languages\), but they are \('1', '1'\)"),
        (ALIGNED, SIDES | {"target": "cs"}, r"There is '.*train\.de\.xz', but no train\.cs aligned with it"),
        ({"a.de": "x\n" * 2, "a.en": "x\n" * 5}, SIDES, r"'.*a\.de' has 2 lines and '.*a\.en' has 5, but line"),
        ({"a.de": "a\n\n\n", "a.en": "b\n\nc\n"}, SIDES, r"^Line 3 of '.*a\.de' and '.*a\.en' has an empty"),
    ],
)
def test_mistakes(tmp_path, files, columns, message):
    with pytest.raises(UsageError, match=message):
        values(write(tmp_path, files), **columns)


@pytest.mark.parametrize("suffix", PACKERS)
def test_compressed_files_that_are_damaged(tmp_path, suffix):
    path = tmp_path / f"a.txt{suffix}"
    for damaged in (PACKERS[suffix](b"one\ntwo\n" * 10_000)[:-9], b"one\ntwo\n"):
        path.write_bytes(damaged)
        with pytest.raises(UsageError, match=r"Cannot read '.*' \(.*\); fix it, or fetch it again"):
            values(path, **TEXT)


def test_paths_that_lead_nowhere_and_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(write(tmp_path, {"a.txt": "d\n", "a.doc": "a\n"})))
    assert values("~/a.txt", **TEXT) == ["d\n"]
    with pytest.raises(UsageError, match=r"Cannot tell from its name what '.*a\.doc' is; give a file, folder"):
        values("~/a.doc", **TEXT)
    with pytest.raises(UsageError, match=r"There is no file to read at '.*'; data.source names it: give a file"):
        values(tmp_path / "none*.txt", **TEXT)
    with pytest.raises(UsageError, match=r"no file to read at .*aligned files are, named SPLIT\.de and SPLIT\.en"):
        values(tmp_path / "none", **SIDES)


def test_content_follows_bytes_and_columns_not_names(tmp_path):
    def contents():
        table = [opened(f"file:{tmp_path}/{name}.csv", text="text").content for name in "ab"]
        other = opened(f"file:{tmp_path}/a.csv", text="class").content
        return [*table, other, *(opened(f"file:{tmp_path}", part, source="de", target="en").content for part in parts)]

    parts = ("train", "test")
    write(tmp_path, {"a.csv": "text,class\nx,y\n", "b.csv": "text,class\nx,y\n"} | ALIGNED)
    before = contents()
    assert before[0] == before[1]
    write(tmp_path, {"a.csv": "text,class\nx,z\n", "train.en.xz": "another\n"})
    assert len({*before, *contents()}) == 7
