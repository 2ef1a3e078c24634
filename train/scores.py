"""Translations against references, as `sacrebleu` measures them.

python -m train.scores --translations=FILE --references=FILE
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from sacrebleu.metrics import BLEU, CHRF

from attention.errors import UsageError
from models import command
from train.data import files


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


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    return command.run(lambda: _run(parser().parse_args(arguments)))


def parser() -> command.Parser:
    """The flags."""
    made = command.Parser(__doc__)
    made.add_argument("--translations", type=Path, required=True, metavar="FILE", help="of one sentence a line")
    made.add_argument("--references", type=Path, required=True, metavar="FILE", help="of as many lines")
    return made


def _run(flags: argparse.Namespace) -> None:
    """Scores and prints."""
    found = scores(*_aligned(flags.translations, flags.references))
    print("\n".join([f"{name} {value:.6g}" for name, value in found.items()] + [*signatures().values()]))


def _aligned(translations: Path, references: Path) -> tuple[list[str], list[str]]:
    """The lines of both files; a UsageError names the first line that has no counterpart."""
    found, wanted = ([line.rstrip("\r\n") for line in files.lines(path)] for path in (translations, references))
    if len(found) < len(wanted):
        raise UsageError(
            f"{translations} has no translation in line {len(found) + 1}: it has {len(found)} lines, and {references} "
            f"{len(wanted)}; translate the rest."
        )
    if len(found) > len(wanted):
        raise UsageError(
            f"{references} has no reference in line {len(wanted) + 1}: it has {len(wanted)} lines, and {translations} "
            f"{len(found)}; give the references of these translations."
        )
    empty = [number for number, line in enumerate(found, 1) if not line.strip()]
    if empty:
        print(f"{len(empty)} lines of {translations} are empty, the first is line {empty[0]}.", file=sys.stderr)
    return found, wanted


if __name__ == "__main__":
    sys.exit(main())
