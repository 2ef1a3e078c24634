"""Tables of results, and their forms in Markdown, CSV and LaTeX."""

import csv
import dataclasses
import io
import math
from collections.abc import Iterable, Sequence

from analysis.metrics import Metric
from attention.errors import in_line

FORMULA = ("=", "+", "-", "@")  # beginnings of what spreadsheets run; no cell has tabs or line ends
LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        **{character: f"\\{character}" for character in "&%#_{}$"},
        "±": r"$\pm$",
        "–": "--",
        "<": "$<$",
        ">": "$>$",
        "^": r"\textasciicircum{}",
        "~": r"\textasciitilde{}",
        "|": r"\textbar{}",
        "'": r"\textquotesingle{}",
        "`": "",
    }
)


@dataclasses.dataclass(frozen=True)
class Number:
    """A number in a table.

    Attributes:
      value: The value; NaN is printed as a dash.
      metric: How the value is printed.
      spread: Printed after ±; NaN is not printed.
      rank: Printed in brackets; 0 is not printed.
      sign: `+` shows the sign of positive values.
    """

    value: float
    metric: Metric
    spread: float = math.nan
    rank: int = 0
    sign: str = ""

    @property
    def is_beyond(self) -> bool:
        """Whether it is a share whose interval extends below 0 or above 1."""
        ends = self.value - self.spread, self.value + self.spread
        return self.metric.scale == 100 and (ends[0] < 0 or ends[1] > 1)

    def __str__(self) -> str:
        spread = "" if math.isnan(self.spread) else f" ± {self.metric.text(self.spread)}"
        return self.metric.text(self.value, self.sign) + spread + (f" ({self.rank})" if self.rank else "")


@dataclasses.dataclass(frozen=True)
class ResultColumn:
    """A column of numbers or texts.

    Attributes:
      name: Its name in CSV files, which has columns for spreads and ranks named after it.
      title: Its name in headings.
      cells: One cell for each row. Texts may come from anywhere, so they are escaped to fit on one line.
    """

    name: str
    title: str
    cells: tuple[Number | str, ...]

    def __post_init__(self):
        cells = tuple(in_line(cell) if isinstance(cell, str) else cell for cell in self.cells)
        shown = {"name": in_line(self.name), "title": in_line(self.title), "cells": cells}
        vars(self).update(shown)  # it is frozen

    @property
    def numbers(self) -> list[Number]:
        """The numbers among the cells."""
        return [cell for cell in self.cells if isinstance(cell, Number)]


@dataclasses.dataclass(frozen=True)
class ResultTable:
    """A table of columns that have the same length."""

    columns: tuple[ResultColumn, ...]

    @property
    def rows(self) -> list[tuple[Number | str, ...]]:
        """The cells row by row."""
        return list(zip(*(column.cells for column in self.columns), strict=True))

    def _repr_markdown_(self) -> str:
        """Writes the table for notebooks."""
        return markdown(self)


def ranks(values: Sequence[float], lower: bool) -> list[int]:
    """Ranks values from 1, the best; equal values share a rank, and the rank of NaN is 0."""
    scores = [-value if lower else value for value in values]
    return [0 if math.isnan(score) else 1 + sum(other_score > score for other_score in scores) for score in scores]


def without_ranks(table: ResultTable) -> ResultTable:
    """Removes the ranks of a table's numbers."""

    def bare(cell: Number | str) -> Number | str:
        return dataclasses.replace(cell, rank=0) if isinstance(cell, Number) else cell

    columns = (dataclasses.replace(column, cells=tuple(map(bare, column.cells))) for column in table.columns)
    return ResultTable(tuple(columns))


def markdown(table: ResultTable) -> str:
    """Writes a table in Markdown."""
    rules = ["---:" if column.numbers else "---" for column in table.columns]
    titles, *rows = ([str(cell).replace("|", "\\|") for cell in row] for row in _lines(table))
    return plain_markdown(titles, rows, rules) + "\n"


def plain_markdown(titles: Sequence[str], rows: Iterable[Iterable[object]], rules: Sequence[str] = ()) -> str:
    """Writes a Markdown table of titles and rows, with `rules` or `---` below the titles."""
    lines = [titles, rules or ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)


def latex(table: ResultTable) -> str:
    """Writes a `tabular` with the rules of the package booktabs."""
    kinds = "".join("r" if column.numbers else "l" for column in table.columns)
    head, *body = (" & ".join(str(cell).translate(LATEX) for cell in row) + r" \\" for row in _lines(table))
    begin = rf"\begin{{tabular}}{{{kinds}}}"
    return "\n".join([begin, r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}", ""])


def comma_separated(table: ResultTable) -> str:
    """Writes a table as CSV, with numbers as they were measured, neither scaled nor rounded."""
    columns = [filled for column in table.columns for filled in _plain(column)]
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(zip(*columns, strict=True))
    return out.getvalue()


def _lines(table: ResultTable) -> list[Iterable[Number | str]]:
    return [[column.title for column in table.columns], *table.rows]


def _plain(column: ResultColumn) -> list[list[str]]:
    """Lists the CSV columns of a column: its name and cells, and spreads and ranks if any cell has one."""
    if not column.numbers:
        return [[_unrun(cell) for cell in (column.name, *map(str, column.cells))]]
    lines = []
    for attribute, ending in (("value", ""), ("spread", "_plus_minus"), ("rank", "_rank")):
        values = [getattr(number, attribute) for number in column.numbers]
        if attribute == "value" or any(value and not math.isnan(value) for value in values):
            lines.append(
                [_unrun(column.name + ending), *("" if math.isnan(value) else repr(value) for value in values)]
            )
    return lines


def _unrun(text: str) -> str:
    """Puts an apostrophe before a text that a spreadsheet would run as a formula; numbers stay as they are."""
    return f"'{text}" if text.startswith(FORMULA) and not _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
