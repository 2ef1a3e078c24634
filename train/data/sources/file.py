"""Local files, `file:PATH`: tables, plain text, or files in two languages aligned line by line."""

import functools
import itertools
import re
from collections.abc import Iterator, Sequence
from glob import glob
from pathlib import Path

from attention.errors import UsageError
from models.files import at_home
from train.data.section import Section
from train.data.sources import lines, tables
from train.data.sources.rows import DataColumn, Placed, Rows, picked
from train.data.splits import ALIASES, PARTS, named

_FORMS = f"a file, folder or glob of {', '.join(tables.KINDS)}, which may be compressed ({', '.join(lines.OPENERS)})"

Couple = tuple[Path, Path]


def open_split(path: str, split: str, columns: Sequence[DataColumn], data: Section) -> Rows:
    """Opens one split's files in the order of their names; the path is a file, a glob or a folder.

    In a folder, a split has the files whose names begin with its own (`train.csv`, `valid-00.txt.xz`; `valid`, `val`
    and `dev` are `validation`). If there are none, and for a file or a glob, everything is `train`. A source and a
    target may be the languages of aligned files, which take precedence: files `SPLIT*.LANGUAGE` in a folder
    (`train.de.xz`, `test_2016.en`), or files that share the path as their stem (`europarl-v7.es-en`, for
    `europarl-v7.es-en.es` and `europarl-v7.es-en.en`). For the columns of other files, see `tables.read`.
    """
    place, languages = at_home(path), [c.name for c in columns] if columns[0].role == "source" else []
    forms = _FORMS
    if languages:
        forms += f", or where aligned files are, named {' and '.join(f'SPLIT.{name}' for name in languages)}"
    aligned = _aligned(place, languages)
    found = aligned or _tables(place)
    if not found:
        raise UsageError(f"There is no file to read at {path!r}; data.source names it: give {forms}.")
    groups = _by_split(found) if place.is_dir() else {"train": found}
    hint = f" A part of one is a split too, such as {next(iter(groups))}[90%:]."
    files = named(groups, ALIASES.get(split, split), f"file:{path}", hint)
    if aligned:
        read = functools.partial(_side_by_side, _couples(files, languages), languages)
    else:
        _check(files, columns, forms)
        read = functools.partial(_rows, files, columns)
    # The version does not depend on the names of files.
    version = [bool(aligned), *map(lines.suffix, files), *map(lines.fingerprint, files)]
    rows = picked(f"{split} of file:{path}", columns, version, read)
    if columns[0].role == "image":
        stamps = (lines.stamp(row["image"], row["where"]) for row in rows.read() if isinstance(row["image"], str))
        rows = picked(rows.name, columns, [*version, *stamps], read)
    return rows


def _tables(place: Path) -> list[Path]:
    if place.is_dir():
        files = [file for file in sorted(place.iterdir()) if lines.suffix(file) in tables.KINDS]
    else:
        files = [place] if place.exists() else map(Path, sorted(glob(str(place), recursive=True)))
    return [file for file in files if file.is_file()]


def _aligned(place: Path, languages: Sequence[str]) -> list[Path]:
    """Lists the files of both languages, in a folder or with a common stem."""
    suffixes = [f".{name.lower()}" for name in languages]
    files = sorted((place if place.is_dir() else place.parent).glob("*.*")) if not place.is_file() else []
    files = [file for file in files if lines.suffix(file) in suffixes and file.is_file()]
    return files if place.is_dir() else [file for file in files if _stem(file) == place.name]


def _by_split(files: list[Path]) -> dict[str, list[Path]]:
    """Groups files by the split that their names begin with; all are `train` if none does."""
    groups: dict[str, list[Path]] = {}
    for file in files:
        name = re.split(r"[.\-_]", file.name)[0]
        groups.setdefault(ALIASES.get(name, name), []).append(file)
    return {name: group for name, group in groups.items() if name in PARTS} or {"train": files}


def _check(files: Sequence[Path], columns: Sequence[DataColumn], forms: str) -> None:
    """Raises UsageError for a file that is neither a table nor text, and for text where there must be classes."""
    for file in files:
        if lines.suffix(file) not in tables.KINDS:
            raise UsageError(f"Cannot tell from its name what {str(file)!r} is; give {forms}.")
        if lines.suffix(file) == ".txt" and columns[-1].role == "label":
            others = ", ".join(kind for kind in tables.KINDS if kind != ".txt")
            raise UsageError(f"{str(file)!r} is plain text, which has no classes; use one of {others}.")


def _rows(files: Sequence[Path], columns: Sequence[DataColumn]) -> Iterator[Placed]:
    return itertools.chain.from_iterable(tables.read(file, columns) for file in files)


def _stem(file: Path) -> str:
    return Path(lines.plain_name(file)).stem


def _couples(files: Sequence[Path], languages: Sequence[str]) -> list[Couple]:
    sides = []
    for name in languages:  # a plain file wins over its compressed form
        side = [file for file in reversed(files) if lines.suffix(file) == f".{name.lower()}"]
        sides.append({_stem(file): file for file in side})
    alone = sorted(sides[0].keys() ^ sides[1].keys())
    if alone:
        here = next(side[alone[0]] for side in sides if alone[0] in side)
        missing = languages[0] if alone[0] in sides[1] else languages[1]
        raise UsageError(f"There is {str(here)!r}, but no {alone[0]}.{missing} aligned with it; add it.")
    return [(sides[0][stem], sides[1][stem]) for stem in sorted(sides[0])]


def _side_by_side(couples: Sequence[Couple], languages: Sequence[str]) -> Iterator[Placed]:
    for couple in couples:
        names = [repr(str(file)) for file in couple]
        both = itertools.zip_longest(*map(lines.read, couple))
        for number, texts in enumerate(both, 1):
            if None in texts:
                longer = number + sum(1 for _ in both)
                counts = [number - 1 if text is None else longer for text in texts]
                raise UsageError(
                    f"{names[0]} has {counts[0]} lines and {names[1]} has {counts[1]}, but lines must correspond; fix "
                    "them, or fetch them again."
                )
            yield f"Line {number} of {' and '.join(names)}", dict(zip(languages, texts, strict=True))
