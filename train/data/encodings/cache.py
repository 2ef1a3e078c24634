"""The cache: files and folders that are made once, and appear under their names only when complete."""

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
    """Chooses the folder of all caches: what `data.cache_dir` names, else the environment's, else the default."""
    return at_home(path or os.environ.get("ATTENTION_BENCH_CACHE") or "~/.cache/attention_bench")


def make_once(target: Path, build: Callable[[Path], None]) -> Path:
    """Makes a file or folder unless it exists: one process runs `build` at a path beside it while others wait.

    Raises UsageError, and leaves nothing behind, if the disk is full or cannot be written.
    """
    partial, lock = (target.with_name(target.name + end) for end in (".partial", ".lock"))
    try:
        if target.exists():  # a finished cache may be read-only
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        with lock.open("a") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            if not target.exists():
                _build(partial, build)
                os.replace(partial, target)
    except OSError as error:
        advice = "free some space there, or" if error.errno in FULL else "fix that, or"
        raise UsageError(
            f"Cannot cache in {target.parent} ({error.strerror or error}): {advice} set data.cache_dir or "
            "ATTENTION_BENCH_CACHE to another folder; nothing half-written was left."
        ) from error
    return target


def _build(partial: Path, build: Callable[[Path], None]) -> None:
    """Makes a file or folder and syncs it to the disk, or leaves nothing behind."""
    _remove(partial)  # left by a killed process
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
    """A dataclass that opens or makes arrays on first use; its pickles have only its fields."""

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


@dataclasses.dataclass(frozen=True)
class Mapped(Lazy):
    """An array in a file of the cache, mapped into memory on first use."""

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
            # A plain array over the map, since slicing np.memmap itself is several times slower.
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
    """Opens the arrays in a folder of the cache, made once from consecutive chunks.

    `make` yields the chunks, and adds each new class to the numbers of `class_names`, which it is given. Gives the
    arrays by name, a digest of their content, and the names of all classes.
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
    """Passes rows on, and counts them in a progress bar on a terminal."""
    return tqdm(rows, desc=what, unit=" rows", disable=None, dynamic_ncols=True)
