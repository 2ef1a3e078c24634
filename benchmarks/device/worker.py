"""The process that holds the device and measures items; `benchmarks.device` starts it and reads its lines of JSON.

    python -m benchmarks.device.worker STACK [--tiny] < NAMES

A kernel that crashes ends or spoils the process, so nothing else runs in it. Items are compiled in threads, a number of
them at a time, and then measured one after another.
"""

import concurrent.futures
import json
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any, TextIO

from attention.errors import UsageError
from benchmarks.device import about, core, loop, models, peers, right
from benchmarks.device.items import GROUPS, Item, Row, Skipped

TOGETHER, THREADS = 32, 16  # items compiled before they are measured, and threads that compile
TOGETHER_WHOLE = 4  # of those that compile for minutes
SPOILT = 3  # the exit code if the device no longer answers
FULL = "RESOURCE_EXHAUSTED"  # compilations share memory, so one that lacked it is repeated by itself


def items(tiny: bool) -> list[Item]:
    """Lists all items, the most valuable first; whole models come sorted by stack.

    Args:
      tiny: Whether to take toy sizes in place of a device's.
    """
    whole = sorted((*models.items(tiny), *loop.items(tiny)), key=lambda item: item.stack)
    known = [*right.items(tiny), *peers.items(tiny), *core.items(tiny), *whole]
    return sorted(known, key=lambda item: GROUPS.index(item.group))


def main(stack: str, tiny: bool, names: list[str], out: TextIO) -> int:
    """Measures the named items, which all need the same stack, and returns the exit code."""
    known = {item.name: item for item in items(tiny)}
    say(out, about=about.DEVICES[stack]())
    wanted = [known[name] for name in names]
    together = TOGETHER_WHOLE if wanted[0].group == "models" else TOGETHER
    for start in range(0, len(wanted), together):
        chunk = wanted[start : start + together]
        for item, measure in compiled(chunk, THREADS if stack == "jax" else 1, out):
            say(out, measuring=item.name)
            row = outcome(measure)
            say(out, name=item.name, row=row)
            if "failed" in row and not about.answers(stack):
                return SPOILT
    return 0


def compiled(items: list[Item], threads: int, out: TextIO) -> Iterator[tuple[Item, Any]]:
    """Compiles items in threads, reports when each begins and ends, and yields them in order when all are compiled."""
    threads = min(threads, max(2, os.cpu_count() or 2))

    def prepare(item: Item) -> Any:
        say(out, compiling=item.name)
        try:
            prepared = item.prepare()
        except Exception as error:
            prepared = (lambda: item.prepare()()) if FULL in str(error) else _raising(error)
        say(out, compiled=item.name)
        return prepared

    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        yield from zip(items, list(pool.map(prepare, items)), strict=True)


def _raising(error: Exception) -> Any:
    def measure() -> Row:
        raise error

    return measure


def outcome(measure: Any) -> Row:
    """Measures an item, and turns errors into rows: `skipped`, `refused` if it is not supported, else `failed`."""
    try:
        return measure()
    except Skipped as reason:
        return {"skipped": str(reason)}
    except UsageError as error:
        return {"refused": str(error)}
    except Exception as error:  # whatever it is, the other items continue
        return {"failed": f"{type(error).__name__}: {str(error)[:1000]}"}


LOCK = threading.Lock()


def say(out: TextIO, **line: Any) -> None:
    """Writes a line of JSON."""
    with LOCK:
        out.write(json.dumps(line) + "\n")
        out.flush()


if __name__ == "__main__":
    lines = os.fdopen(os.dup(1), "w")  # what libraries print goes to stderr
    os.dup2(2, 1)
    code = main(sys.argv[1], "--tiny" in sys.argv, json.load(sys.stdin), lines)
    os._exit(code)  # libraries may crash or hang while they close the device
