"""Sentences that cast doubt on a result, for a run's first and last lines and for reports."""

from collections.abc import Iterator, Mapping
from typing import Any

from train.cli.terminal import counted

FEW = 100  # test examples; with fewer, an accuracy is known to 10 points at best
SIZES = ("test_examples", "train_examples", "tokens", "patch")  # entries of a result, some of them optional
BITS = "bits_per_byte"
CONSTANT = {  # the baselines that do not look at the example
    "most_frequent_accuracy": "giving the same class always",
    "chance_accuracy": "guessing",
}


def caution(sentence: str) -> str:
    """Marks a doubt among other lines."""
    return f"Caution: {sentence}"


def of_sizes(about: Mapping[str, Any]) -> Iterator[str]:
    """Yields doubts about the sizes of data and images in `about`, the entries of `result.json`."""
    tested, trained, tokens, patch = (about.get(name, 0) for name in SIZES)
    if 0 < tested < FEW:
        share = f"{100 / tested:.3g} %"
        yield f"The test split has only {counted(tested, 'example')}, so one of them is {share} of its result."
    if patch and tokens > trained:
        yield (
            f"An image is {tokens:,} tokens, more than there are images to train on, {trained:,}; "
            f"model.patch={2 * patch} makes a quarter of the tokens, and trains faster."
        )


def of_metrics(test: Mapping[str, float], about: Mapping[str, Any]) -> Iterator[str]:
    """Yields doubts about the test metrics, given the baselines in `about`, the entries of `result.json`."""
    for name, what in CONSTANT.items():
        accuracy, constant = test.get("accuracy", 1.0), about.get("baselines", {}).get(name, 0.0)
        if accuracy <= constant:
            yield f"An accuracy of {accuracy:.1%} is not above the {constant:.1%} of {what}."
    counted_bits = [bits for name, bits in about.get("baselines", {}).items() if name.endswith(BITS)]
    if counted_bits and test.get(BITS, 0.0) >= (best := min(counted_bits)):
        yield f"{test[BITS]:.4g} bits per byte are not below the {best:.4g} of counting n-grams in the training text."
