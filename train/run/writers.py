"""The files that metrics go to: `metrics.jsonl`, which is the record, and TensorBoard's events."""

import contextlib
import errno
import json
import os
import re
import time
from pathlib import Path
from typing import Any

from attention.errors import UsageError

TEMPORARY = ".tmp"  # of a file that is being written
UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO}


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


class Record:
    """The file `metrics.jsonl`, with one JSON object a line and each step of a split once.

    Args:
      workdir: The run's folder.
      size: The bytes of the record that belong to the restored checkpoint. Whatever was written after them is cut off,
        and so is an incomplete line.
    """

    def __init__(self, workdir: Path, size: int):
        path = workdir / "metrics.jsonl"
        if path.exists():
            os.truncate(path, path.read_bytes()[:size].rfind(b"\n") + 1)
        self._file = path.open("a", encoding="utf-8")

    def write(self, line: dict[str, Any]) -> None:
        """Appends one object."""
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def sync(self) -> int:
        """Flushes the file to disk, and returns its size in bytes."""
        os.fsync(self._file.fileno())
        return os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        """Closes the file."""
        with contextlib.suppress(OSError):  # a line that could not be written has raised before
            self._file.close()


def read_record(workdir: Path) -> list[dict[str, Any]]:
    """Returns all lines of a work directory's record, in order.

    Raises:
      UsageError: the file is damaged.
    """
    path = workdir / "metrics.jsonl"
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except ValueError as error:
        raise UsageError(
            f"{path} is damaged ({error}): remove the broken line and run the same command again."
        ) from error


class TensorBoard:
    """TensorBoard events of the same numbers, written synchronously, since tensorboardX's thread would lose errors.

    Args:
      workdir: The run's folder.
      step: The restored step; later events of an earlier process are hidden.
    """

    def __init__(self, workdir: Path, step: int):
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import SessionLog

        folder = workdir / "tensorboard"
        folder.mkdir(exist_ok=True)
        self._events = EventsWriter(str(folder / "events"))
        self._add(step + 1, session_log=SessionLog(status=SessionLog.START))
        self._events.flush()

    def write(self, line: dict[str, Any]) -> None:
        """Adds every number of a line as `split/name`, or as `split/name/replica_2` where it is a replica's."""
        from tensorboardX.summary import scalar

        whose = f"/replica_{line['replica']}" if "replica" in line else ""
        for name, value in line.items():
            if name not in ("step", "split", "replica"):
                self._add(line["step"], summary=scalar(f"{line['split']}/{name}{whose}", value))
        self._events.flush()

    def close(self) -> None:
        """Closes the file."""
        with contextlib.suppress(OSError):  # as in `Record.close`
            self._events.close()

    def _add(self, step: int, **content: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event

        self._events.write_event(Event(wall_time=time.time(), step=step, **content))


class Writers:
    """All writers of metrics on the first process; other processes write nothing."""

    def __init__(self, workdir: Path, *, step: int, size: int, active: bool):
        self._record = Record(workdir, size) if active else None
        self._writers = [self._record, TensorBoard(workdir, step)] if active else []

    def write(self, line: dict[str, Any]) -> None:
        """Writes one line of metrics with `step` and `split`."""
        for writer in self._writers:
            writer.write(line)

    def sync(self) -> int:
        """Flushes the record to disk; returns its size in bytes, which a checkpoint keeps."""
        return self._record.sync() if self._record else 0

    def close(self) -> None:
        """Closes all writers."""
        for writer in self._writers:
            writer.close()


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
