"""A report in a terminal: the verdict first, what fits, colours where they are wanted, and stable text in a pipe."""

import io
import re
import sys
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


class Terminal(io.StringIO):
    def isatty(self):
        return True


def on_a_terminal(act, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", terminal := Terminal())
        act()
    return terminal.getvalue()


def shown_on(columns, made, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return on_a_terminal(lambda: screen.show(made, FILES), monkeypatch)


def test_a_pipe_gets_plain_text_of_80_columns_with_the_verdict_first(made, capsys, monkeypatch):
    texts = []
    for columns in ("40", "200"):
        monkeypatch.setenv("COLUMNS", columns)
        screen.show(made, FILES)
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    lines, words = texts[0].splitlines(), " ".join(texts[0].split())
    assert lines[0].startswith("Accuracy: super is better than dot_product by 5.10 ± ")
    assert made.found.left_out[0] in words
    assert max(len(line) for line in lines if "/" not in line) <= 80
    assert ESCAPE not in texts[0]


@pytest.mark.parametrize(("columns", "fits"), [(80, False), (140, True)])
def test_a_terminal_gets_as_many_columns_as_fit(made, monkeypatch, columns, fits):
    plain = re.sub(r"\x1b\[[\d;]*m", "", shown_on(columns, made, monkeypatch)).splitlines()
    assert max(len(line) for line in plain if "/" not in line) <= columns
    (row,) = (line for line in plain if line.strip().startswith("super"))
    assert ("1,000" in row) == fits  # parameters


def test_claims_have_a_colour_and_a_word(made, monkeypatch):
    text = shown_on(120, made, monkeypatch)
    assert "\x1b[1;32mAccuracy: super is better than dot_product" in text
    assert "\x1b[32mbetter" in text
    monkeypatch.setenv("NO_COLOR", "1")
    assert ESCAPE not in on_a_terminal(lambda: screen.show(made, FILES), monkeypatch)
