"""The Python manual's topics on the language, which CPython ships for `help()`: about 80, half a megabyte."""

import functools
import re
from collections.abc import Sequence

from attention.errors import UsageError
from train.data.section import Section
from train.data.sources.rows import DataColumn, Rows, digest
from train.data.splits import named

HELD_OUT = {"test": 0.1, "validation": 0.1}
_MOST = 0.2  # the largest share of a held-out split for one group of topics, so that none dominates it
_LEAST = 60  # characters of a paragraph that relates topics


def open_split(name: str, split: str, columns: Sequence[DataColumn], data: Section) -> Rows:
    """Opens the topics of `train`, `validation` or `test`, one document each; raises UsageError for labels."""
    if len(columns) > 1:
        raise UsageError("pydoc has no classes; use another data.source, such as 'file:PATH'.")
    texts = {topic: _topics()[topic] for topic in named(splits(), split, name)}
    rows = [{"where": f"Topic {topic!r}", "text": text} for topic, text in texts.items()]
    return Rows(f"{split} of {name}", digest(texts.values()), lambda: iter(rows))


@functools.cache
def splits() -> dict[str, tuple[str, ...]]:
    """Names the topics in each split, sorted; the same on every machine with the same CPython.

    Many topics are sections of others (`while` of `compound`), so topics that share a paragraph stay together, and
    nothing held out is trained on. Each held-out split has about a tenth of the text.
    """
    groups = sorted(_related(), key=lambda names: digest([names[0]]))
    total = sum(map(len, _topics().values()))
    chosen: dict[str, list[str]] = {"train": [], **{split: [] for split in HELD_OUT}}
    room = {split: share * total for split, share in HELD_OUT.items()}
    for names in groups:
        size = sum(len(_topics()[name]) for name in names)
        emptiest = max(room, key=room.get)
        fits = size <= min(room[emptiest], _MOST * HELD_OUT[emptiest] * total)
        split = emptiest if fits else "train"
        chosen[split] += names
        room = {part: left - size * (part == split) for part, left in room.items()}
    return {split: tuple(sorted(names)) for split, names in chosen.items()}


@functools.cache
def _topics() -> dict[str, str]:
    from pydoc_data.topics import topics

    return dict(topics)


def _related() -> list[list[str]]:
    """Groups the topics, sorted, so that no two groups share a paragraph."""
    from scipy.cluster.hierarchy import DisjointSet

    groups, first = DisjointSet(_topics()), dict[str, str]()
    for name, text in _topics().items():
        for paragraph in (" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text)):
            if len(paragraph) >= _LEAST:
                groups.merge(first.setdefault(paragraph, name), name)
    return [sorted(names) for names in groups.subsets()]
