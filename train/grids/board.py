"""The table that a terminal shows while a sweep trains: a line for each setting, with its mean so far."""

import contextlib
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

ROWS = 20  # the most settings shown
UP = "\x1b[{}A\x1b[J"  # moves the cursor up some lines and clears everything below it


class Board:
    """A table that stays below the lines that a sweep prints; only terminals show it."""

    def __init__(self, runs: Iterable[Path], directory: Path):
        self._wanted, self._directory = Counter(path.parent for path in runs), directory
        self._values: dict[Path, list[float]] = {setting: [] for setting in self._wanted}
        self._metric, self._drawn = "", 0

    def add(self, run: Path, metric: str, value: float) -> None:
        """Adds the metric of a finished run."""
        self._metric = metric
        self._values[run.parent].append(value)

    @contextlib.contextmanager
    def below(self) -> Iterator[None]:
        """Removes the table while lines are printed, and draws it again below them."""
        if self._drawn:
            print(UP.format(self._drawn), end="")
        yield
        lines = self.lines() if sys.stdout.isatty() and self._metric else []
        self._drawn = len(lines)
        print("".join(f"{line}\n" for line in lines), end="", flush=True)

    def lines(self) -> list[str]:
        """Writes the table, no line wider than the terminal."""
        columns, height = shutil.get_terminal_size()
        names = {str(setting.relative_to(self._directory)): setting for setting in self._values}
        shown = dict(list(names.items())[: max(1, min(ROWS, height - 4))])
        width = min(max(map(len, shown)), max(columns - 36, 8))
        title = f"So far, the mean {self._metric} ± standard deviation over the finished seeds:"
        rows = [f"{name[-width:]:{width}}  {self._row(setting)}" for name, setting in shown.items()]
        more = [f"and {len(names) - len(shown)} more settings"] if len(names) > len(shown) else []
        return [line[: columns - 1] for line in (title, *rows, *more)]

    def _row(self, setting: Path) -> str:
        values = self._values[setting]
        spread = f" ± {np.std(values, ddof=1):.2g}" if len(values) > 1 else ""
        mean = f"{np.mean(values):.4g}{spread}" if values else "–"
        return f"{mean:<18}  {len(values)} of {self._wanted[setting]}"
