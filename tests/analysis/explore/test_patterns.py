"""Scores of patterns against matrices made by hand."""

import numpy as np
import pytest

from analysis.explore.patterns import of_patches, of_tokens, scores

TEXT = list("abcab")


def head(*targets):
    """Makes a head whose row i looks only at `targets[i]`."""
    return np.eye(len(targets))[list(targets)][None]


def of_text(weights, text=TEXT, causal=True):
    return {name: row[0] for name, row in scores(weights, of_tokens(text, text, causal, cross=False)).items()}


@pytest.mark.parametrize(
    ("pattern", "weights"),
    [
        ("same position", head(0, 1, 2, 3, 4)),
        ("previous token", head(0, 0, 1, 2, 3)),
        ("first token", head(0, 0, 0, 0, 0)),
        ("duplicate token", head(0, 0, 0, 0, 1)),  # the rows before the second a have no token of their own
        ("induction", head(0, 0, 0, 1, 2)),  # b came after the first a, and c after the first b
    ],
)
def test_a_head_that_does_nothing_else_has_a_score_of_1(pattern, weights):
    found = of_text(weights)
    assert found[pattern] == 1
    assert found["focus"] == 1
    assert "negative" not in found


def test_scores_are_shares_of_weights_in_the_mean_over_rows_that_have_such_a_pair():
    weights = np.array([[[1.0, 0, 0], [0.25, 0.75, 0], [0.5, 0.3, 0.2]]])
    found = of_text(weights, list("aba"))
    assert found["previous token"] == pytest.approx((0.25 + 0.3) / 2)
    assert found["first token"] == pytest.approx((0.25 + 0.5) / 2)
    assert found["same position"] == pytest.approx((1 + 0.75 + 0.2) / 3)
    assert found["duplicate token"] == pytest.approx(0.5)
    assert found["induction"] == pytest.approx(0.3)
    assert found["focus"] == pytest.approx((1 + 0.75 + 0.5) / 3)
    assert not {"next token", "last token"} & set(found)  # what a causal head cannot see is no pattern of it


def test_weights_with_signs_count_by_their_size_and_rows_of_zeros_for_nothing():
    found = of_text(np.array([[[2.0, 0, 0], [-3.0, 1.0, 0], [0, 0, 0]]]), list("xyz"))
    assert found["previous token"] == pytest.approx(0.75 / 2)
    assert found["negative"] == pytest.approx(0.75 / 3)


def test_heads_that_see_both_ways_have_patterns_ahead():
    found = of_text(head(1, 2, 3, 4, 4), causal=False)
    assert found["next token"] == 1
    assert found["last token"] == pytest.approx(1 / 4)
    assert of_text(head(3, 4, 2, 0, 1), causal=False)["duplicate token"] == 1


def test_cross_attention_compares_texts_of_both_sides():
    pairs = of_tokens(["1", "2", "x"], ["2", "1"], causal=False, cross=True)
    found = scores(head(1, 0)[:, [0, 1, 1]], pairs)
    assert found["duplicate token"] == [1]
    assert "induction" not in found
    assert found["first token"] == pytest.approx([2 / 3])


def test_patches_have_neighbours_rows_columns_and_a_class_token():
    pairs = of_patches((2, 3), class_token=True)
    found = scores(np.full((1, 7, 7), 1 / 7), pairs)
    assert found["class token"] == pytest.approx([1 / 7])
    assert found["itself"] == pytest.approx([1 / 7])
    assert found["neighbours"] == pytest.approx([(4 * 3 + 2 * 5) / 6 / 7])  # four corners, two in the middle
    assert found["same row"] == pytest.approx([2 / 7])
    assert found["same column"] == pytest.approx([1 / 7])
    assert "class token" not in of_patches((2, 3), class_token=False)
