"""Doubts about a result are sentences beside its figures."""

import pytest

from train.run import doubts

SIZES = {"test_examples": 360, "train_examples": 1149, "tokens": 16, "patch": 2}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, []),
        ({"test_examples": 100}, []),
        ({"test_examples": 15}, ["The test split has only 15 examples, so one of them is 6.67 % of its result."]),
        ({"test_examples": 1}, ["The test split has only 1 example, so one of them is 100 % of its result."]),
        (
            {"tokens": 1024, "train_examples": 120},
            [
                "An image is 1,024 tokens, more than there are images to train on, 120; model.patch=4 makes a quarter "
                "of the tokens, and trains faster."
            ],
        ),
    ],
)
def test_few_examples_and_many_tokens(changes, said):
    assert list(doubts.of_sizes(SIZES | changes)) == said
    assert not list(doubts.of_sizes({}))  # of a version that wrote none


@pytest.mark.parametrize(("accuracy", "is_doubted"), [(0.3, True), (0.4, True), (0.41, False)])
def test_an_accuracy_that_a_constant_answer_has_too(accuracy, is_doubted):
    said = list(doubts.of_metrics({"accuracy": accuracy}, {"baselines": {"most_frequent_accuracy": 0.4}}))
    sentence = f"An accuracy of {accuracy:.1%} is not above the 40.0% of giving the same class always."
    assert said == [sentence] * is_doubted
    assert not list(doubts.of_metrics({"loss": 1.0}, {"baselines": {"unigram_perplexity": 2.0}}))


@pytest.mark.parametrize(("bits", "is_doubted"), [(2.5, False), (2.6, True)])
def test_a_language_model_that_counting_beats(bits, is_doubted):
    about = {"baselines": {"context_2_bits_per_byte": 3.1, "context_5_bits_per_byte": 2.577}}
    sentence = f"{bits} bits per byte are not below the 2.577 of counting n-grams in the training text."
    assert list(doubts.of_metrics({"bits_per_byte": bits}, about)) == [sentence] * is_doubted
