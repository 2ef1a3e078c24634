import bz2
import csv
import gzip
import json
import lzma
from types import SimpleNamespace

import pyarrow
import pytest
from pyarrow import parquet

from attention.errors import UsageError
from train.data.rows.rows import DataColumn, Document
from train.data.text import sources

ROWS = [("plain", "a"), ('with "quotes", commas', "b"), ("two\nlines", "a"), ("Ünï 猫", "b"), ("", "a")]


def load(path, split="train", text="text", label=""):
    return sources.load(SimpleNamespace(source=f"file:{path}", text_column=text, label_column=label), split)


def read(*args, **options):
    return list(load(*args, **options).read())


def write_tables(folder):
    columns = [{"id": i, "text": text, "class": label} for i, (text, label) in enumerate(ROWS)]
    with open(folder / "a.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["id", "text", "class"])
        writer.writeheader()
        writer.writerows(columns)
    (folder / "a.jsonl").write_text("\n".join(map(json.dumps, columns)) + "\n\n", encoding="utf-8")
    parquet.write_table(pyarrow.Table.from_pylist(columns), folder / "a.parquet")


@pytest.mark.parametrize("value", [2, -2, 2**40, 0.5, "1", [0], float("nan")])
def test_a_class_that_is_none_is_named(value):
    column = DataColumn("data.label_column", "stars", is_class=True, classes=("bad", "good"))
    with pytest.raises(UsageError, match=r"Row 3 has .* in 'stars', but classes are numbers from 0 to 1\."):
        column.value({"stars": value}, "Row 3")


class TestTables:
    @pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet"])
    def test_rows_come_back(self, tmp_path, name):
        write_tables(tmp_path)
        assert read(tmp_path / name, label="class") == [Document(*row) for row in ROWS]
        assert read(tmp_path / name) == [Document(text, "") for text, _ in ROWS]

    def test_tsv_has_no_quotes(self, tmp_path):
        (tmp_path / "a.tsv").write_text('text\tn\nsay "hi"\t1\n"open\t2\n')
        assert read(tmp_path / "a.tsv", label="n") == [('say "hi"', "1"), ('"open', "2")]

    def test_long_fields(self, tmp_path):
        (tmp_path / "a.csv").write_text("text\n" + "x" * 300_000 + "\n")
        assert len(read(tmp_path / "a.csv")[0].text) == 300_000

    @pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet"])
    def test_missing_columns_name_those_there_are(self, tmp_path, name):
        write_tables(tmp_path)
        with pytest.raises(
            UsageError, match=rf"data.text_column for '.*{name}' \(.*\) 'review'\. .*Valid: class, id, text"
        ):
            read(tmp_path / name, text="review")
        with pytest.raises(UsageError, match=r"data.label_column .* 'clas'\. Did you mean 'class'"):
            read(tmp_path / name, label="clas")

    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("a.csv", "text,n\na,1\nb\n", r"line 3 has 1 fields and the header 2"),
            ("a.csv", 'text,n\na,1\n"b,2\n', r"line 3 is not as CSV should be"),
            ("a.csv", "text,n\na,\n", r"a.csv' \(line 2\) has no class in 'n'"),
            ("a.jsonl", '{"text": "a", "n": 1}\n{"text"\n', r"line 2 is damaged .*write one object a line"),
            ("a.jsonl", "[1]\n", r"line 1 is damaged \(no object, but"),
            ("a.jsonl", '{"text": 3, "n": 1}\n', r"\(line 1\) has 3 in 'text', which is no text"),
            ("a.jsonl", '{"text": "a", "n": null}\n', r"\(line 1\) has no class in 'n'"),
            (
                "a.jsonl",
                '{"text": "a", "n": 1}\n{"txt": "a", "n": 1}\n',
                r"a.jsonl' \(line 2\) 'text'\. .*Valid: n, txt",
            ),
            ("a.jsonl", '{"text": "\\ud83d", "n": 1}\n', r"line 1 is damaged \(it has half of a surrogate pair\)"),
            ("a.parquet", "text", r"cannot be read as Parquet"),
        ],
    )
    def test_bad_rows(self, tmp_path, name, content, message):
        (tmp_path / name).write_text(content)
        with pytest.raises(UsageError, match=message):
            read(tmp_path / name, label="n")


class TestText:
    def test_lines_keep_their_ends(self, tmp_path):
        (tmp_path / "a.txt").write_bytes("one\n\n  zwö \r\nlast".encode())
        assert [document.text for document in read(tmp_path / "a.txt")] == ["one\n", "\n", "  zwö \r\n", "last"]

    def test_a_byte_order_mark_is_no_text(self, tmp_path):
        (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\n")
        assert read(tmp_path / "a.txt") == [("one\n", "")]

    @pytest.mark.parametrize(("suffix", "pack"), [("gz", gzip.compress), ("xz", lzma.compress), ("bz2", bz2.compress)])
    def test_compressed(self, tmp_path, suffix, pack):
        (tmp_path / f"a.txt.{suffix}").write_bytes(pack(b"one\ntwo\n"))
        assert read(tmp_path / f"a.txt.{suffix}") == [("one\n", ""), ("two\n", "")]
        (tmp_path / f"a.txt.{suffix}").write_bytes(pack(b"one\ntwo\n" * 10_000)[:-9])
        with pytest.raises(UsageError, match=r"Cannot read '.*' \(.*\); mend it, or fetch it again"):
            read(tmp_path / f"a.txt.{suffix}")
        (tmp_path / f"a.txt.{suffix}").write_bytes(b"one\ntwo\n")
        with pytest.raises(UsageError, match="Cannot read"):
            read(tmp_path / f"a.txt.{suffix}")

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", r"'.*a\.txt' is empty; remove it or give another"),
            (b"one\ntwo\0\n", r"'.*a\.txt' holds a zero byte in line 2"),
            (b"one\n\ncaf\xe9s\n", r"is not in UTF-8: line 3 has the byte 0xe9 at position 4; convert it"),
        ],
    )
    def test_bad_content(self, tmp_path, content, message):
        (tmp_path / "a.txt").write_bytes(content)
        with pytest.raises(UsageError, match=message):
            read(tmp_path / "a.txt")

    def test_no_classes(self, folder):
        with pytest.raises(UsageError, match=r"train.txt' is plain text, which has no classes; use one of .csv"):
            read(folder, label="class")


class TestPaths:
    def test_folders_have_splits(self, folder):
        assert [len(read(folder, split)) for split in ("train", "validation", "valid", "test")] == [60, 3, 3, 1]

    def test_split_files_may_be_many(self, folder):
        (folder / "train-00002.txt").write_text("more\n")
        assert read(folder)[0] == ("more\n", "")
        assert len(read(folder)) == 61

    def test_other_names_are_all_train(self, tmp_path):
        for name in ("b.txt", "a.txt", "notes.md"):
            (tmp_path / name).write_text(name)
        assert [document.text for document in read(tmp_path)] == ["a.txt", "b.txt"]

    def test_globs(self, folder):
        assert len(read(folder / "*.txt")) == 64
        assert len(read(folder / "t*.txt")) == 61

    def test_the_home_folder(self, folder, monkeypatch):
        monkeypatch.setenv("HOME", str(folder))
        assert len(read("~/test.txt")) == 1

    @pytest.mark.parametrize("name", ["none.txt", "none*.txt", "empty"])
    def test_nothing_there(self, tmp_path, name):
        (tmp_path / "empty").mkdir()
        with pytest.raises(UsageError, match=r"There is no file to read at '.*'; data.source names it: give a file"):
            read(tmp_path / name)

    def test_unknown_split(self, folder):
        with pytest.raises(UsageError, match=r"'tests'\. Did you mean 'test'\? Valid: test, train, validation"):
            read(folder, "tests")
        with pytest.raises(
            UsageError, match=r"Unknown split of file:.* 'test'\. Valid: train\. A part of one is .*train\[90%:\]"
        ):
            read(folder / "train.txt", "test")

    def test_unknown_suffix(self, tmp_path):
        (tmp_path / "a.doc").write_text("x")
        with pytest.raises(UsageError, match=r"Cannot tell from its name what '.*a\.doc' is; give a file, folder"):
            read(tmp_path / "a.doc")


class TestContent:
    def digest(self, path, text="text"):
        return load(path, text=text).content

    def test_follows_bytes_and_columns_not_names(self, tmp_path):
        write_tables(tmp_path)
        before = self.digest(tmp_path / "a.csv")
        (tmp_path / "b.csv").write_bytes((tmp_path / "a.csv").read_bytes())
        assert self.digest(tmp_path / "b.csv") == before
        assert self.digest(tmp_path / "a.csv", "class") != before
        with open(tmp_path / "a.csv", "a") as file:
            file.write("9,x,a\n")
        assert self.digest(tmp_path / "a.csv") != before
