import gzip
import json
import lzma
import os
from pathlib import Path
from types import SimpleNamespace

import pyarrow
import pytest
import tensorflow_datasets as tfds
from array_record.python.array_record_module import ArrayRecordWriter
from pyarrow import parquet
from tensorflow_datasets.proto import tf_example_pb2

from attention.errors import UsageError
from train.data.pairs import sources
from train.data.pairs.sources import stripped

PAIRS = [("Zwei Hunde.", "Two dogs."), ('Er sagt "ja".', 'He says "yes".'), ("猫", "a cat")]


def load(source, split="train", columns=("de", "en"), **changes):
    fields = {"source": str(source), "source_column": columns[0], "target_column": columns[1]}
    rest = {"revision": "", "streaming": False, "data_dir": ""} | changes
    return sources.load(SimpleNamespace(**fields, **rest), split)


def read(path, split="train", columns=("de", "en")):
    return list(load(f"file:{path}", split, columns).read())


def write(path, text):
    pack = {".xz": lzma.compress, ".gz": gzip.compress}.get(path.suffix, bytes)
    path.write_bytes(pack(text.encode()))


@pytest.fixture
def folder(tmp_path):
    """Aligned files of three splits, some compressed, beside others."""
    place = tmp_path / "aligned"
    place.mkdir()
    for column, language in enumerate(("de", "en")):
        text = "".join(pair[column] + "\n" for pair in PAIRS)
        write(place / f"train.{language}.xz", text)
        write(place / f"val.{language}", text.partition("\n")[0])
        write(place / f"test_2016_flickr.{language}", text.replace("\n", " \r\n"))
    write(place / "train.fr", "nicht übersetzt\n")
    write(place / "README.txt", "No pairs here.\n")
    return place


@pytest.fixture
def real():
    """The folder ATTENTION_BENCH_DATA."""
    root = os.environ.get("ATTENTION_BENCH_DATA")
    if not root or not (Path(root) / "multi30k").is_dir():
        pytest.skip("set ATTENTION_BENCH_DATA to a folder whose subfolders multi30k and spa_eng hold those sets")
    return Path(root)


class TestStripped:
    def test_white_space_and_pairs_of_nothing(self):
        rows = [("1", " a b\n", "\tc\u3000"), ("2", "\n", "  "), ("3", "d", "e")]
        assert list(stripped(rows)) == [("a b", "c"), ("d", "e")]

    @pytest.mark.parametrize(
        ("source", "target", "message"),
        [
            (" ", "c", r"^Line 7 has an empty source beside the target 'c'"),
            ("long " * 100, "\n", r"^Line 7 has an empty target beside the source 'long .* …'; mend or remove"),
        ],
    )
    def test_one_empty_side(self, source, target, message):
        pairs = stripped([("Line 6", "a", "b"), ("Line 7", source, target)])
        assert next(pairs) == ("a", "b")
        with pytest.raises(UsageError, match=message):
            next(pairs)


class TestTables:
    @pytest.fixture
    def tables(self, tmp_path):
        rows = [{"id": i, "de": f" {de}", "en": f"{en}\t"} for i, (de, en) in enumerate(PAIRS)]
        nested = [{"id": row["id"], "translation": {"de": row["de"], "en": row["en"]}} for row in rows]
        for name, table in (("flat", rows), ("nested", nested)):
            write(tmp_path / f"{name}.jsonl.gz", "\n".join(map(json.dumps, table)))
            parquet.write_table(pyarrow.Table.from_pylist(table), tmp_path / f"{name}.parquet")
        quoted = ["{},{}".format(*('"' + text.replace('"', '""') + '"' for text in pair)) for pair in PAIRS]
        write(tmp_path / "flat.csv", "\n".join(["de,en", *quoted]))
        write(tmp_path / "flat.tsv.xz", "\n".join(["en\tde", *(f"{en}\t{de}" for de, en in PAIRS)]))
        return tmp_path

    @pytest.mark.parametrize("name", ["flat.jsonl.gz", "flat.parquet", "flat.csv", "flat.tsv.xz"])
    def test_columns(self, tables, name):
        assert read(tables / name) == PAIRS
        assert read(tables / name, columns=("en", "de")) == [pair[::-1] for pair in PAIRS]

    @pytest.mark.parametrize("name", ["nested.jsonl.gz", "nested.parquet"])
    def test_nested_columns(self, tables, name):
        assert read(tables / name, columns=("translation.de", "translation.en")) == PAIRS
        message = r"data.target_column for '.*nested.*' \(.*\) 'translation.fr'\..* Valid: id, translation.de, translat"
        with pytest.raises(UsageError, match=message):
            read(tables / name, columns=("translation.de", "translation.fr"))
        with pytest.raises(UsageError, match=r"has \{.*\} in 'translation', which is no text"):
            read(tables / name, columns=("translation", "translation.en"))

    def test_a_dot_in_a_name(self, tmp_path):
        write(tmp_path / "a.tsv", "text.de\ttext.en\na\tb\n")
        assert read(tmp_path / "a.tsv", columns=("text.de", "text.en")) == [("a", "b")]

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("de,fr\na,b\n", r"Unknown data.target_column for '.*a.csv' \(line 2\) 'en'\. .*Valid: de, fr"),
            ("de,en\na,b\n,c\n", r"'.*a.csv' \(line 3\) has an empty source beside the target 'c'"),
        ],
    )
    def test_mistakes(self, tmp_path, content, message):
        write(tmp_path / "a.csv", content)
        with pytest.raises(UsageError, match=message):
            read(tmp_path / "a.csv")


class TestTabs:
    def test_both_directions_and_what_follows(self, tmp_path):
        write(tmp_path / "spa.txt.xz", "Go.\tVe.\tCC-BY\r\n\nHi!\t ¡Hola! \tCC-BY\n \t \n")
        pairs = [("Go.", "Ve."), ("Hi!", "¡Hola!")]
        assert read(tmp_path / "spa.txt.xz", columns=("1", "2")) == pairs
        assert read(tmp_path / "spa.txt.xz", columns=("2", "1")) == [pair[::-1] for pair in pairs]

    @pytest.mark.parametrize(
        ("content", "columns", "message"),
        [
            ("a\tb\nc d\n", ("1", "2"), r"'.*a.txt' \(line 2\) has no tab between source and target"),
            (
                "a\tb\n",
                ("1", "3"),
                r"\(line 1\) has 2 columns, but data.source_column and .* are 1 and 3",
            ),
            ("a\tb\n\tc\n", ("1", "2"), r"\(line 2\) has an empty source"),
            ("a\tb\n", ("en", "es"), r"data.source_column must be the number of a column from '1' on, but it is 'en'"),
            ("a\tb\n", ("1", "0"), r"data.target_column must be the number of a column from '1' on, but it is '0'"),
        ],
    )
    def test_mistakes(self, tmp_path, content, columns, message):
        write(tmp_path / "a.txt", content)
        with pytest.raises(UsageError, match=message):
            read(tmp_path / "a.txt", columns=columns)


class TestAligned:
    @pytest.mark.parametrize("split", ["train", "test"])
    def test_folders(self, folder, split):
        assert read(folder, split) == PAIRS
        assert read(folder, split, ("en", "de")) == [pair[::-1] for pair in PAIRS]

    @pytest.mark.parametrize("split", ["validation", "val", "dev"])
    def test_names_of_validation(self, folder, split):
        assert read(folder, split) == PAIRS[:1]

    def test_several_files_of_a_split(self, folder):
        for language, text in (("de", "Ende."), ("en", "The end.")):
            write(folder / f"train-2.{language}", text)
        assert read(folder) == [*PAIRS, ("Ende.", "The end.")]

    def test_a_file_beside_its_compressed_form_counts_once(self, folder):
        write(folder / "train.de", lzma.decompress((folder / "train.de.xz").read_bytes()).decode())
        assert read(folder) == PAIRS

    def test_folders_without_splits(self, tmp_path):
        for language, text in (("es", "uno\n\ndos\n"), ("en", "one\n\ntwo\n")):
            write(tmp_path / f"europarl-v7.es-en.{language}", text)
        assert read(tmp_path, columns=("es", "en")) == [("uno", "one"), ("dos", "two")]

    def test_prefixes(self, folder):
        assert read(folder / "train") == PAIRS
        assert read(folder / "val") == PAIRS[:1]
        with pytest.raises(UsageError, match=r"Unknown split of file:.*train 'test'\. Valid: train\. A part"):
            read(folder / "train", "test")

    def test_lines_end_at_line_feeds_only(self, tmp_path):
        write(tmp_path / "a.de", "eins\u2028zwei\x0cdrei\nvier\n")
        write(tmp_path / "a.en", "one to three\nfour\n")
        assert read(tmp_path / "a") == [("eins\u2028zwei\x0cdrei", "one to three"), ("vier", "four")]

    @pytest.mark.parametrize(("short", "counts"), [("de", (2, 5)), ("en", (5, 2))])
    def test_different_lengths(self, tmp_path, short, counts):
        for language in ("de", "en"):
            write(tmp_path / f"a.{language}", "x\n" * (2 if language == short else 5))
        message = rf"'.*a\.de' has {counts[0]} lines and '.*a\.en' has {counts[1]}, but line must stand by line"
        with pytest.raises(UsageError, match=message):
            read(tmp_path / "a")

    def test_an_empty_side(self, tmp_path):
        write(tmp_path / "a.de", "a\n\n\n")
        write(tmp_path / "a.en", "b\n\nc\n")
        with pytest.raises(
            UsageError, match=r"^Line 3 of '.*a\.de' and '.*a\.en' has an empty source beside the target"
        ):
            read(tmp_path / "a")

    def test_mistakes(self, folder):
        with pytest.raises(UsageError, match=r"There is '.*train\.de\.xz', but no train\.cs aligned with it"):
            read(folder, columns=("de", "cs"))
        with pytest.raises(UsageError, match=r"Unknown split of file:.* 'tests'\. Did you mean 'test'"):
            read(folder, "tests")
        with pytest.raises(UsageError, match=r"no file to read at .*aligned files are, named SPLIT\.de and SPLIT\.en"):
            read(folder / "none")


class TestContent:
    def test_follows_bytes_and_columns(self, folder):
        before = load(f"file:{folder}").content
        assert load(f"file:{folder}").content == before
        assert load(f"file:{folder}/train").content == before
        assert load(f"file:{folder}", columns=("en", "de")).content != before
        assert load(f"file:{folder}", "test").content != before
        write(folder / "train.en.xz", "another\n")
        assert load(f"file:{folder}").content != before


class TestHub:
    @pytest.fixture
    def repository(self, tmp_path):
        import datasets

        (tmp_path / "set").mkdir()
        kinds = {"id": datasets.Value("int64"), "translation": datasets.Translation(("de", "en"))}
        columns = {"id": [0, 1, 2], "translation": [{"de": f"{de} ", "en": en} for de, en in PAIRS]}
        datasets.Dataset.from_dict(columns, datasets.Features(kinds)).to_parquet(tmp_path / "set" / "train.parquet")
        rows = [{"translation": {"de": "a", "en": "b"}, "de": "c", "en": ""}, {"de": "", "en": None}]
        (tmp_path / "plain").mkdir()
        (tmp_path / "plain" / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
        return tmp_path

    @pytest.fixture
    def hub(self, repository):
        def hub(name="set", columns=("translation.de", "translation.en")):
            return load(f"hf:{repository}/{name}", columns=columns, data_dir=str(repository / "downloads"))

        return hub

    def test_translations(self, hub):
        assert list(hub().read()) == PAIRS
        assert list(hub(columns=("translation.en", "translation.de")).read()) == [pair[::-1] for pair in PAIRS]
        assert hub().content == hub().content != hub(columns=("translation.en", "translation.de")).content

    def test_other_sets(self, hub):
        assert next(hub("plain").read()) == ("a", "b")
        with pytest.raises(UsageError, match=r"Row 0 of train of hf:.*plain has an empty target beside the source 'c'"):
            list(hub("plain", ("de", "en")).read())

    def test_mistakes(self, hub):
        with pytest.raises(UsageError, match=r"data.target_column for hf:.*set 'en'\..* Valid: id, translation.de"):
            hub(columns=("translation.de", "en"))
        with pytest.raises(UsageError, match=r"Row 0 of train of hf:.* has 0 in 'id', which is no text"):
            list(hub(columns=("id", "translation.en")).read())


class TestTfds:
    @pytest.fixture(params=["", "translation"])
    def prepared(self, tmp_path, request):
        """A set `captions`, as TFDS leaves it behind, and the names of its columns."""
        path = tmp_path / "captions" / "1.0.0"
        path.mkdir(parents=True)
        translation = tfds.features.Translation(("de", "en"))
        nested = tfds.features.FeaturesDict({"translation": translation, "n": tfds.features.ClassLabel(num_classes=2)})
        (nested if request.param else translation).save_config(path)
        part = {"name": "train", "shardLengths": [str(len(PAIRS))], "numBytes": "1"}
        part |= {"filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"}
        info = {"name": "captions", "version": "1.0.0", "fileFormat": "array_record", "splits": [part]}
        (path / "dataset_info.json").write_text(json.dumps(info))
        prefix = f"{request.param}/" if request.param else ""
        writer = ArrayRecordWriter(str(path / "captions-train.array_record-00000-of-00001"), "group_size:1")
        for pair in PAIRS:
            example = tf_example_pb2.Example()
            for language, text in zip(("de", "en"), pair, strict=True):
                example.features.feature[prefix + language].bytes_list.value.append(f" {text}".encode())
            if prefix:
                example.features.feature["n"].int64_list.value.append(1)
            writer.write(example.SerializeToString())
        writer.close()
        return str(tmp_path), [prefix.replace("/", ".") + language for language in ("de", "en")]

    def test_examples(self, prepared):
        folder, columns = prepared
        pairs = load("tfds:captions", columns=columns, data_dir=folder)
        assert list(pairs.read()) == list(pairs.read()) == PAIRS
        assert pairs.name == "train of tfds:captions"
        assert pairs.content != load("tfds:captions", columns=columns[::-1], data_dir=folder).content

    def test_mistakes(self, prepared):
        folder, columns = prepared
        with pytest.raises(
            UsageError, match=rf"data.target_column for tfds:captions 'fr'\..* Valid: {', '.join(columns)}"
        ):
            load("tfds:captions", columns=(columns[0], "fr"), data_dir=folder)


class TestSources:
    def test_dates(self):
        pairs = load("dates(sources=('fr',), first=2000, last=2001)", "test", ("", ""))
        assert pairs.name == "test of dates"
        assert all(source.startswith("fr de ") for source, _ in pairs.read())
        assert next(load("dates").read()).source.startswith("en de ")

    @pytest.mark.parametrize(
        "source",
        ["dates", "dates()", "dates(forms=('full', 'long'))", "file:a|b", "hf:a/b:c", "tfds:a/b"],
    )
    def test_check_opens_nothing(self, source):
        sources.check(source)

    @pytest.mark.parametrize("source", ["", "date", "file:", "hf", "dates|dates", "dates('en')", "pydoc"])
    def test_unknown(self, source):
        with pytest.raises(UsageError, match=r"Unknown data.source .*Valid: dates, .*file:PATH, hf:NAME"):
            sources.check(source)

    def test_options_of_dates_are_checked(self):
        message = r"Unknown option of dates 'source'\. .*Valid: first, forms, last, sources, targets"
        with pytest.raises(UsageError, match=message):
            sources.check("dates(source=('en',))")

    @pytest.mark.parametrize("columns", [("de", "de"), ("de", "")])
    def test_columns_are_two(self, folder, columns):
        with pytest.raises(UsageError, match=r"must name two columns \(or languages\), but they are \('de', "):
            load(f"file:{folder}", columns=columns)


class TestRealData:
    @pytest.mark.parametrize(("split", "count"), [("train", 29_000), ("validation", 1014), ("test", 1000)])
    def test_multi30k(self, real, split, count):
        pairs = read(real / "multi30k", split)
        assert len(pairs) == count
        if split == "test":
            assert pairs[0].target == "A man in an orange hat starring at something."

    def test_tatoeba(self, real):
        pairs = read(real / "spa_eng" / "spa.txt.xz", columns=("1", "2"))
        assert len(pairs) == 118_964
        assert pairs[0] == ("Go.", "Ve.")
