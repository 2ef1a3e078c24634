"""What a terminal shows while a sweep trains: how far each run is, and the mean of each setting so far."""

import contextlib
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from attention.errors import visible
from models.files import open_regular

ROWS = 20  # the most settings shown
TAIL = 2000  # bytes of a log in which its last message is
UP = "\x1b[{}A\x1b[J"  # moves the cursor up some lines and clears everything below it


class Board:
    """A table that stays below the lines that a sweep prints; only terminals show it."""

    def __init__(self, runs: Iterable[Path], directory: Path):
        self._wanted, self._directory = Counter(path.parent for path in runs), directory
        self._values: dict[Path, list[float]] = {setting: [] for setting in self._wanted}
        self._metric, self._drawn, self._running = "", 0, list[str]()

    def add(self, run: Path, metric: str, value: float) -> None:
        """Adds the metric of a finished run."""
        self._metric = metric
        self._values[run.parent].append(value)

    def watch(self, logs: Mapping[str, Path]) -> None:
        """Shows the latest line of each log, by the name of what runs."""
        if sys.stdout.isatty():
            running = [f"{name}: {_latest(log)}" for name, log in logs.items()]
            if running != self._running:
                with self.below():
                    self._running = running

    @contextlib.contextmanager
    def below(self) -> Iterator[None]:
        """Removes the table while lines are printed, and draws it again below them."""
        if self._drawn:
            print(UP.format(self._drawn), end="")
        yield
        lines = self.lines() if sys.stdout.isatty() else []
        self._drawn = len(lines)
        print("".join(f"{line}\n" for line in lines), end="", flush=True)

    def lines(self) -> list[str]:
        """Writes the table, no line wider than the terminal."""
        columns, height = shutil.get_terminal_size()
        running = self._running[: max(0, height // 2)]
        table = self._table(columns, height - len(running)) if self._metric else []
        return [line[: columns - 1] for line in (*table, *running)]

    def _table(self, columns: int, height: int) -> list[str]:
        names = {str(setting.relative_to(self._directory)): setting for setting in self._values}
        shown = dict(list(names.items())[: max(1, min(ROWS, height - 4))])
        width = min(max(map(len, shown)), max(columns - 36, 8))
        title = f"So far, the mean {self._metric} ± standard deviation over the finished seeds:"
        rows = [f"{name[-width:]:{width}}  {self._row(setting)}" for name, setting in shown.items()]
        more = [f"and {len(names) - len(shown)} more settings"] if len(names) > len(shown) else []
        return [title, *rows, *more]

    def _row(self, setting: Path) -> str:
        values = self._values[setting]
        spread = f" ± {np.std(values, ddof=1):.2g}" if len(values) > 1 else ""
        mean = f"{np.mean(values):.4g}{spread}" if values else "–"
        return f"{mean:<18}  {len(values)} of {self._wanted[setting]}"


def _latest(log: Path) -> str:
    """Takes the start of a log's last message; its further lines are indented."""
    try:
        with open_regular(log, "rb") as file:
            file.seek(max(0, log.stat().st_size - TAIL))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:  # it was moved, which stops no run
        lines = []
    return visible(next((line for line in reversed(lines) if line[:1].strip()), "starting"))
