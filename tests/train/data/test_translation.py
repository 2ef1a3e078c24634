"""Pairs in splits, their vocabularies, and batches."""

import itertools

import numpy as np
import pytest

from attention import UsageError
from tests.train.data.streams import take
from tests.train.data.tokenisers.test_tokenisers import words_of
from train.data.pairs import TranslationData, bucketed

# Sources 0 to 29, every third with two translations: 40 pairs, sorted as Tatoeba's are.
PAIRS = [(f"eins zwei {n}", f"one two {n}{' x' * (n % 7)}") for n in range(30)]
PAIRS = sorted(PAIRS + [(source, f"{target} again") for source, target in PAIRS[::3]])


@pytest.fixture
def make(tmp_path):
    file = tmp_path / "pairs.txt"
    file.write_text("\n".join(f"{source}\t{target}" for source, target in PAIRS) + "\n", encoding="utf-8")
    fields = {
        "source": f"file:{file}",
        "source_column": "1",
        "target_column": "2",
        "train_split": "train[:70%]",
        "validation_split": "train[70%:85%]",
        "test_split": "train[85%:]",
        "source_tokeniser": "words(marks=True)",
        "target_tokeniser": "bytes",
        "source_length": 8,
        "target_length": 32,
        "buckets": "12,16",
        "batch_size": 4,
        "eval_batch_size": 4,
    }
    return lambda **changes: TranslationData(**fields | changes)


def pair(sentences, batch, row):
    """Takes the source and the target of a row, after checking special tokens and padding."""
    source, target = batch["source"][row], batch["targets"][row]
    length, written = batch["source_length"][row], int(batch["weight"][row].sum())
    ends = [special["end"] for special in sentences.special.values()]
    assert [source[length - 1], target[written - 1]] == ends
    assert batch["tokens"][row][0] == sentences.special["target"]["start"]
    np.testing.assert_array_equal(batch["tokens"][row][1:written], target[: written - 1])
    np.testing.assert_array_equal(batch["weight"][row], np.arange(len(target)) < written)
    for ids, real, side in ((source, length, "source"), (target, written, "target")):
        assert np.all(ids[real:] == sentences.special[side]["pad"])
    return source[: length - 1], target[: written - 1]


def test_evaluation_has_every_pair_of_a_split_once(make):
    data = make(source_tokeniser="bytes", source_length=32)
    corpus, found = data.load(), {}
    sentences = data.examples(corpus)["test"]
    for batch in sentences.eval_batches():
        for row, index in enumerate(batch["index"]):
            if index >= 0:
                source, target = pair(sentences, batch, row)
                found[int(index)] = (corpus.tokenisers["source"].decode(source), corpus.tokeniser.decode(target))
    rows = corpus.splits["test"].rows
    assert [found[index] for index in range(len(rows))] == [PAIRS[row] for row in rows]
    assert corpus.texts("test", "target", np.arange(len(rows))) == [PAIRS[row][1] for row in rows]


def test_splits_part_the_pairs_and_never_the_translations_of_a_source(make):
    splits = make().load().splits
    rows = {part: tokens.rows.tolist() for part, tokens in splits.items()}
    assert sorted(itertools.chain(*rows.values())) == list(range(40))
    assert 26 <= len(rows["train"]) <= 30
    sources = {part: {PAIRS[row][0] for row in found} for part, found in rows.items()}
    assert not sources["train"] & (sources["test"] | sources["validation"])
    assert not sources["test"] & sources["validation"]
    assert rows["test"] != sorted(rows["test"])


def test_vocabularies_are_learned_from_training_pairs_alone(make):
    corpus = make(target_tokeniser="words(marks=True)").load()
    training = [PAIRS[row] for row in corpus.splits["train"].rows]
    for side, tokeniser in enumerate((corpus.tokenisers["source"], corpus.tokeniser)):
        assert set(words_of(tokeniser)) == {word for texts in training for word in texts[side].split()}


def test_a_shared_vocabulary_is_of_both_sides(make):
    corpus = make(target_tokeniser="").load()
    assert corpus.tokeniser is corpus.tokenisers["source"]
    assert {"eins", "two", "again"} <= set(words_of(corpus.tokenisers["source"]))


def test_training_goes_through_all_pairs_each_epoch_in_batches_of_one_bucket(make):
    data = make()
    sentences = data.examples(data.load())["train"]
    epoch = len(sentences) // 4
    batches = take(sentences.train_batches(0), 2 * epoch)
    assert {batch["targets"].shape for batch in batches} == {(4, 12), (4, 16), (4, 32)}
    assert {batch["source"].shape for batch in batches} == {(4, 8)}
    for half in (batches[:epoch], batches[epoch:]):
        indices = np.concatenate([batch["index"] for batch in half])
        assert len(set(indices.tolist())) == len(indices)
    assert [b["index"].tolist() for b in batches[:epoch]] != [b["index"].tolist() for b in batches[epoch:]]
    lengths = [batch["targets"].shape[1] for batch in batches[:epoch]]
    assert lengths != sorted(lengths)
    first = [[1, 14, 19, 22], [8, 26, 9, 4], [13, 23, 17, 25]]  # for ever
    assert [batch["index"].tolist() for batch in batches[:3]] == first


def test_training_needs_a_whole_batch(make):
    data = make(batch_size=39)
    corpus = data.load()
    with pytest.raises(UsageError, match=r"pairs of data.train_split fit in data.source_length=8 and .* but 39"):
        data.examples(corpus)


@pytest.mark.parametrize(
    ("size", "order", "fill", "batches", "widths"),
    [
        (2, [5, 4, 3, 2, 1, 0], False, [[4, 2], [0, 5], [3, 1]], [4, 9, 9]),  # 0 has no partner and joins the long
        (4, [5, 4, 3, 2, 1, 0], False, [[4, 2, 0, 5]], [9]),  # of the long ones, two are left over
        (2, [0, 1, 2, 3, 4, 5], True, [[0, 2], [4, -1], [1, 3], [5, -1]], [4, 4, 9, 9]),
    ],
)
def test_buckets_by_hand(size, order, fill, batches, widths):
    examples, bounds = bucketed(np.array([1, 9, 2, 9, 3, 9]), (4, 9), size, np.array(order), fill)
    assert (examples.tolist(), bounds.tolist()) == (batches, widths)
