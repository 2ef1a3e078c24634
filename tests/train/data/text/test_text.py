"""Corpora: documents in splits, vocabularies, classes, the cache, and mistakes."""

import numpy as np
import pytest

from attention.errors import UsageError
from tests.train.data.tokenisers.test_tokenisers import words_of
from train.data import splits
from train.data.splits import Split
from train.data.text.section import LabelledTextData, MaskedTextData, TextData

REVIEWS = [("Great film, great fun", "good"), ("Bad.", "bad"), ("A bad, bad film", "bad"), ("Fine fun", "good")] * 3


@pytest.fixture
def make(folder, tmp_path):
    """Makes sections for language models, masked ones, and classified reviews, with changes."""
    reviews = tmp_path / "reviews"
    reviews.mkdir()
    for split in ("train", "validation", "test"):
        table(reviews, split, *(f'"{text}",{label}' for text, label in REVIEWS))
    common = {"cache_dir": str(tmp_path / "cache"), "tokeniser": "bytes", "context": 16}
    own = {"source": f"file:{folder}"}
    own_reviews = {"source": f"file:{reviews}", "label_column": "stars", "tokeniser": "words(size=8)"}
    sections = {TextData: own, MaskedTextData: own, LabelledTextData: own_reviews}
    return lambda section=TextData, **changes: section(**common | sections[section] | changes)


def table(place, split, *rows):
    (place / f"{split}.csv").write_text("\n".join(["text,stars", *rows]) + "\n")


class TestCorpus:
    def test_slices_are_those_of_documents_and_training_has_the_vocabulary(self, make, folder):
        text = make(train_split="train[:50%]", validation_split="train[50%:]", test_split="train[-1:]").load()
        lines = (folder / "train.txt").read_bytes().splitlines(keepends=True)
        for part, expected in (("train", lines[:30]), ("validation", lines[30:]), ("test", lines[-1:])):
            tokens = text.splits[part]
            assert bytes(tokens.ids[:].tolist()) == b"".join(expected)
            assert (len(tokens), tokens.bytes) == (len(expected), len(b"".join(expected)))
        text = make(train_split="train[:3]", validation_split="train[3:]", tokeniser="words").load()
        lines = (folder / "train.txt").read_text().splitlines()[:3]
        assert set(words_of(text.tokeniser)) == set(" ".join(lines).lower().replace(".", "").split())
        assert (text.splits["validation"].ids[:] == 1).any()
        assert not (text.splits["train"].ids[:] == 1).any()

    def test_what_is_made_is_made_once_until_the_text_changes(self, make, folder, monkeypatch):
        first = make(tokeniser="bpe(size=280)").load()
        with monkeypatch.context() as patch:
            patch.setattr("train.data.tokenisers.make", lambda *args, **options: pytest.fail("fitted again"))
            patch.setattr("train.data.encodings.corpus._encoded", lambda *args, **options: pytest.fail("encoded again"))
            again = make(tokeniser="bpe(size=280)").load()
        assert again.tokeniser.dumps() == first.tokeniser.dumps()
        np.testing.assert_array_equal(again.splits["train"].ids[:], first.splits["train"].ids[:])
        before = make().load().splits["test"]
        (folder / "test.txt").write_text("The end. Or not.\n")
        after = make().load().splits["test"]
        assert len(after.ids[:]) == len(before.ids[:]) + 8
        assert after.content != before.content

    def test_missing_splits_are_said_before_anything_is_encoded(self, make, folder, monkeypatch):
        (folder / "test.txt").unlink()
        monkeypatch.setattr("train.data.encodings.corpus._encoded", lambda *args, **options: pytest.fail("encoded"))
        with pytest.raises(UsageError, match=r"Unknown split of file:.* 'test'\. .*Valid: train, validation"):
            make(train_split="train[:90%]").load()

    @pytest.mark.parametrize(
        ("section", "text", "changes", "message"),
        [
            (TextData, "Sixteen bytes..\n", {}, r"has 16 tokens and one window needs 17; lower data.context"),
            (TextData, "Some words.\n" * 20 + "one\n", {}, r"The test split has 1 tokens, too few to predict one"),
            (MaskedTextData, "Some words.\n" * 20 + "\n", {}, r"The test split has 0 tokens, too few"),
            (TextData, "text\n", {"tokeniser": "words", "end_token": True}, r"asks for an end token, but 'words'"),
            (MaskedTextData, "text " * 99, {"tokeniser": "words"}, r"needs a tokeniser with a mask token, .* pad, u"),
        ],
    )
    def test_too_little(self, make, folder, section, text, changes, message):
        (folder / "train.txt").write_text(text)
        words = {"tokeniser": "words(marks=True)", "test_split": "train[-1:]"} if "Some" in text else {}
        with pytest.raises(UsageError, match=message):
            make(section, **words | changes).load()

    def test_one_window_is_enough(self, make, folder):
        (folder / "train.txt").write_text("Seventeen bytes.\n")
        assert len(make().load().splits["train"].ids) == 17


class TestClasses:
    def test_names_are_sorted_and_numbers_as_numbers(self, make, tmp_path):
        text = make(LabelledTextData).load()
        assert text.class_names == ("bad", "good")
        for tokens in text.splits.values():
            assert tokens.labels.tolist() == [int(REVIEWS[row][1] == "good") for row in tokens.rows]
            assert sorted(tokens.rows.tolist()) == list(range(len(REVIEWS)))
        table(tmp_path / "reviews", "train", "x,10", "y,9", "z,-1")
        table(tmp_path / "reviews", "test", "y,9", "z,10")
        text = make(LabelledTextData, validation_split="test").load()
        assert text.class_names == ("-1", "9", "10")
        train, test = text.splits["train"], text.splits["test"]
        assert train.labels.tolist() == [(2, 1, 0)[row] for row in train.rows]
        assert test.labels.tolist() == [(1, 2)[row] for row in test.rows]

    def test_there_must_be_two(self, make, tmp_path):
        table(tmp_path / "reviews", "train", "x,good", "y,good")
        with pytest.raises(UsageError, match=r"All documents have the class 'good' in 'stars'; name another"):
            make(LabelledTextData, validation_split="train", test_split="train").load()


class TestShuffling:
    """Labelled documents are shuffled before they are sliced, since sets sorted by class are common."""

    def test_slices_part_a_sorted_set_and_have_both_classes(self, make, tmp_path):
        table(tmp_path / "reviews", "train", *(f"word{i} film,{'bad' if i < 100 else 'good'}" for i in range(200)))
        cut = {"train_split": "train[:90%]", "validation_split": "train[90%:]", "test_split": "train"}
        slices = make(LabelledTextData, **cut, tokeniser="words").load()
        train, validation, test = slices.splits.values()
        assert (len(train), len(validation)) == (180, 20)
        assert sorted([*train.rows, *validation.rows]) == list(range(200))
        for part, least in ((train, 80), (validation, 5)):
            assert np.bincount(part.labels, minlength=2).min() >= least
        np.testing.assert_array_equal(test.labels, test.rows >= 100)

        for index in (0, 7, 179):
            assert slices.tokeniser.decode(*train.row(index)) == f"word{train.rows[index]} film"
        assert set(words_of(slices.tokeniser)) == {f"word{row}" for row in train.rows} | {"film"}

    def test_the_order_is_always_the_same(self):
        """Another order would change published results, and would need another `ORDER`."""
        assert splits.shuffled(Split.parse("train"), 10).tolist() == [3, 2, 1, 8, 6, 0, 7, 4, 5, 9]
        assert sorted(splits.shuffled(Split.parse("train"), 1000).tolist()) == list(range(1000))
