"""Local files: those of a split, and the rows in them."""

import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from glob import glob
from pathlib import Path
from typing import Any

from attention.errors import UsageError, unknown
from train.data.rows import files, tables
from train.data.rows.columns import DataColumn
from train.data.rows.rows import OpenedSplit
from train.data.rows.splits import PARTS

_ALIASES = {"valid": "validation", "val": "validation", "dev": "validation"}
FORMS = f"a file, folder or glob of {', '.join(tables.KINDS)}, which may be compressed ({', '.join(files.OPENERS)})"


def open_split(path: str, split: str, columns: Sequence[DataColumn], forms: str = FORMS) -> OpenedSplit:
    """Opens the files of one split, which are read in the order of their names.

    Args:
      path: A file, a glob, or a folder. In a folder, the files whose names begin with a split's (`train.csv`,
        `valid-00.txt.xz`; `valid`, `val` and `dev` are `validation`) are that split. Without any such file, and for a
        file or a glob, everything is `train`.
      split: A plain name, no slice.
      columns: See `tables.rows`.
      forms: The valid forms of a source, for the message.

    Raises:
      UsageError: no such file or split, or a file that is none of `tables.KINDS`, or plain text
        that should have classes.
    """
    place = Path(path).expanduser()
    if place.is_dir():
        names = (file for file in sorted(place.iterdir()) if file.is_file())
        groups = by_split([file for file in names if files.suffix(file) in tables.KINDS])
    else:
        names = [place] if place.is_file() else [Path(name) for name in sorted(glob(str(place), recursive=True))]
        groups = {"train": [file for file in names if file.is_file()]}
    if not any(groups.values()):
        raise UsageError(f"There is no file to read at {path!r}; data.source names it: give {forms}.")
    chosen = choose(groups, split, path)
    for file in chosen:
        if files.suffix(file) not in tables.KINDS:
            raise UsageError(f"Cannot tell from its name what {str(file)!r} is; give {forms}.")
    if any(column.is_class for column in columns) and ".txt" in map(files.suffix, chosen):
        others = ", ".join(kind for kind in tables.KINDS if kind != ".txt")
        raise UsageError(f"{str(chosen[0])!r} is plain text, which has no classes; use one of {others}.")
    read = functools.partial(_rows, chosen, columns)
    return OpenedSplit(f"{split} of file:{path}", columns, read, files=contents(chosen))


def contents(paths: Sequence[Path]) -> list[str]:
    """Returns the kinds and hashes of files, which do not depend on their names."""
    return [*map(files.suffix, paths), *map(files.fingerprint, paths)]


def _rows(paths: Sequence[Path], columns: Sequence[DataColumn]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    return itertools.chain.from_iterable(tables.rows(path, columns) for path in paths)


def by_split(paths: Iterable[Path]) -> dict[str, list[Path]]:
    """Groups files by the split that their names begin with; all are `train` where none does."""
    paths = list(paths)
    groups: dict[str, list[Path]] = {}
    for path in paths:
        name = re.split(r"[.\-_]", path.name)[0]
        groups.setdefault(_ALIASES.get(name, name), []).append(path)
    return {name: group for name, group in groups.items() if name in PARTS} or {"train": paths}


def choose(groups: Mapping[str, list[Path]], split: str, path: str) -> list[Path]:
    """Returns the files of a split.

    Args:
      groups: See `by_split`.
      split: A plain name, no slice.
      path: The place of the files, for the message.

    Raises:
      UsageError: there is no such split.
    """
    name = _ALIASES.get(split, split)
    if name not in groups:
        raise UsageError(
            f"{unknown(f'split of file:{path}', split, groups)} A part of one is a split too, such as "
            f"{next(iter(groups))}[90%:]."
        )
    return groups[name]
