"""Scores of translations against references, computed by `sacrebleu`."""

from collections.abc import Sequence

import numpy as np
from sacrebleu.metrics import BLEU, CHRF


def scores(translations: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Returns BLEU and chrF of a corpus, from 0 to 100, and the fraction of translations that equal their reference.

    Args:
      translations: One for each reference; it may be empty.
      references: At least one.
    """
    exact = sum(translation == reference for translation, reference in zip(translations, references, strict=True))
    reference_sets = [list(references)]
    return {
        "bleu": BLEU().corpus_score(translations, reference_sets).score,
        "chrf": CHRF().corpus_score(translations, reference_sets).score,
        "exact_match": exact / len(references),
    }


def by_length(
    translations: Sequence[str], references: Sequence[str], lengths: Sequence[int], groups: Sequence[int]
) -> dict[str, float]:
    """Returns the BLEU of each group of lengths, such as `bleu_to_8`; a group without sentences has none.

    Args:
      translations: One for each reference.
      references: At least one.
      lengths: The length of each source.
      groups: The greatest length of each group, in ascending order.
    """
    places = np.searchsorted(groups, lengths)
    bleu = {}
    for place, longest in enumerate(groups):
        rows = np.flatnonzero(places == place)
        if len(rows):
            written, expected = ([texts[row] for row in rows] for texts in (translations, references))
            bleu[f"bleu_to_{longest}"] = BLEU().corpus_score(written, [expected]).score
    return bleu


def signatures() -> dict[str, str]:
    """Returns `sacrebleu`'s signatures, which name the settings of each metric, for one reference a sentence."""
    texts = {}
    for name, metric in (("bleu", BLEU()), ("chrf", CHRF())):
        metric.corpus_score(["a"], [["a"]])
        texts[f"{name}_signature"] = str(metric.get_signature())
    return texts
