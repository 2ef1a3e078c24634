"""Parallel text in local files: tables, tab-separated pairs without a header, or two files aligned by line."""

import functools
import itertools
from collections.abc import Iterator
from pathlib import Path

from attention.errors import UsageError
from train.data.pairs.pair import Pair, Pairs, stripped
from train.data.rows import columns, files
from train.data.text.documents import digest

FIELDS = ("data.source_column", "data.target_column")


def read(path: str, split: str, names: tuple[str, str]) -> Pairs:
    """The pairs of one split.

    Args:
      path: A file, glob or folder of tables, or of plain text with pairs between tabs; or a folder of files that are
        aligned by line, named `SPLIT*.LANGUAGE` (`train.de.xz`, `test_2016.en`); or what the names of two aligned
        files have in common (`europarl-v7.es-en`, for `europarl-v7.es-en.es` and `europarl-v7.es-en.en`), which are
        all `train`. See `train.data.rows.files.find` on splits.
      split: A plain name, no slice.
      names: Of source and target: columns of tables, numbers of columns of plain text (from '1' on), or languages of
        aligned files.

    Raises:
      UsageError: no such file or split; reading raises it for content that is not what it should be.
    """
    aligned = _aligned(path, split, names)
    found = list(itertools.chain(*aligned)) or files.find(path, split, _forms(names))
    content = digest([*names, bool(aligned), *map(files.suffix, found), *map(files.fingerprint, found)])
    pairs = functools.partial(_of_aligned, aligned) if aligned else functools.partial(_of_files, found, names)
    return Pairs(f"{split} of file:{path}", content, pairs)


def _forms(names: tuple[str, str]) -> str:
    source, target = names
    return f"{files.FORMS}, or where aligned files are, named SPLIT.{source} and SPLIT.{target}"


def _aligned(path: str, split: str, names: tuple[str, str]) -> list[tuple[Path, Path]]:
    """Pairs of aligned files; empty where there are none of these languages."""
    place = Path(path).expanduser()
    if place.is_dir():
        groups = files.by_split(file for file in _of_languages(place, names) if file.is_file())
    else:
        beside = _of_languages(place.parent, names) if not place.is_file() else []
        groups = {"train": [file for file in beside if _stem(file) == place.name]}
    if not any(groups.values()):
        return []
    return _couples(files.choose(groups, split, path), names)


def _of_languages(folder: Path, names: tuple[str, str]) -> list[Path]:
    suffixes = [f".{name.lower()}" for name in names]
    return [file for file in sorted(folder.glob("*.*")) if files.suffix(file) in suffixes]


def _stem(file: Path) -> str:
    return Path(files.plain_name(file)).stem


def _couples(found: list[Path], names: tuple[str, str]) -> list[tuple[Path, Path]]:
    sides = []
    for name in names:  # of a file and its compressed form, the former comes first and is read
        side = [file for file in reversed(found) if files.suffix(file) == f".{name.lower()}"]
        sides.append({_stem(file): file for file in side})
    alone = sorted(sides[0].keys() ^ sides[1].keys())
    if alone:
        here = next(side[alone[0]] for side in sides if alone[0] in side)
        missing = names[0] if alone[0] in sides[1] else names[1]
        raise UsageError(f"There is {str(here)!r}, but no {alone[0]}.{missing} aligned with it; add it.")
    return [(sides[0][stem], sides[1][stem]) for stem in sorted(sides[0])]


def _of_aligned(aligned: list[tuple[Path, Path]]) -> Iterator[Pair]:
    for source, target in aligned:
        yield from stripped(_aligned_lines(source, target))


def _aligned_lines(source: Path, target: Path) -> Iterator[tuple[str, str, str]]:
    both = itertools.zip_longest(files.lines(source), files.lines(target))
    for number, (line, other) in enumerate(both, 1):
        if line is None or other is None:
            longer = number + sum(1 for _ in both)
            counts = (number - 1, longer) if line is None else (longer, number - 1)
            raise UsageError(
                f"{str(source)!r} has {counts[0]} lines and {str(target)!r} has {counts[1]}, but line must stand by "
                "line; mend them, or fetch them again."
            )
        yield f"Line {number} of {str(source)!r} and {str(target)!r}", line, other


def _of_files(found: list[Path], names: tuple[str, str]) -> Iterator[Pair]:
    for file in found:
        yield from stripped(_tabbed(file, names) if files.suffix(file) == ".txt" else _rows(file, names))


def _tabbed(file: Path, names: tuple[str, str]) -> Iterator[tuple[str, str, str]]:
    source, target = (_number(field, name, file) for field, name in zip(FIELDS, names, strict=True))
    for number, line in enumerate(files.lines(file), 1):
        where, texts = f"{str(file)!r} (line {number})", line.split("\t")
        if not line.strip():
            continue
        if len(texts) == 1:
            raise UsageError(f"{where} has no tab between source and target; mend it.")
        if len(texts) < max(source, target):
            raise UsageError(f"{where} has {len(texts)} columns, but {' and '.join(FIELDS)} are {source} and {target}.")
        yield where, texts[source - 1], texts[target - 1]


def _number(field: str, name: str, file: Path) -> int:
    if not (name.isdecimal() and int(name)):
        raise UsageError(
            f"{str(file)!r} is plain text without a header, so {field} must be the number of a column from '1' on, "
            f"but it is {name!r}."
        )
    return int(name)


def _rows(file: Path, names: tuple[str, str]) -> Iterator[tuple[str, str, str]]:
    for where, row in files.rows(file):
        values = (columns.require(row, name, field, where) for field, name in zip(FIELDS, names, strict=True))
        yield where, *(columns.text(value, name, where) for value, name in zip(values, names, strict=True))
