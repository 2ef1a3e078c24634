"""Translations against references, as `sacrebleu` measures them."""

from collections.abc import Sequence

import numpy as np
from sacrebleu.metrics import BLEU, CHRF


def scores(translations: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """BLEU and chrF of a corpus, from 0 to 100, and which part of the translations is exactly the reference.

    Args:
      translations: One for each reference; an empty one counts as what it is.
      references: At least one.
    """
    exact = sum(found == wanted for found, wanted in zip(translations, references, strict=True))
    wanted = [list(references)]
    return {
        "bleu": BLEU().corpus_score(translations, wanted).score,
        "chrf": CHRF().corpus_score(translations, wanted).score,
        "exact_match": exact / len(references),
    }


def by_length(
    translations: Sequence[str], references: Sequence[str], lengths: Sequence[int], groups: Sequence[int]
) -> dict[str, float]:
    """BLEU of the sentences of each group of lengths, such as `bleu_to_8`; of a group without sentences nothing.

    Args:
      translations: One for each reference.
      references: At least one.
      lengths: Of the source of each.
      groups: The longest source of each group, rising.
    """
    places = np.searchsorted(groups, lengths)
    found = {}
    for place, longest in enumerate(groups):
        rows = np.flatnonzero(places == place)
        if len(rows):
            written, wanted = ([texts[row] for row in rows] for texts in (translations, references))
            found[f"bleu_to_{longest}"] = BLEU().corpus_score(written, [wanted]).score
    return found


def signatures() -> dict[str, str]:
    """What decides the figures beside the sentences, in `sacrebleu`'s own words; for one reference a sentence."""
    found = {}
    for name, metric in (("bleu", BLEU()), ("chrf", CHRF())):
        metric.corpus_score(["a"], [["a"]])
        found[f"{name}_signature"] = str(metric.get_signature())
    return found
