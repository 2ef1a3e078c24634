"""What stands against a result, in sentences: for the first and the last lines of a run, and for reports."""

from collections.abc import Iterator, Mapping
from typing import Any

from train.cli.terminal import counted

FEW = 100  # test examples; of fewer, an accuracy is known to 10 points at best
SIZES = ("test_examples", "train_examples", "tokens", "patch")  # of a result, where it has them
CONSTANT = {  # the baselines that look at no example
    "majority_accuracy": "giving the same class always",
    "most_frequent_accuracy": "giving the same class always",
    "chance_accuracy": "guessing",
}


def caution(sentence: str) -> str:
    """Marks a doubt where it stands among other lines."""
    return f"Caution: {sentence}"


def of_sizes(about: Mapping[str, Any]) -> Iterator[str]:
    """Yields doubts about the data and the tokens, of which `about` has what `result.json` has."""
    tested, trained, tokens, patch = (about.get(name, 0) for name in SIZES)
    if 0 < tested < FEW:
        yield f"The test has only {counted(tested, 'example')}, so one of them is {100 / tested:.3g} % of its result."
    if patch and tokens > trained:
        yield (
            f"An image is {tokens:,} tokens, more than there are images to train on, {trained:,}; "
            f"model.patch={2 * patch} makes a quarter of the tokens, and trains faster."
        )


def of_metrics(test: Mapping[str, float], about: Mapping[str, Any]) -> Iterator[str]:
    """Yields doubts about the metrics of test data, beside the baselines that `about` has."""
    for name, what in CONSTANT.items():
        accuracy, constant = test.get("accuracy", 1.0), about.get("baselines", {}).get(name, 0.0)
        if accuracy <= constant:
            yield f"An accuracy of {accuracy:.1%} is not above the {constant:.1%} of {what}."
