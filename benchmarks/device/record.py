"""The results of a device: a JSON file with a row for each item, written anew after each of them."""

import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attention.errors import UsageError
from benchmarks.device.items import Item, Row
from models.files import read_json
from train.cli.files import check_place, write_text, writing

FILE, PROGRAMS = "device.json", "compiled.tar"
MOST = 15 * 2**20  # most bytes of compiled programs that are kept


class Results:
    """The results in a folder; each row names the call that made it, since calls may be on different machines.

    Attributes:
      calls: Facts about each call: command, commit, versions, and the device by its stack's name.
      rows: The rows by the names of items.
    """

    def __init__(self, folder: Path, call: dict[str, Any]):
        self.path = folder / FILE
        with writing(f"The folder {folder}", "choose another --out"):
            folder.mkdir(parents=True, exist_ok=True)
        for name in (FILE, PROGRAMS):
            check_place(folder / name)
        kept = read(self.path) if self.path.exists() else {"calls": [], "rows": {}}
        self.calls, self.rows = [*kept["calls"], call], kept["rows"]

    def about(self, stack: str, device: dict[str, Any], tiny: bool) -> None:
        """Records the device that a stack found in this call.

        Raises:
          UsageError: It is a CPU, and sizes are not tiny; or earlier calls had another device.
        """
        if stack == "jax" and device["platform"] == "cpu" and not tiny:
            raise UsageError("JAX finds no GPU or TPU here; --tiny tries the program itself on a CPU.")
        for call in self.calls:
            before = call.get(stack, device)["device"]
            if before != device["device"] and before and device["device"]:
                raise UsageError(
                    f"{self.path} has results of {before}, and this is {device['device']}; choose another --out."
                )
        self.calls[-1][stack] = device

    def add(self, name: str, row: Row) -> None:
        """Adds a row and writes the file."""
        self.rows[name] = row | {"call": len(self.calls) - 1}
        lines = [f"    {json.dumps(name)}: {json.dumps(row)}" for name, row in self.rows.items()]
        calls = ",\n".join(f"    {json.dumps(call)}" for call in self.calls)
        text = '{\n  "calls": [\n' + calls + '\n  ],\n  "rows": {\n' + ",\n".join(lines) + "\n  }\n}\n"
        with writing(str(self.path), "choose another --out"):
            write_text(self.path, text)

    def missing(self, items: Sequence[Item], again: bool) -> list[Item]:
        """Lists the items without a row; with `again` also those that failed or were skipped."""
        kept = {name for name, row in self.rows.items() if not (again and {"failed", "skipped"} & row.keys())}
        return [item for item in items if item.name not in kept]


def read(path: Path) -> dict[str, Any]:
    """Reads a record; raises a UsageError if it is damaged."""
    kept = read_json(path, "choose another --out")
    if not (isinstance(kept.get("calls"), list) and isinstance(kept.get("rows"), dict)):
        raise UsageError(f"{path} is no record of benchmarks.device; choose another --out.")
    return kept


def unpack(folder: Path, programs: Path) -> None:
    """Puts the programs that an earlier call compiled where JAX looks for them."""
    packed = folder / PROGRAMS
    if packed.is_file() and not programs.exists():
        with tarfile.open(packed) as tar:
            tar.extractall(programs, filter="data")


def pack(folder: Path, programs: Path) -> None:
    """Keeps the newest compiled programs beside the results, up to `MOST` bytes; they are compressed already."""
    kept, size = [], 0
    files = [path for path in programs.glob("*") if path.is_file()]
    for path in sorted(files, key=lambda path: path.stat().st_mtime, reverse=True):
        size += path.stat().st_size + 1024
        if size <= MOST:
            kept.append(path)
    if kept:
        temporary = folder / f"{PROGRAMS}.tmp"
        with tarfile.open(temporary, "w") as tar:
            for path in kept:
                tar.add(path, path.name)
        temporary.replace(folder / PROGRAMS)
