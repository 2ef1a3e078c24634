"""Patterns of attention heads, and how far a head follows each of them."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float

Pairs = dict[str, Bool[np.ndarray, "T S"]]


def scores(weights: Float[np.ndarray, "N T S"], pairs: Pairs) -> dict[str, Float[np.ndarray, " N"]]:
    """Measures how far each head follows each pattern, from 0 to 1.

    A row's weights count by their absolute values, as shares of their sum. A score is the share on the pattern's pairs,
    averaged over the rows that have such a pair. `focus` is the greatest share, averaged over all rows, and `negative`
    the share of weights below 0.

    Args:
      pairs: The pairs of each pattern, from `of_tokens` or `of_patches`.
    """
    sizes = np.abs(weights)
    sums = sizes.sum(-1, keepdims=True)
    shares = sizes / np.where(sums > 0, sums, 1.0)
    means = {
        name: (shares * pattern).sum(-1)[:, pattern.any(-1)].mean(-1)
        for name, pattern in pairs.items()
        if pattern.any()
    }
    means["focus"] = shares.max(-1).mean(-1)
    if (weights < 0).any():
        means["negative"] = (shares * (weights < 0)).sum(-1).mean(-1)
    return means


def of_tokens(rows: Sequence[str], columns: Sequence[str], causal: bool, cross: bool) -> Pairs:
    """Finds the pairs of each pattern in texts.

    `previous token`, `next token` and `same position` compare positions; `first token` and `last token` are pairs with
    the ends of the text. `duplicate token` pairs a token with its other occurrences. In self-attention, `induction`
    pairs it with the tokens that followed its earlier occurrences (Elhage et al. 2021, Olsson et al. 2022).

    Args:
      rows: The texts of the T tokens that attend.
      columns: The texts of the S tokens that are attended to; self-attention compares only these.
      causal: Whether no token attends to later ones.
      cross: Whether the tokens come from two sequences.
    """
    i, j = np.ogrid[: len(rows), : len(columns)]
    reads = np.array(rows if cross else columns, dtype=object)
    same = reads[:, None] == np.array(columns, dtype=object)[None]
    other = np.ones_like(same) if cross else i != j
    pairs = {
        "same position": i == j,
        "previous token": i - 1 == j,
        "next token": i + 1 == j,
        "first token": (j == 0) & other,
        "last token": (j == len(columns) - 1) & other,
        "duplicate token": same & other,
    }
    if not cross:
        earlier = np.tril(same, -1)
        pairs["induction"] = np.pad(earlier, ((0, 0), (1, 0)))[:, :-1] & (j < i)
    allowed = j <= i if causal else np.ones_like(same)
    return {name: pattern & allowed for name, pattern in pairs.items() if not causal or name not in AHEAD}


AHEAD = ("next token", "last token")  # invisible under a causal mask


def of_patches(grid: tuple[int, int], class_token: bool) -> Pairs:
    """Finds the pairs of each pattern in images, whose tokens are patches row by row, perhaps after a class token.

    `neighbours` pairs a patch with those that touch it, `same row` and `same column` with the others there.
    """
    rows, columns = (np.abs(x.reshape(-1, 1) - x.reshape(1, -1)) for x in np.indices(grid))  # apart
    itself = np.eye(len(rows), dtype=bool)
    pairs = {
        "itself": itself,
        "neighbours": (rows <= 1) & (columns <= 1) & ~itself,
        "same row": (rows == 0) & ~itself,
        "same column": (columns == 0) & ~itself,
    }
    if not class_token:
        return pairs
    framed = {name: np.pad(pattern, ((1, 0), (1, 0))) for name, pattern in pairs.items()}
    to_class = np.zeros_like(framed["itself"])
    to_class[1:, 0] = True
    return framed | {"class token": to_class}
