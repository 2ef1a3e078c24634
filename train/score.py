"""Compare translations with references, by the metrics of `sacrebleu`.

python -m train.score --translations=FILE --references=FILE
"""

import argparse
import sys
from pathlib import Path

from attention.errors import UsageError
from train import cli
from train.data.sources import lines
from train.generation.translation_scores import scores, signatures


def _aligned(translations: Path, references: Path) -> tuple[list[str], list[str]]:
    """Reads the lines of both files; raises a UsageError, which names the first line without a counterpart."""
    given, needed = ([line.rstrip("\r\n") for line in lines.read(path)] for path in (translations, references))
    ours, theirs = ("translation", translations, given), ("reference", references, needed)
    for (kind, path, few), (_, other, many) in ((ours, theirs), (theirs, ours)):
        if len(few) < len(many):
            place = f"{path} has no {kind} in line {len(few) + 1}: it has {len(few)} lines, and {other} {len(many)}"
            raise UsageError(f"{place}; give the rest.")
    empty = [number for number, line in enumerate(given, 1) if not line.strip()]
    if empty:
        print(f"{len(empty)} lines of {translations} are empty, the first is line {empty[0]}.", file=sys.stderr)
    return given, needed


@cli.program(
    __doc__,
    cli.flag("--translations", type=Path, required=True, metavar="FILE", help="a file with one sentence on each line"),
    cli.flag("--references", type=Path, required=True, metavar="FILE", help="a file with as many lines"),
)
def main(flags: argparse.Namespace) -> None:
    """Prints the scores and their signatures."""
    numbers = scores(*_aligned(flags.translations, flags.references))
    print("\n".join([f"{name} {value:.6g}" for name, value in numbers.items()] + [*signatures().values()]))


if __name__ == "__main__":
    sys.exit(main())
