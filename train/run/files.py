"""The files of a work directory: written whole or not at all, and read with one sentence for what is damaged."""

import contextlib
import errno
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attention.errors import UsageError

TEMPORARY = ".tmp"  # of a file that is being written
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
UNWRITABLE = FULL | {errno.EROFS, errno.EIO}


def why_unwritable(error: BaseException) -> str:
    """Returns the operating system's message where an error means that the disk takes no more; else ''."""
    number = error_number(error)
    return os.strerror(number) if number in UNWRITABLE else ""


def error_number(error: BaseException) -> int | None:
    """Returns the operating system's number of an error, or None where the error is not the system's.

    TensorStore, which reads and writes checkpoints, raises ValueErrors that end in `[os_error_code='28']`.
    """
    quoted = re.search(r"\[os_error_code='(\d+)'\]", str(error))
    return int(quoted[1]) if quoted else getattr(error, "errno", None)


@contextlib.contextmanager
def writing(what: str, remedy: str = "choose another --workdir") -> Iterator[None]:
    """Turns the system's errors into a UsageError, which says what cannot be written and what the user can do."""
    try:
        yield
    except OSError as error:
        space = "free space there, or " if error.errno in FULL else ""
        raise UsageError(f"{what} cannot be written ({_reason(error)}); {space}{remedy}.") from error


def _reason(error: OSError) -> str:
    """Returns the system's words, or what they do not say of a link that leads nowhere."""
    path = Path(error.filename or "")
    for link in (path, *path.parents):
        if link.is_symlink() and not link.exists():
            return f"{link} is a link to {link.readlink()}, which does not exist"
    return error.strerror


def read_text(path: Path, remedy: str = "choose another --workdir") -> str:
    """Returns the text of a file.

    Args:
      path: The file.
      remedy: What the user can do where it cannot be read.

    Raises:
      UsageError: the file is missing, cannot be read or holds no text.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read ({error}); {remedy}.") from error


def read_json(path: Path, remedy: str = "choose another --workdir") -> dict[str, Any]:
    """Returns the object in a JSON file; raises a UsageError as `read_text` does, or where the file is damaged."""
    return _object(read_text(path, remedy), path, remedy)


def read_record(workdir: Path) -> list[dict[str, Any]]:
    """Returns all lines of a work directory's record, in order; raises a UsageError where it is missing or damaged."""
    path = workdir / "metrics.jsonl"
    lines = read_text(path, "give the --workdir of a run").splitlines()
    return [_object(line, path, "remove the broken line and run the same command again") for line in lines]


def _object(text: str, path: Path, remedy: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{path} is damaged ({error}); {remedy}.") from error
    if not isinstance(value, dict):
        raise UsageError(f"{path} is damaged (no object, but {text[:20]!r}); {remedy}.")
    return value


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file atomically."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes a file atomically, so that it is complete or unchanged even if the process or the power fails."""
    temporary = path.with_suffix(TEMPORARY)
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
