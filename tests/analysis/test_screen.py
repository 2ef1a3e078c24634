"""A report in a terminal: the verdict first, what fits, and stable text in a pipe."""

from pathlib import Path

import pytest

from analysis import screen
from analysis.comparison import report
from tests.analysis.conftest import attention
from tests.test_programs import ESCAPE

FILES = [Path("out/report.md"), Path("out/report.html")]


@pytest.fixture
def made(tmp_path, write_run, write_runs):
    """Makes a report in which `super` is better, `efficient` allows no claim, and a run is unfinished."""
    write_run(tmp_path / "late", 3, model__attention="super", finished=False)
    better, alike = (0.950, 0.951, 0.952), (0.881, 0.901, 0.921)
    return report(write_runs(tmp_path, attention(dot_product=(0.9,) * 3, super=better, efficient=alike)))


def test_a_pipe_gets_plain_text_of_80_columns_with_the_verdict_first(made, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    screen.show(made, FILES)
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert lines[0].startswith("Accuracy: super is better than dot_product by 5.10 ± ")
    assert made.found.left_out[0] in " ".join(text.split())
    assert max(len(line) for line in lines if "/" not in line) <= 80
    assert ESCAPE not in text


def test_a_terminal_gets_the_columns_that_fit_and_the_names_of_the_others(made):
    titles = [column.title for column in made.overview.columns]
    for columns, least in ((60, 3), (100, 5), (400, len(titles))):
        table, hidden = screen.fitting(made.overview, screen.Console(width=columns))
        assert [*(column.header for column in table.columns), *hidden] == titles
        assert least <= len(table.columns) <= (5 if columns == 60 else len(titles))
