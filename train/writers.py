"""Where metrics go: `metrics.jsonl`, which is the record, and TensorBoard."""

import json
import os
from pathlib import Path
from typing import Any

from attention.errors import UsageError


class Record:
    """`metrics.jsonl`: one object a line, each step of a split once.

    Args:
      workdir: The run's folder.
      size: Bytes of the record that belong to the restored checkpoint; what was written after it is cut off.
    """

    def __init__(self, workdir: Path, size: int):
        self._path = workdir / "metrics.jsonl"
        if self._path.exists():
            os.truncate(self._path, min(size, self._path.stat().st_size))
        self._file = self._path.open("a", encoding="utf-8")

    def write(self, line: dict[str, Any]) -> None:
        """Appends one object."""
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self._path.stat().st_size

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def read_record(workdir: Path) -> list[dict[str, Any]]:
    """All lines of a work directory's record, in order.

    Raises:
      UsageError: the file has been damaged.
    """
    path = workdir / "metrics.jsonl"
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except ValueError as error:
        raise UsageError(
            f"{path} is damaged ({error}): remove the broken line and run the same command again."
        ) from error


class TensorBoard:
    """TensorBoard events of the same numbers.

    Args:
      workdir: The run's folder.
      step: The restored step; later events of an earlier process are hidden.
    """

    def __init__(self, workdir: Path, step: int):
        from tensorboardX import SummaryWriter

        self._writer = SummaryWriter(str(workdir / "tensorboard"), purge_step=step + 1)

    def write(self, line: dict[str, Any]) -> None:
        """Adds every number of a line as `split/name`, of a replica as `split/name/replica_2`."""
        whose = f"/replica_{line['replica']}" if "replica" in line else ""
        for name, value in line.items():
            if name not in ("step", "split", "replica"):
                self._writer.add_scalar(f"{line['split']}/{name}{whose}", value, line["step"])

    def close(self) -> None:
        """Flushes and closes."""
        self._writer.close()


class Writers:
    """All of them, on the first process; elsewhere nothing is written."""

    def __init__(self, workdir: Path, *, step: int, size: int, active: bool):
        self._record = Record(workdir, size) if active else None
        self._writers = [self._record, TensorBoard(workdir, step)] if active else []

    def write(self, line: dict[str, Any]) -> None:
        """One line of metrics with `step` and `split`."""
        for writer in self._writers:
            writer.write(line)

    @property
    def size(self) -> int:
        """Bytes of the record, to be kept with a checkpoint."""
        return self._record.size if self._record else 0

    def close(self) -> None:
        """Closes them all."""
        for writer in self._writers:
            writer.close()


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file whole or not at all."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes a file whole or not at all."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
