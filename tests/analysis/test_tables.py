"""One table in three forms, against tables written by hand."""

import math

import pytest

from analysis import metrics, tables
from analysis.tables import Number, ResultColumn, ResultTable


def test_numbers_have_spreads_and_ranks_and_csv_has_them_as_they_were_measured():
    accuracy = metrics.find("accuracy")
    cells = (Number(0.9862, accuracy, 0.0011, 1), Number(math.nan, accuracy))
    table = ResultTable((ResultColumn("of", "of", ("a_b", "b")), ResultColumn("test_accuracy", "accuracy, %", cells)))
    assert tables.markdown(table) == "| of | accuracy, % |\n| --- | ---: |\n| a_b | 98.62 ± 0.11 (1) |\n| b | – |\n"
    csv = "of,test_accuracy,test_accuracy_plus_minus,test_accuracy_rank\na_b,0.9862,0.0011,1\nb,,,0\n"
    assert tables.comma_separated(table) == csv
    assert "a\\_b & 98.62 $\\pm$ 0.11 (1) \\\\\nb & -- \\\\\n\\bottomrule" in tables.latex(table)


HOSTILE = [
    # a cell, and what it is in Markdown, CSV and LaTeX
    ("a^b~c", "a^b~c", "a^b~c", r"a\textasciicircum{}b\textasciitilde{}c"),
    ("a\nb\tc", r"a\nb\tc", r"a\nb\tc", r"a\textbackslash{}nb\textbackslash{}tc"),
    ("a|b", r"a\|b", "a|b", r"a\textbar{}b"),
    ("=1+1", "=1+1", "'=1+1", "=1+1"),
    ("@a", "@a", "'@a", "@a"),
    ("+1e3", "+1e3", "+1e3", "+1e3"),
    ("\t=1", r"\t=1", r"\t=1", r"\textbackslash{}t=1"),
    ("\x1b]0;t\x07", r"\x1b]0;t\x07", r"\x1b]0;t\x07", r"\textbackslash{}x1b]0;t\textbackslash{}x07"),
    ("a > b", "a > b", "a > b", "a $>$ b"),
]


@pytest.mark.parametrize(("cell", "markdown", "comma_separated", "latex"), HOSTILE)
def test_whatever_a_cell_or_a_heading_holds_stays_in_its_place(cell, markdown, comma_separated, latex):
    table = ResultTable((ResultColumn(cell, cell, ("x", cell)), ResultColumn("b", "b", ("y", "z"))))
    assert tables.markdown(table) == f"| {markdown} | b |\n| --- | --- |\n| x | y |\n| {markdown} | z |\n"
    assert tables.comma_separated(table) == f"{comma_separated},b\nx,y\n{comma_separated},z\n"
    assert f"\n{latex} & b \\\\\n" in tables.latex(table)
    assert f"\n{latex} & z \\\\\n" in tables.latex(table)


def test_ranks_as_the_paper_prints_them():
    """Equal values share a rank, as the test losses of eight heads do in Hosseini's Table 6."""
    assert tables.ranks([2.89, 2.85, 2.85, 2.87], lower=True) == [4, 1, 1, 3]
    assert tables.ranks([34.64, math.nan, 35.03], lower=False) == [2, 0, 1]


def test_every_metric_is_printed_in_its_own_way():
    assert metrics.find("accuracy").with_unit(metrics.find("accuracy").text(0.012, "+")) == "+1.20 points"
    assert metrics.find("peak_memory_bytes").text(5e8) == "500"
    printed = [metrics.P.phrase(p) for p in (0.0004, 0.0412, 0.0501, 0.0496)]
    assert printed == ["p < 0.001", "p = 0.041", "p = 0.0501", "p = 0.0496"]  # on its side of the level
