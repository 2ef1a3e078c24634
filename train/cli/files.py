"""Files: written completely or not at all, and only where a file can be; and the record of a run, read."""

import contextlib
import errno
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attention.errors import UsageError
from models.files import FULL, parse_json, read_text

TEMPORARY = ".tmp"  # ends the name of a file that is being written
SCARCE = {errno.EMFILE, errno.ENFILE}  # too many files are open
UNWRITABLE = FULL | SCARCE | {errno.EROFS, errno.EIO}


def why_unwritable(error: BaseException) -> str:
    """Returns the system's message where an error means that nothing more can be written; else ''."""
    number = error_number(error)
    return os.strerror(number) if number in UNWRITABLE else ""


def error_number(error: BaseException) -> int | None:
    """Finds the system's number of an error; returns None where the error is not the system's.

    TensorStore, which reads and writes checkpoints, raises ValueErrors that contain `[os_error_code='28']`.
    """
    quoted = re.search(r"\[os_error_code='(\d+)'\]", str(error))
    return int(quoted[1]) if quoted else getattr(error, "errno", None)


@contextlib.contextmanager
def writing(what: str, remedy: str = "choose another --workdir") -> Iterator[None]:
    """Turns the system's errors into UsageErrors, which say what cannot be written and what the user can do."""
    try:
        yield
    except OSError as error:
        space = "free space there, or " if error.errno in FULL else ""
        raise UsageError(f"{what} cannot be written ({_reason(error)}); {space}{remedy}.") from error


def _reason(error: OSError) -> str:
    """Returns the system's message, or names a link to nothing, which that message does not mention."""
    path = Path(error.filename or "")
    for link in (path, *path.parents):
        if link.is_symlink() and not link.exists():
            return f"{link} is a link to {link.readlink()}, which does not exist"
    return error.strerror


def read_record(workdir: Path) -> list[dict[str, Any]]:
    """Reads the lines of a work directory's record; raises a UsageError where it is missing or damaged."""
    path, remedy = workdir / "metrics.jsonl", "put the file back as it was, or choose another --workdir"
    record = []
    for number, text in enumerate(read_text(path, "give the --workdir of a run").splitlines(), 1):
        where = f"{path}, line {number}"
        line = parse_json(text, where, remedy)
        if not is_line(line):
            raise UsageError(f"{where} is damaged (it needs a step, a split and numbers, but is {text!r}); {remedy}.")
        record.append(line)
    return record


def is_line(line: Any) -> bool:
    """Tells whether a value is a line of a record: a step, a split, and numbers."""
    if not isinstance(line, dict) or type(line.get("step")) is not int or not isinstance(line.get("split"), str):
        return False
    return all(is_number(value) for name, value in line.items() if name != "split")


def is_number(value: Any) -> bool:
    """Tells whether a value is a number, which booleans are not."""
    return type(value) in (int, float)


def obstacle(path: Path) -> str:
    """Names what stands in a file's place: a link, a folder, a device or a pipe; '' where a file can be put."""
    if path.is_symlink():
        return "a link"
    if path.is_dir():
        return "a folder"
    return "a device or a pipe" if path.exists() and not path.is_file() else ""


def is_occupied(folder: Path) -> bool:
    """Tells whether a folder's place is taken; what a killed process has left half written does not count."""
    if not folder.is_dir():
        return folder.exists()
    return any(path.suffix != TEMPORARY for path in folder.iterdir())


def check_place(path: Path) -> None:
    """Raises a UsageError where writing a file would follow or replace a link, a device or the like."""
    if what := obstacle(path):
        raise UsageError(f"{path} is {what}, where a file cannot be put; give another name, or remove it.")


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file atomically."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes a file atomically: it is complete or unchanged even if the process is killed or the power fails.

    What UTF-8 cannot encode, such as some paths, is escaped. See `check_place`.
    """
    check_place(path)
    temporary = path.with_name(path.name + TEMPORARY)
    temporary.unlink(missing_ok=True)  # what is there may be a link
    try:
        with temporary.open("w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
