"""The cache: files and folders that are made once and appear under their names only when they are complete."""

import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped
from tqdm import tqdm

from attention.errors import UsageError
from models.files import FULL, at_home, read_json
from train.data.sources.rows import Row, digest

ABOUT = "about.json"  # the description in a folder of arrays


def root(path: str) -> Path:
    """Chooses the folder of all caches: the one that `data.cache_dir` names, else the environment's or the default."""
    return at_home(path or os.environ.get("ATTENTION_BENCH_CACHE") or "~/.cache/attention_bench")


def make_once(target: Path, build: Callable[[Path], None]) -> Path:
    """Makes a file or folder unless it exists, by `build` at a path beside it; one process does while others wait.

    Raises UsageError, and leaves nothing, where the disk is full or cannot be written.
    """
    partial, lock = (target.with_name(target.name + end) for end in (".partial", ".lock"))
    try:
        if target.exists():  # a cache that is made may be read alone
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        with lock.open("a") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            if not target.exists():
                _build(partial, build)
                os.replace(partial, target)
    except OSError as error:
        advice = "free some space there, or" if error.errno in FULL else "mend that, or"
        raise UsageError(
            f"Cannot cache in {target.parent} ({error.strerror or error}): {advice} set data.cache_dir or "
            "ATTENTION_BENCH_CACHE to another folder; nothing half-written was left."
        ) from error
    return target


def _build(partial: Path, build: Callable[[Path], None]) -> None:
    """Makes a file or folder and writes it to the disk itself, or leaves nothing."""
    _remove(partial)  # left by a process that was killed
    try:
        build(partial)
        for file in partial.iterdir() if partial.is_dir() else [partial]:
            with file.open("rb") as opened:
                os.fsync(opened.fileno())
    except BaseException:
        _remove(partial)
        raise


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


class Lazy:
    """A dataclass that opens or makes arrays on first use; pickles have its fields without the arrays."""

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


@dataclasses.dataclass(frozen=True)
class Mapped(Lazy):
    """An array in a file of the cache, which is mapped into memory on first use."""

    path: str
    dtype: str
    shape: tuple[int, ...]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> np.ndarray:
        return self._array[rows]

    @functools.cached_property
    def _array(self) -> Shaped[np.ndarray, "..."]:
        try:
            # A plain array over the map: slicing np.memmap itself is several times slower.
            return np.asarray(np.memmap(self.path, self.dtype, "r")).reshape(self.shape)
        except (OSError, ValueError) as error:
            folder = Path(self.path).parent
            raise UsageError(
                f"{self.path} in the cache is damaged ({error}); remove {folder}, and start again."
            ) from error


Array = np.ndarray | Mapped
Chunk = dict[str, np.ndarray]  # the next rows of each array, by its name


def arrays(
    folder: Path, make: Callable[[dict[str, int]], Iterator[Chunk]], class_names: Sequence[str]
) -> tuple[dict[str, Mapped], str, tuple[str, ...]]:
    """Opens the arrays in a folder of the cache, made once of chunks that follow each other.

    `make` yields the chunks, and adds the classes that it meets to the numbers of those known before, which it is
    given. Besides the arrays by name there are a digest of what they hold, and the names of all classes.
    """
    make_once(folder, lambda partial: _write(partial, make, class_names))
    about = read_json(folder / ABOUT, f"remove {folder}, and start again")
    mapped = {name: Mapped(str(folder / name), kind, tuple(shape)) for name, (kind, shape) in about["arrays"].items()}
    return mapped, about["content"], tuple(about["class_names"])


def _write(folder: Path, make: Callable[[dict[str, int]], Iterator[Chunk]], class_names: Sequence[str]) -> None:
    folder.mkdir()
    classes, shapes = {name: number for number, name in enumerate(class_names)}, {}
    with contextlib.ExitStack() as stack:
        files = {}
        for chunk in make(classes):
            for name, rows in chunk.items():
                if name not in files:
                    files[name] = stack.enter_context(open(folder / name, "w+b"))
                    shapes[name] = [rows.dtype.name, [0, *rows.shape[1:]]]
                files[name].write(rows.tobytes())
                shapes[name][1][0] += len(rows)
        for file in files.values():
            file.seek(0)
        hashes = [hashlib.file_digest(file, "blake2b").hexdigest() for file in files.values()]
    about = {"content": digest([*hashes, *classes]), "class_names": list(classes), "arrays": shapes}
    (folder / ABOUT).write_text(json.dumps(about, indent=2), encoding="utf-8")


def progress(rows: Iterable[Row], what: str) -> Iterable[Row]:
    """Counts rows in a progress bar on a terminal as they pass."""
    return tqdm(rows, desc=what, unit=" rows", disable=None, dynamic_ncols=True)
