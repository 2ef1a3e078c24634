import collections
import dataclasses
import pickle
import re

import numpy as np
import pytest

from attention.errors import UsageError
from attention.types import build
from train.data import store
from train.data.rows import splits
from train.data.rows.splits import Split
from train.data.store import corpus
from train.data.text.section import LabelledTextData, MaskedTextData, TextData

REVIEWS = [("Great film, great fun", "good"), ("Bad.", "bad"), ("A bad, bad film", "bad"), ("Fine fun", "good")] * 3


@pytest.fixture
def language(text_fields, folder):
    """Sections for language models, with changes."""

    def make(**changes):
        return TextData(**text_fields | {"source": f"file:{folder}"} | changes)

    return make


@pytest.fixture
def masked(text_fields, folder):
    def make(**changes):
        return MaskedTextData(**text_fields | {"source": f"file:{folder}"} | changes)

    return make


@pytest.fixture
def labelled(text_fields, tmp_path):
    """Sections for classified reviews."""
    place = tmp_path / "reviews"
    place.mkdir()
    lines = ["text,stars", *(f'"{text}",{label}' for text, label in REVIEWS)]
    for split in ("train", "validation", "test"):
        (place / f"{split}.csv").write_text("\n".join(lines) + "\n")

    def make(**changes):
        fields = {"source": f"file:{place}", "label_column": "stars", "tokeniser": "words(size=8)"}
        return LabelledTextData(**text_fields | fields | changes)

    return make


def documents(tokens):
    """Where each document of a part begins among its tokens, and the last one ends."""
    offsets = tokens.columns["text"].token_offsets[tokens.rows[0] : tokens.rows[-1] + 2]
    return offsets - offsets[0]


class TestCorpus:
    def test_splits(self, language, folder):
        text = language().load()
        for part, name in (("train", "train"), ("validation", "valid"), ("test", "test")):
            content = (folder / f"{name}.txt").read_bytes()
            tokens = text.splits[part]
            assert bytes(tokens.ids[:].tolist()) == content
            assert tokens.bytes == len(content)
            assert len(tokens) == content.count(b"\n")
            np.testing.assert_array_equal(documents(tokens), [0, *(m.end() for m in re.finditer(rb"\n", content))])
        assert text.class_names == ()

    def test_slices_are_those_of_documents(self, language, folder):
        text = language(train_split="train[:50%]", validation_split="train[50%:]", test_split="train[-1:]").load()
        lines = (folder / "train.txt").read_bytes().splitlines(keepends=True)
        for part, expected in (("train", lines[:30]), ("validation", lines[30:]), ("test", lines[-1:])):
            tokens = text.splits[part]
            assert bytes(tokens.ids[:].tolist()) == b"".join(expected)
            assert (len(tokens), tokens.bytes) == (len(expected), len(b"".join(expected)))
            np.testing.assert_array_equal(np.diff(documents(tokens)), list(map(len, expected)))

    def test_the_vocabulary_is_that_of_the_training_slice(self, language, folder):
        text = language(train_split="train[:3]", validation_split="train[3:]", tokeniser="words").load()
        lines = (folder / "train.txt").read_text().splitlines()[:3]
        words = collections.Counter(" ".join(lines).lower().replace(".", "").split())
        assert set(text.tokeniser.words) == set(words)
        assert (text.splits["validation"].ids[:] == 1).any()
        assert not (text.splits["train"].ids[:] == 1).any()

    def test_a_fitted_tokeniser_is_fitted_once(self, language, monkeypatch):
        first = language(tokeniser="bpe(size=280)").load()
        monkeypatch.setattr(
            "train.data.tokenisers.subwords.fit_bpe", lambda *args, **options: pytest.fail("fitted again")
        )
        monkeypatch.setattr(store.tokens, "_write", lambda *args: pytest.fail("encoded again"))
        again = language(tokeniser="bpe(size=280)").load()
        assert again.tokeniser.dumps() == first.tokeniser.dumps()
        np.testing.assert_array_equal(again.splits["train"].ids[:], first.splits["train"].ids[:])

    def test_changed_text_is_encoded_anew(self, language, folder):
        before = len(language().load().splits["test"].ids[:])
        (folder / "test.txt").write_text("The end. Or not.\n")
        assert len(language().load().splits["test"].ids[:]) == before + 8

    def test_pickles_without_its_text(self, language):
        tokens = language().load().splits["validation"]
        expected = tokens.ids[:].tolist(), documents(tokens).tolist()
        copy = pickle.dumps(tokens)
        assert len(copy) < 1000
        copy = pickle.loads(copy)
        assert (copy.ids[:].tolist(), documents(copy).tolist()) == expected

    def test_the_environment_names_the_cache(self, language, tmp_path, monkeypatch):
        monkeypatch.setenv("ATTENTION_BENCH_CACHE", str(tmp_path / "elsewhere"))
        language(cache_dir="").load()
        assert (tmp_path / "elsewhere" / "texts").is_dir()

    def test_missing_splits_are_said_before_anything_is_encoded(self, language, folder, monkeypatch):
        (folder / "test.txt").unlink()
        monkeypatch.setattr(store.tokens, "_write", lambda *args: pytest.fail("encoded"))
        with pytest.raises(UsageError, match=r"Unknown split of file:.* 'test'\. .*Valid: train, validation"):
            language(train_split="train[:90%]").load()

    def test_one_table_is_cut_into_splits(self, language, tmp_path):
        (tmp_path / "one.csv").write_text("text\n" + "".join(f"sentence number {n}\n" for n in range(100)))
        whole = {"train_split": "train", "validation_split": "validation", "test_split": "test"}
        corpus = language(source=f"file:{tmp_path / 'one.csv'}", **whole).load()
        assert [tokens.rows.tolist() for tokens in corpus.splits.values()] == [
            list(range(80)),
            list(range(80, 90)),
            list(range(90, 100)),
        ]

    def test_too_short(self, language, folder):
        (folder / "train.txt").write_text("Sixteen bytes..\n")
        with pytest.raises(UsageError, match=r"has 16 tokens and one window needs 17; lower data.context"):
            language().load()
        (folder / "train.txt").write_text("Seventeen bytes.\n")
        language().load()

    def test_nothing_to_measure(self, language, masked, folder):
        splits = {"tokeniser": "words(marks=True)", "test_split": "train[-1:]"}
        (folder / "train.txt").write_text("Some words on a line.\n" * 20 + "one\n")
        with pytest.raises(UsageError, match=r"The test split has 1 tokens, too few to predict one; widen data.test_"):
            language(**splits).load()
        (folder / "train.txt").write_text("Some words on a line.\n" * 20 + "\n")
        with pytest.raises(UsageError, match=r"The test split has 0 tokens, too few"):
            masked(**splits).load()

    def test_end_tokens_need_one(self, language):
        with pytest.raises(UsageError, match=r"data.end_token asks for an end token, but 'words' has none"):
            language(tokeniser="words", end_token=True).load()

    def test_masks_need_one(self, masked):
        with pytest.raises(UsageError, match=r"needs a tokeniser with a mask token, .* pad, unknown"):
            masked(tokeniser="words").load()


class TestClasses:
    def test_names_are_sorted(self, labelled):
        text = labelled().load()
        assert text.class_names == ("bad", "good")
        for tokens in text.splits.values():
            expected = [int(REVIEWS[row][1] == "good") for row in tokens.rows]
            assert tokens.labels.tolist() == expected
            assert sorted(tokens.rows.tolist()) == list(range(len(REVIEWS)))

    def test_numbers_sort_as_numbers(self, labelled, tmp_path):
        (tmp_path / "reviews" / "train.csv").write_text("text,stars\nx,10\ny,9\nz,-1\n")
        (tmp_path / "reviews" / "test.csv").write_text("text,stars\ny,9\nz,10\n")
        text = labelled(validation_split="test").load()
        assert text.class_names == ("-1", "9", "10")
        train, test = text.splits["train"], text.splits["test"]
        assert train.labels.tolist() == [(2, 1, 0)[row] for row in train.rows]
        assert test.labels.tolist() == [(1, 2)[row] for row in test.rows]

    def test_one_class_is_none(self, labelled, tmp_path):
        (tmp_path / "reviews" / "train.csv").write_text("text,stars\nx,good\ny,good\n")
        with pytest.raises(UsageError, match=r"All documents have the class 'good' in 'stars'; name another"):
            labelled(validation_split="train", test_split="train").load()


class TestShuffling:
    """Of labelled documents before they are sliced: sets sorted by class are common."""

    @pytest.fixture
    def slices(self, labelled, tmp_path):
        rows = [f"word{i} film,{'bad' if i < 100 else 'good'}" for i in range(200)]
        (tmp_path / "reviews" / "train.csv").write_text("\n".join(["text,stars", *rows]) + "\n")
        splits = {"train_split": "train[:90%]", "validation_split": "train[90%:]", "test_split": "train"}
        return labelled(**splits, tokeniser="words").load()

    def test_all_slices_of_a_sorted_set_have_both_classes(self, slices):
        for part, least in (("train", 80), ("validation", 5)):
            assert np.bincount(slices.splits[part].labels, minlength=2).min() >= least
        whole = slices.splits["test"]
        np.testing.assert_array_equal(whole.labels, whole.rows >= 100)

    def test_slices_that_meet_are_disjoint_and_complete(self, slices):
        train, validation = (slices.splits[part].rows.tolist() for part in ("train", "validation"))
        assert (len(train), len(validation)) == (180, 20)
        assert sorted(train + validation) == list(range(200))

    def test_documents_keep_their_classes_and_words(self, slices):
        tokens, decode = slices.splits["train"], slices.tokeniser.decode
        for index in (0, 7, 179):
            assert decode(*tokens.row(index)) == f"word{tokens.rows[index]} film"

    def test_the_vocabulary_is_that_of_the_shuffled_slice(self, slices):
        expected = {f"word{row}" for row in slices.splits["train"].rows} | {"film"}
        assert set(slices.tokeniser.words) == expected

    def test_the_order_is_always_the_same(self):
        """Another one would change what was measured with it, and needs another `ORDER`."""
        assert splits.shuffled(Split.parse("train"), lambda: 10).tolist() == [3, 2, 1, 8, 6, 0, 7, 4, 5, 9]
        assert sorted(splits.shuffled(Split.parse("train"), lambda: 1000).tolist()) == list(range(1000))

    def test_the_order_is_part_of_what_caches_are_known_by(self, labelled, tmp_path, monkeypatch):
        labelled(train_split="train[:6]").load()
        monkeypatch.setattr(corpus, "ORDER", -1)
        labelled(train_split="train[:6]").load()
        assert len(list((tmp_path / "cache" / "tokenisers").glob("*.json"))) == 2

    def test_pickles_without_its_rows(self, slices):
        tokens = slices.splits["train"]
        expected = tokens.rows.tolist()
        copy = pickle.dumps(tokens)
        assert len(copy) < 1000
        assert pickle.loads(copy).rows.tolist() == expected


class TestStrangeClasses:
    def test_a_class_that_was_never_trained(self, labelled, tmp_path):
        (tmp_path / "reviews" / "test.csv").write_text("text,stars\nx,odd\n")
        with pytest.raises(
            UsageError, match=r"The test data have the class 'odd', which the training data have not: bad"
        ):
            labelled().load()


def test_the_section_is_made_from_plain_values(language, masked, labelled):
    """What configs hold: every field a plain value, and none left out."""
    for section in (language(), masked(), labelled()):
        plain = dataclasses.asdict(section)
        assert build(type(section), plain, "data", whole=True) == section
        for field in plain:
            with pytest.raises(UsageError, match=rf"The field data\.{field} is missing"):
                build(type(section), {k: v for k, v in plain.items() if k != field}, "data", whole=True)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("language", {"source": "imdb"}, "Unknown data.source 'imdb'"),
        ("language", {"tokeniser": "byte"}, "Unknown data.tokeniser 'byte'"),
        ("language", {"test_split": "test["}, "Cannot read the split"),
        ("language", {"eval_stride": 17}, r"data.eval_stride must be between 0 .* and data.context = 16, but it is 17"),
        ("labelled", {"keep": "middle"}, r"Unknown data.keep 'middle'.* Valid: first, last"),
        ("labelled", {"label_column": ""}, "data.label_column must name the column"),
    ],
)
def test_mistakes(request, kind, changes, message):
    with pytest.raises(UsageError, match=message):
        request.getfixturevalue(kind)(**changes)


class TestRealText:
    """Against the counts that were published with the sets."""

    def test_wikitext2(self, real_text, language):
        tokeniser = "words(lower=False, strip=False, marks=True)"
        text = language(source=f"file:{real_text}/wikitext2", tokeniser=tokeniser, end_token=True, context=1024).load()
        sizes = {part: len(tokens.ids) for part, tokens in text.splits.items()}
        assert sizes == {"train": 2_088_628, "validation": 217_646, "test": 245_569}
        # 33,278 with the end of a line; we have four more special tokens.
        assert text.tokeniser.size == 33_278 + 4

    def test_imdb(self, real_text, labelled):
        fields = {"text_column": "review", "label_column": "label", "tokeniser": "words(size=20000)"}
        splits = {"train_split": "test[:90%]", "validation_split": "test[90%:]"}
        text = labelled(source=f"file:{real_text}/imdb", **fields, **splits).load()
        assert text.tokeniser.size == 20_000
        assert text.class_names == ("0", "1")
        assert np.bincount(text.splits["test"].labels).tolist() == [12_500, 12_500]
        assert {part: len(tokens) for part, tokens in text.splits.items()} == {
            "train": 22_500,
            "validation": 2_500,
            "test": 25_000,
        }

    def test_shakespeare(self, real_text, language):
        splits = {"train_split": "train[:90%]", "validation_split": "train[90%:]", "test_split": "train"}
        text = language(source=f"file:{real_text}/tinyshakespeare", **splits).load()
        assert text.splits["test"].bytes == len(text.splits["test"].ids) == 1_115_394
        assert len(np.unique(text.splits["test"].ids[:])) == 65
