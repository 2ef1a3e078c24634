"""Translations against references, as `sacrebleu` measures them.

python -m train.score --translations=FILE --references=FILE
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from attention.errors import UsageError
from train import cli
from train.data.rows import files
from train.decode.translation_scores import scores, signatures


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    return cli.run(lambda: _run(parser().parse_args(arguments)))


def parser() -> cli.Parser:
    """The flags."""
    made = cli.Parser(__doc__)
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
