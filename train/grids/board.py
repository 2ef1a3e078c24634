"""What a terminal shows of a sweep while it trains: a line for each setting, with the mean of its seeds so far."""

import contextlib
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

ROWS = 20  # settings that are shown
UP = "\x1b[{}A\x1b[J"  # goes up some lines, and clears all from there


class Board:
    """A table that stays below the lines that a sweep prints; what is no terminal gets no table."""

    def __init__(self, runs: Iterable[Path], directory: Path):
        self._wanted, self._directory = Counter(path.parent for path in runs), directory
        self._found: dict[Path, list[float]] = {setting: [] for setting in self._wanted}
        self._metric, self._drawn = "", 0

    def add(self, run: Path, metric: str, value: float) -> None:
        """Takes the metric of a run that has finished."""
        self._metric = metric
        self._found[run.parent].append(value)

    @contextlib.contextmanager
    def below(self) -> Iterator[None]:
        """Takes the table away while lines are printed, and draws it below them."""
        if self._drawn:
            print(UP.format(self._drawn), end="")
        yield
        lines = self.lines() if sys.stdout.isatty() and self._metric else []
        self._drawn = len(lines)
        print("".join(f"{line}\n" for line in lines), end="", flush=True)

    def lines(self) -> list[str]:
        """Writes the table, no line wider than the terminal."""
        columns, height = shutil.get_terminal_size()
        rows = {str(setting.relative_to(self._directory)): setting for setting in self._found}
        shown = dict(list(rows.items())[: max(1, min(ROWS, height - 4))])
        left = [f"and {len(rows) - len(shown)} more settings"] if len(rows) > len(shown) else []
        name = min(max(map(len, shown)), max(columns - 36, 8))
        of_rows = [f"{text[-name:]:{name}}  {self._row(setting)}" for text, setting in shown.items()]
        title = f"So far, the mean {self._metric} ± standard deviation of the seeds that have finished:"
        return [line[: columns - 1] for line in (title, *of_rows, *left)]

    def _row(self, setting: Path) -> str:
        values, wanted = self._found[setting], self._wanted[setting]
        spread = f" ± {np.std(values, ddof=1):.2g}" if len(values) > 1 else ""
        mean = f"{np.mean(values):.4g}{spread}" if values else "–"
        return f"{mean:<18}  {len(values)} of {wanted}"
