"""Local files that are aligned by line; their columns are the languages in the ends of their names."""

import functools
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

from attention.errors import UsageError
from train.data.rows import files, local
from train.data.rows.columns import DataColumn
from train.data.rows.rows import OpenedSplit

Couple = tuple[Path, Path]


def open_split(path: str, split: str, columns: Sequence[DataColumn]) -> OpenedSplit | None:
    """Opens files of two languages; returns None where there are none.

    Args:
      path: A folder of files named `SPLIT*.LANGUAGE` (`train.de.xz`, `test_2016.en`), or what the names of two files
        have in common (`europarl-v7.es-en`, for `europarl-v7.es-en.es` and `europarl-v7.es-en.en`), which are all
        `train`. See `local.open_split` on splits.
      split: A plain name, no slice.
      columns: The languages.

    Raises:
      UsageError: there is no such split, or a file has no counterpart in the other language.
    """
    names = [column.name for column in columns]
    place = Path(path).expanduser()
    if place.is_dir():
        groups = local.by_split(file for file in _of_languages(place, names) if file.is_file())
    else:
        beside = _of_languages(place.parent, names) if not place.is_file() else []
        groups = {"train": [file for file in beside if _stem(file) == place.name]}
    if not any(groups.values()):
        return None
    couples = _couples(local.choose(groups, split, path), names)
    read, contents = functools.partial(_rows, couples, names), local.contents(list(itertools.chain(*couples)))
    return OpenedSplit(f"{split} of file:{path}", columns, read, files=contents)


def _rows(couples: Sequence[Couple], names: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    for couple in couples:
        for number, texts in _lines(*couple):
            where = f"Line {number} of {' and '.join(repr(str(file)) for file in couple)}"
            yield where, dict(zip(names, texts, strict=True))


def _of_languages(folder: Path, names: Sequence[str]) -> list[Path]:
    suffixes = [f".{name.lower()}" for name in names]
    return [file for file in sorted(folder.glob("*.*")) if files.suffix(file) in suffixes]


def _stem(file: Path) -> str:
    return Path(files.plain_name(file)).stem


def _couples(paths: list[Path], names: Sequence[str]) -> list[Couple]:
    sides = []
    for name in names:  # of a file and its compressed form, the former comes first and is read
        side = [file for file in reversed(paths) if files.suffix(file) == f".{name.lower()}"]
        sides.append({_stem(file): file for file in side})
    alone = sorted(sides[0].keys() ^ sides[1].keys())
    if alone:
        here = next(side[alone[0]] for side in sides if alone[0] in side)
        missing = names[0] if alone[0] in sides[1] else names[1]
        raise UsageError(f"There is {str(here)!r}, but no {alone[0]}.{missing} aligned with it; add it.")
    return [(sides[0][stem], sides[1][stem]) for stem in sorted(sides[0])]


def _lines(source: Path, target: Path) -> Iterator[tuple[int, tuple[str, str]]]:
    both = itertools.zip_longest(files.lines(source), files.lines(target))
    for number, texts in enumerate(both, 1):
        if None in texts:
            longer = number + sum(1 for _ in both)
            counts = [number - 1 if text is None else longer for text in texts]
            raise UsageError(
                f"{str(source)!r} has {counts[0]} lines and {str(target)!r} has {counts[1]}, but line must stand by "
                "line; mend them, or fetch them again."
            )
        yield number, texts
