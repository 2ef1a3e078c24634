import pytest
import tensorflow_datasets as tfds

from attention.errors import UsageError
from train.data.splits import Split


@pytest.mark.parametrize("length", [10, 99, 1797, 50_000])
@pytest.mark.parametrize(
    "text",
    [
        *("train[:37%]", "train[37%:]", "train[1%:99%]", "train[-25%:]", "train[:-10%]"),
        *("train", "train[3:]", "train[:7]", "train[2:5]", "train[-4:]", "train[:-4]", "train[-6:-2]"),
    ],
)
def test_slices_are_those_of_tfds(text, length):
    info = tfds.core.SplitInfo(name="train", shard_lengths=[length], num_bytes=0)
    [absolute] = tfds.core.ReadInstruction.from_spec(text).to_absolute({"train": info})
    assert Split.parse(text).bounds(length) == (absolute.from_ or 0, absolute.to or length)


def test_slices_that_meet_share_nothing_and_leave_nothing():
    for length in (11, 25, 1149, 50_000):
        for percent in range(10, 100, 5):
            boundaries = {
                Split.parse(f"train[:{percent}%]").bounds(length)[1],
                Split.parse(f"train[{percent}%:]").bounds(length)[0],
                Split.parse(f"train[-{100 - percent}%:]").bounds(length)[0],
                Split.parse(f"train[:-{100 - percent}%]").bounds(length)[1],
            }
            assert len(boundaries) == 1, (length, percent)


@pytest.mark.parametrize(
    "text", ["", "train[", "train[5]", "train[:5%:]", "train+test", "train[a:]", "train[:5.5]", "train[:5.%]", "tra in"]
)
def test_unreadable(text):
    with pytest.raises(UsageError, match=r"Cannot read the split .*: write a name with an optional slice"):
        Split.parse(text)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["train[:101%]"], r"'train\[:101%\]' has a percentage beyond 100"),
        (["train[:11]", "train[11:]", "train[-11:]"], "reaches beyond 'train', which has 10 examples"),
        (["train[5:5]", "train[6:5]", "train[10:]", "train[:1%]"], "is empty: 'train' has 10 examples"),
    ],
)
def test_slices_that_are_none(texts, message):
    for text in texts:
        with pytest.raises(UsageError, match=message):
            Split.parse(text).bounds(10)
