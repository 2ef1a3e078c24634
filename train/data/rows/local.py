"""Local files: those of a split, and the rows in them; a table, plain text, or files that are aligned by line."""

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from glob import glob
from pathlib import Path
from typing import Any

from attention.errors import UsageError, unknown
from models.files import at_home
from train.data.rows import files, splits, tables
from train.data.rows.rows import DataColumn, OpenedSplit

ALIASES = {"valid": "validation", "val": "validation", "dev": "validation"}
_FORMS = f"a file, folder or glob of {', '.join(tables.KINDS)}, which may be compressed ({', '.join(files.OPENERS)})"

Couple = tuple[Path, Path]


def open_split(path: str, split: str, columns: Sequence[DataColumn]) -> OpenedSplit:
    """Opens the files of one split, which are read in the order of their names.

    Args:
      path: A file, a glob, or a folder. In a folder, the files whose names begin with a split's (`train.csv`,
        `valid-00.txt.xz`; `valid`, `val` and `dev` are `validation`) are that split. Without any such file, and for a
        file or a glob, everything is `train`. Two columns of text may be languages of aligned files, which come before
        others: files of a folder named `SPLIT*.LANGUAGE` (`train.de.xz`, `test_2016.en`), or those whose names have
        the path in common (`europarl-v7.es-en`, for `europarl-v7.es-en.es` and `europarl-v7.es-en.en`).
      split: A plain name, no slice.
      columns: See `tables.rows`, or the languages of aligned files.

    Raises:
      UsageError: no such file or split, a file that is none of `tables.KINDS`, plain text that should have classes, or
        an aligned file without counterpart in the other language.
    """
    place, names = at_home(path), [column.name for column in columns]
    are_pairs = len(columns) == 2 and not columns[1].is_class
    aligned = _aligned(place, names) if are_pairs else {}
    if any(aligned.values()):
        couples = _couples(_choose(aligned, split, path), names)
        chosen, read = list(itertools.chain(*couples)), functools.partial(_aligned_rows, couples, names)
    else:
        ends = " and ".join(f"SPLIT.{name}" for name in names)
        forms = _FORMS + (f", or where aligned files are, named {ends}" if are_pairs else "")
        chosen = _choose(_tables(place, path, forms), split, path)
        _check(chosen, columns, forms)
        read = functools.partial(_rows, chosen, columns)
    # Kinds and hashes of files do not depend on their names.
    contents = [*map(files.suffix, chosen), *map(files.fingerprint, chosen), *_stamps(columns, read)]
    kind = [str(any(aligned.values()))] if are_pairs else []
    return OpenedSplit(f"{split} of file:{path}", columns, read, files=[*kind, *contents])


def _tables(place: Path, path: str, forms: str) -> dict[str, list[Path]]:
    """Returns tables and plain text by split."""
    if place.is_dir():
        names = (file for file in sorted(place.iterdir()) if file.is_file())
        groups = _by_split(file for file in names if files.suffix(file) in tables.KINDS)
    else:
        names = [place] if place.is_file() else [Path(name) for name in sorted(glob(str(place), recursive=True))]
        groups = {"train": [file for file in names if file.is_file()]}
    if not any(groups.values()):
        raise UsageError(f"There is no file to read at {path!r}; data.source names it: give {forms}.")
    return groups


def _check(paths: list[Path], columns: Sequence[DataColumn], forms: str) -> None:
    for file in paths:
        if files.suffix(file) not in tables.KINDS:
            raise UsageError(f"Cannot tell from its name what {str(file)!r} is; give {forms}.")
    if any(column.is_class for column in columns) and ".txt" in map(files.suffix, paths):
        others = ", ".join(kind for kind in tables.KINDS if kind != ".txt")
        raise UsageError(f"{str(paths[0])!r} is plain text, which has no classes; use one of {others}.")


def _stamps(columns: Sequence[DataColumn], read: Callable[[], Iterator[tuple[str, Any]]]) -> Iterator[str]:
    """Yields what changes with the files of images that a table names; those inside it change the table."""
    for column in columns:
        images = ((where, column.value(row, where)) for where, row in read()) if column.is_image else ()
        yield from (files.stamp(image, where) for where, image in images if isinstance(image, str))


def _rows(paths: Sequence[Path], columns: Sequence[DataColumn]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    return itertools.chain.from_iterable(tables.rows(path, columns) for path in paths)


def _by_split(paths: Iterable[Path]) -> dict[str, list[Path]]:
    """Groups files by the split that their names begin with; all are `train` where none does."""
    paths = list(paths)
    groups: dict[str, list[Path]] = {}
    for path in paths:
        name = re.split(r"[.\-_]", path.name)[0]
        groups.setdefault(ALIASES.get(name, name), []).append(path)
    return {name: group for name, group in groups.items() if name in splits.PARTS} or {"train": paths}


def _choose(groups: Mapping[str, list[Path]], split: str, path: str) -> list[Path]:
    """Returns the files of a split; raises UsageError, which names the path, where there is no such split."""
    name = ALIASES.get(split, split)
    if name not in groups:
        raise splits.MissingSplitError(
            f"{unknown(f'split of file:{path}', split, groups)} A part of one is a split too, such as "
            f"{next(iter(groups))}[90%:]."
        )
    return groups[name]


def _aligned(place: Path, names: Sequence[str]) -> dict[str, list[Path]]:
    """Returns the files of both languages by split; those of a common name are all `train`."""
    if place.is_dir():
        return _by_split(file for file in _of_languages(place, names) if file.is_file())
    beside = _of_languages(place.parent, names) if not place.is_file() else []
    return {"train": [file for file in beside if _stem(file) == place.name]}


def _aligned_rows(couples: Sequence[Couple], names: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    for couple in couples:
        for number, texts in _side_by_side(*couple):
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


def _side_by_side(source: Path, target: Path) -> Iterator[tuple[int, tuple[str, str]]]:
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
