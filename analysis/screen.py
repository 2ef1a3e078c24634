"""A report on a terminal: the conclusions, then as many columns of figures as fit."""

import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from analysis import compare
from analysis.comparison import ComparisonReport
from analysis.statistics import LEVEL
from analysis.tables import ResultColumn, ResultTable
from train.cli import terminal

READABLE = 100  # widest running text, in columns
LONGEST = 32  # widest cell, in columns; a longer one is wrapped
LEGEND = (
    "± is half the 95 % interval of a mean over seeds or of a difference. A claim needs a p of at most "
    f"{LEVEL}, corrected for all comparisons."
)
STYLES = {"better": "green", "worse": "red"}


def show(report: ComparisonReport, files: Sequence[Path]) -> None:
    """Prints a report to stdout, in a terminal's width, or else in 80 columns without colours.

    Args:
      files: The report's files, all in one folder, the page last.
    """
    screen = _console()
    shown, hidden = fitting(report.overview, screen)
    with screen.capture() as captured:
        for sentence in report.verdict:
            _say(screen, sentence, f"bold {STYLES.get(compare.claim_of(sentence), '')}".strip())
        screen.print()
        _say(screen, report.introduction)
        screen.print(shown)
        _say(screen, LEGEND, "dim")
        if hidden:
            _say(screen, f"Columns that do not fit: {'; '.join(hidden)}.", "dim")
        for sentence in report.found.left_out:
            _say(screen, sentence, "yellow")
        *others, page = files
        _say(screen, f"Curves and all figures: {page}")
        _say(screen, f"Also written: {', '.join(file.name for file in others)}", "dim")
    sys.stdout.writelines(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def fitting(overview: ResultTable, screen: Console) -> tuple[Table, list[str]]:
    """Makes a table of the first columns that fit, at least two, and lists the titles of the others."""
    columns = overview.columns
    room = screen.options.update(width=10 * screen.width, max_width=10 * screen.width)
    widths = [Measurement.get(screen, room, _table(columns[:n])).maximum for n in range(len(columns) + 1)]
    fit = max(n for n, width in enumerate(widths) if n <= 2 or width <= screen.width)
    return _table(columns[:fit]), [column.title for column in columns[fit:]]


def _table(columns: Sequence[ResultColumn]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        longest = max(map(len, (*map(str, column.cells), *column.title.split())))
        side = "right" if column.numbers else "left"
        table.add_column(column.title, justify=side, overflow="fold", max_width=min(longest, LONGEST))
    for row in ResultTable(tuple(columns)).rows:
        table.add_row(*(Text(str(cell), STYLES.get(str(cell), "")) for cell in row))
    return table


def _say(screen: Console, text: str, style: str = "") -> None:
    width = min(screen.width, READABLE)
    lines = textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)  # keeps paths whole
    screen.print(Text(lines, style), soft_wrap=True)


def _console() -> Console:
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else terminal.COLUMNS
    colours = "auto" if terminal.coloured(sys.stdout) else None
    return Console(file=sys.stdout, width=width, color_system=colours, highlight=False, markup=False, emoji=False)
