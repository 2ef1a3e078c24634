"""One table in three forms, against tables written by hand."""

import math

import pytest

from analysis import metrics, tables
from analysis.tables import Number, ResultColumn, ResultTable

TABLE = ResultTable(
    (
        ResultColumn("model.attention", "attention", ("super", "neural|dot_product")),
        ResultColumn(
            "test_accuracy",
            "test accuracy, %",
            (Number(0.9862, metrics.find("accuracy"), 0.0011, 1), Number(0.5, metrics.find("accuracy"), 0.02, 2)),
        ),
        ResultColumn(
            "parameters",
            "parameters",
            (Number(37184, metrics.find("parameters")), Number(math.nan, metrics.find("loss"))),
        ),
    )
)


def test_markdown():
    assert tables.markdown(TABLE) == (
        "| attention | test accuracy, % | parameters |\n"
        "| --- | ---: | ---: |\n"
        "| super | 98.62 ± 0.11 (1) | 37,184 |\n"
        "| neural\\|dot_product | 50.00 ± 2.00 (2) | – |\n"
    )


def test_csv_has_figures_as_they_were_measured():
    assert tables.comma_separated(TABLE) == (
        "model.attention,test_accuracy,test_accuracy_plus_minus,test_accuracy_rank,parameters\n"
        "super,0.9862,0.0011,1,37184\n"
        "neural|dot_product,0.5,0.02,2,\n"
    )


def test_latex():
    assert tables.latex(TABLE) == (
        "\\begin{tabular}{lrr}\n\\toprule\n"
        "attention & test accuracy, \\% & parameters \\\\\n\\midrule\n"
        "super & 98.62 $\\pm$ 0.11 (1) & 37,184 \\\\\n"
        "neural\\textbar{}dot\\_product & 50.00 $\\pm$ 2.00 (2) & -- \\\\\n"
        "\\bottomrule\n\\end{tabular}\n"
    )


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
