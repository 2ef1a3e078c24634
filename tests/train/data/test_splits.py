import pytest
import tensorflow_datasets as tfds

from attention.errors import UsageError
from train.data.splits import Split


@pytest.mark.parametrize(
    "text",
    ["train[:37%]", "train[1%:99%]", "train[-25%:]", "train[:-10%]", "train", "train[3:]", "train[:7]", "train[-6:-2]"],
)
def test_slices_are_those_of_tfds(text):
    for length in (10, 99, 50_000):
        info = tfds.core.SplitInfo(name="train", shard_lengths=[length], num_bytes=0)
        [absolute] = tfds.core.ReadInstruction.from_spec(text).to_absolute({"train": info})
        assert Split.parse(text).bounds(length) == (absolute.from_ or 0, absolute.to or length)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train[:11]", "reaches beyond 'train', which has 10 examples"),
        ("train[-11:]", "reaches beyond 'train', which has 10 examples"),
        ("train[5:5]", "is empty: 'train' has 10 examples"),
    ],
)
def test_slices_that_are_none(text, message):
    with pytest.raises(UsageError, match=message):
        Split.parse(text).bounds(10)
