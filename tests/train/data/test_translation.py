"""Pairs in splits, their vocabularies, and batches."""

import itertools

import numpy as np
import pytest

from attention import UsageError
from tests.train.data.streams import take
from tests.train.data.tokenisers.test_tokenisers import words_of
from train.data import draws
from train.data.pairs import NOTHING, TranslationData, bucketed

# Sources 0 to 29, every third with two translations: 40 pairs, sorted as Tatoeba's are.
PAIRS = [(f"eins zwei {n}", f"one two {n}{' x' * (n % 7)}") for n in range(30)]
PAIRS = sorted(PAIRS + [(source, f"{target} again") for source, target in PAIRS[::3]])
SLICES = {"train_split": "train[:70%]", "validation_split": "train[70%:85%]", "test_split": "train[85%:]"}


@pytest.fixture
def make(tmp_path):
    file = tmp_path / "pairs.txt"
    file.write_text("\n".join(f"{source}\t{target}" for source, target in PAIRS) + "\n", encoding="utf-8")
    fields = {
        "source": f"file:{file}",
        "cache_dir": str(tmp_path / "cache"),
        "source_column": "1",
        "target_column": "2",
        **SLICES,
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


def texts(data, part, batches):
    corpus = data.load()
    sentences = data.examples(corpus)[part]
    found = {}
    for batch in batches(sentences):
        for row, index in enumerate(batch["index"]):
            if index >= 0:
                source, target = pair(sentences, batch, row)
                found[int(index)] = (corpus.tokenisers["source"].decode(source), corpus.tokeniser.decode(target))
    return found


@pytest.mark.parametrize("part", ["train", "validation", "test"])
def test_evaluation_has_every_pair_of_a_split_once(make, part):
    data = make(source_tokeniser="bytes", source_length=32)
    found = texts(data, part, lambda sentences: sentences.eval_batches())
    bitext = data.load()
    tokens = bitext.splits[part]
    assert [found[index] for index in range(len(tokens))] == [PAIRS[row] for row in tokens.rows]
    assert bitext.texts(part, "target", np.arange(len(tokens))) == [PAIRS[row][1] for row in tokens.rows]


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
    assert {batch["targets"].shape for batch in batches} <= {(4, 12), (4, 16), (4, 32)}
    assert len({batch["targets"].shape for batch in batches}) > 1
    assert {batch["source"].shape for batch in batches} == {(4, 8)}
    for half in (batches[:epoch], batches[epoch:]):
        indices = np.concatenate([batch["index"] for batch in half])
        assert len(set(indices.tolist())) == len(indices)
    assert [b["index"].tolist() for b in batches[:epoch]] != [b["index"].tolist() for b in batches[epoch:]]
    lengths = [batch["targets"].shape[1] for batch in batches[:epoch]]
    assert lengths != sorted(lengths)
    first = [[1, 14, 19, 22], [8, 26, 9, 4], [13, 23, 17, 25]]  # for ever
    assert [batch["index"].tolist() for batch in batches[:3]] == first


def test_long_pairs_are_left_out_and_counted(make):
    data = make(target_length=12, buckets="")
    for part, sentences in data.examples(data.load()).items():
        lengths = [len(PAIRS[row][1]) + 1 for row in sentences.split.rows]
        assert len(sentences) == sum(length <= 12 for length in lengths)
        assert sentences.too_long == sum(length > 12 for length in lengths) > 0, part
        found = texts(data, part, lambda sentences: sentences.eval_batches())
        assert all(len(target) <= 11 for _, target in found.values())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target_length": 5, "buckets": ""}, "pairs of data.train_split fit in data.source_length=8 and"),
        ({"source_tokeniser": "words"}, "needs a start and an end token, but 'words' has no start"),
        ({"batch_size": 39}, "but 39 are needed"),
    ],
)
def test_mistakes_are_one_sentence(make, changes, message):
    def run():
        data = make(**changes)
        data.examples(data.load())

    with pytest.raises(UsageError, match=message) as error:
        run()
    assert "\n" not in str(error.value)


LENGTHS = np.random.default_rng(0).integers(1, 33, 203)
BOUNDS = (8, 16, 32)


def test_examples_fit_their_batch_and_only_leftovers_are_shorter_than_they_need():
    """Training leaves out fewer of the longest than a batch holds; evaluation has all."""
    trained = bucketed(LENGTHS, BOUNDS, 10, draws.permutation(203, 0))
    evaluated = bucketed(LENGTHS, BOUNDS, 10, np.arange(203), fill=True)
    for (examples, bounds), count in ((trained, 200), (evaluated, 203)):
        real = examples != NOTHING
        assert len(np.unique(examples[real])) == real.sum() == count
        assert np.all(LENGTHS[np.setdiff1d(np.arange(203), examples)] > 16)
        assert np.all((LENGTHS[examples] <= bounds[:, None])[real])
        smaller = np.select([bounds == 16, bounds == 32], [8, 16], 0)
        promoted = (LENGTHS[examples] <= smaller[:, None]) & real
        assert promoted.sum() < 10 * (len(BOUNDS) - 1)


def test_by_hand():
    """The third short example has no partner, and joins the long ones."""
    examples, bounds = bucketed(np.array([1, 9, 2, 9, 3, 9]), (4, 9), 2, np.array([5, 4, 3, 2, 1, 0]))
    assert (examples.tolist(), bounds.tolist()) == ([[4, 2], [0, 5], [3, 1]], [4, 9, 9])
