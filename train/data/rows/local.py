"""Local files: those of a split, and the rows in them."""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from glob import glob
from pathlib import Path
from typing import Any

from attention.errors import UsageError, unknown
from train.data.rows import files, tables
from train.data.rows.columns import Column
from train.data.rows.rows import digest
from train.data.rows.splits import PARTS

_ALIASES = {"valid": "validation", "val": "validation", "dev": "validation"}
FORMS = f"a file, folder or glob of {', '.join(tables.KINDS)}, which may be compressed ({', '.join(files.OPENERS)})"


@dataclasses.dataclass(frozen=True)
class LocalSplit:
    """Files of a split; see `train.data.rows.source.Table`.

    Attributes:
      name: For messages.
      files: In the order in which they are read.
    """

    name: str
    files: Sequence[Path]

    def checked(self, column: Column) -> Column:
        """The column; only its rows say whether it is there, but plain text has no classes."""
        if column.is_class and ".txt" in map(files.suffix, self.files):
            others = ", ".join(kind for kind in tables.KINDS if kind != ".txt")
            raise UsageError(f"{str(self.files[0])!r} is plain text, which has no classes; use one of {others}.")
        return column

    def content(self, key: Iterable[object]) -> str:
        """A digest of the key and of what is in the files, whatever their names."""
        return digest([*key, *map(files.suffix, self.files), *map(files.fingerprint, self.files)])

    def reader(self, columns: Sequence[Column]) -> Callable[[], Iterator[tuple[str, Mapping[str, Any]]]]:
        """What starts reading; see `tables.rows`."""
        return functools.partial(self._rows, columns)

    def _rows(self, columns: Sequence[Column]) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for file in self.files:
            yield from tables.rows(file, columns)


def open_split(path: str, split: str, forms: str = FORMS) -> LocalSplit:
    """The files of one split, sorted.

    Args:
      path: A file, a glob, or a folder. In a folder, the files whose names begin with a split's (`train.csv`,
        `valid-00.txt.xz`; `valid`, `val` and `dev` are `validation`) are that split. Without any such file, and for a
        file or a glob, everything is `train`.
      split: A plain name, no slice.
      forms: What may be given, for the message.

    Raises:
      UsageError: no such file or split, or a file that is none of `tables.KINDS`.
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
    return LocalSplit(f"{split} of file:{path}", chosen)


def by_split(paths: Iterable[Path]) -> dict[str, list[Path]]:
    """Files by the split that their names begin with; all are `train` where none does."""
    paths = list(paths)
    groups: dict[str, list[Path]] = {}
    for path in paths:
        name = re.split(r"[.\-_]", path.name)[0]
        groups.setdefault(_ALIASES.get(name, name), []).append(path)
    return {name: group for name, group in groups.items() if name in PARTS} or {"train": paths}


def choose(groups: Mapping[str, list[Path]], split: str, path: str) -> list[Path]:
    """The group of a split.

    Args:
      groups: See `by_split`.
      split: A plain name, no slice.
      path: Where they are, for the message.

    Raises:
      UsageError: there is no such split.
    """
    wanted = _ALIASES.get(split, split)
    if wanted not in groups:
        raise UsageError(
            f"{unknown(f'split of file:{path}', split, groups)} A part of one is a split too, such as "
            f"{next(iter(groups))}[90%:]."
        )
    return groups[wanted]
