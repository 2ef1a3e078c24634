"""Scores of translations against references, by `sacrebleu`."""

from collections.abc import Sequence

import numpy as np
from sacrebleu.metrics import BLEU, CHRF

METRICS = {"bleu": BLEU(), "chrf": CHRF()}


def scores(translations: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Measures BLEU and chrF of a corpus, from 0 to 100, and the share of translations that equal their references."""
    exact = sum(translation == reference for translation, reference in zip(translations, references, strict=True))
    measured = {name: metric.corpus_score(translations, [list(references)]).score for name, metric in METRICS.items()}
    return measured | {"exact_match": exact / len(references)}


def by_length(
    translations: Sequence[str], references: Sequence[str], lengths: Sequence[int], groups: Sequence[int]
) -> dict[str, float]:
    """Measures BLEU by groups of source lengths, such as `bleu_to_8`; `groups` are their rising upper bounds."""
    places = np.searchsorted(groups, lengths)
    bleu = {}
    for place, longest in enumerate(groups):
        rows = np.flatnonzero(places == place)
        if len(rows):
            written, expected = ([texts[row] for row in rows] for texts in (translations, references))
            bleu[f"bleu_to_{longest}"] = METRICS["bleu"].corpus_score(written, [expected]).score
    return bleu


def signatures() -> dict[str, str]:
    """Names each metric's settings as `sacrebleu` does, for one reference a sentence."""
    for metric in METRICS.values():
        metric.corpus_score(["a"], [["a"]])
    return {f"{name}_signature": str(metric.get_signature()) for name, metric in METRICS.items()}
