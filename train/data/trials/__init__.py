"""Trials: small tasks generated from draws. To add one, add a class in a file here and an entry in TRIALS."""

import functools

from attention import specs
from train.data.trials.copying import Compression, Copying, Induction, Memorisation, SelectiveCopying
from train.data.trials.recall import FuzzyRecall, InContextRecall, Recall, StackedRecall
from train.data.trials.state import Words
from train.data.trials.trial import Trial

TRIALS: dict[str, type[Trial]] = {
    "stacked_recall": StackedRecall,
    "recall": Recall,
    "in_context_recall": InContextRecall,
    "fuzzy_recall": FuzzyRecall,
    "copying": Copying,
    "selective_copying": SelectiveCopying,
    "induction": Induction,
    "compression": Compression,
    "memorisation": Memorisation,
    "words": Words,
}


@functools.cache
def parse(text: str, field: str = "data.source") -> Trial:
    """Reads a trial such as `recall(size=16)`; raises a UsageError that names the field for anything else."""
    return specs.make(text, TRIALS, f"trial in {field}")
