"""Measure a GPU or a TPU: what is right and what is fast, the most valuable items first.

    python -m benchmarks.device --seconds=540 --out=runs/device
    python -m benchmarks.device --only core --out=runs/device

Each result is written at once. A call ends by itself before its time is up, even within an item; the next call with the
same --out continues with the missing items.
"""

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path

from attention.errors import unknown
from benchmarks.device import about, record, report, worker
from benchmarks.device.items import GROUPS, Item
from benchmarks.device.processes import Session
from train import cli

SPARE = 4.0  # seconds left for writing at the end


@cli.program(
    __doc__,
    cli.flag("--out", type=Path, default=Path("runs/device"), help="folder of the results"),
    cli.flag("--seconds", type=cli.count, default=540, help="seconds after which the call ends"),
    cli.flag("--only", nargs="*", default=[], metavar="NAME", help=f"beginnings of names: {', '.join(GROUPS)}, …"),
    cli.flag("--again", action="store_true", help="repeat items that failed or were skipped"),
    cli.flag("--tiny", action="store_true", help="take toy sizes, to try the program itself"),
    cli.flag("--list", action="store_true", help="only print the names of the items"),
    lasting=True,
)
def main(flags: argparse.Namespace) -> None:
    """Measures the missing items, and prints tables of all."""
    end = time.monotonic() + flags.seconds - SPARE
    wanted = chosen(worker.items(flags.tiny), flags.only)
    if flags.list:
        print("\n".join(item.name for item in wanted))
        return
    kept = record.Results(flags.out, about.call())
    programs = Path(tempfile.gettempdir()) / f"programs-{'tiny' if flags.tiny else 'device'}"
    record.unpack(flags.out, programs)
    missing = kept.missing(wanted, flags.again)
    print(f"{len(wanted) - len(missing)} of {len(wanted)} items are measured already.", flush=True)
    try:
        Session(kept, end, flags.tiny, programs).measure(missing)
    finally:
        record.pack(flags.out, programs)
    print(report.short({"calls": kept.calls, "rows": kept.rows}, [item.name for item in wanted]))


def chosen(items: list[Item], only: list[str]) -> list[Item]:
    """Selects the items whose names begin with one of the texts; all without any.

    Raises:
      UsageError: No item's name begins with a text.
    """
    for text in only:
        if not any(item.name.startswith(text) for item in items):
            raise unknown("item", text, list(dict.fromkeys(item.group for item in items)))
    return [item for item in items if not only or item.name.startswith(tuple(only))]


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the process that holds the device too
    sys.exit(main())
