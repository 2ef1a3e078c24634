"""Every measured figure of a document is the one that its file has."""

import json
import re

import pytest

from analysis.pictures import style
from analysis.pictures import trials as drawn_trials
from attention.errors import UsageError
from docs import address, figures
from tests.conftest import ROOT
from train.grids.trial_table import TrialTable


@pytest.mark.more
@pytest.mark.parametrize("page", figures.PAGES, ids=lambda page: page.name)
def test_writing_the_figures_again_changes_nothing(page):
    text = page.read_text(encoding="utf-8")
    assert figures.written(text) == text, "run python -m docs.figures"


def test_the_picture_of_the_digits_has_every_setting_of_their_file():
    measured = json.loads((ROOT / "benchmarks/results/digits_cpu.json").read_text(encoding="utf-8"))["runs"]
    shown = re.findall("<!-- (.+) -->", (ROOT / "docs/images/comparison_digits.svg").read_text(encoding="utf-8"))
    assert set(measured) <= set(shown), "run the command in the docstring of analysis/pictures/intervals.py"


@pytest.mark.more
@pytest.mark.parametrize("picture", ["recall", "trials"])
def test_the_pictures_of_trials_have_every_mechanism_of_the_kept_table(picture):
    """The docstring of analysis/pictures/__main__.py has the command that draws them."""
    table = TrialTable.read(ROOT / "configs/trials.json")
    drawn = {"recall": drawn_trials.frontier, "trials": drawn_trials.heat}[picture](table)
    shown = re.findall("<!-- (.+) -->", (ROOT / f"docs/images/{picture}.svg").read_text(encoding="utf-8"))
    assert shown == re.findall("<!-- (.+) -->", style.svg(drawn))


@pytest.mark.more
def test_commands_begin_with_a_clone_where_there_is_an_address(monkeypatch):
    for where, shown in (("https://forge/one", True), ("", False)):
        monkeypatch.setattr(address, "ADDRESS", where)
        assert (
            "git clone https://forge/one attention-bench\ncd attention-bench\n" in figures.figures()["begin"]()
        ) == shown
        assert ("!git clone https://forge/one" in figures.figures()["begin on Colab"]()) == shown
        assert figures.figures()["begin"]().endswith(". .venv/bin/activate\n```")


def test_every_figure_stands_in_some_page():
    pages = "".join(page.read_text(encoding="utf-8") for page in figures.PAGES)
    placed = {match["name"] for match in figures.FIGURE.finditer(pages)}
    assert {name for name, _ in figures.tables()} - placed == set()


@pytest.mark.parametrize("page", figures.PAGES, ids=lambda page: page.name)
def test_every_mark_is_written_and_begins_no_line(page):
    """A mark over two lines would keep its number for ever, and at one that begins a line Markdown ends a paragraph."""
    text = page.read_text(encoding="utf-8")
    assert text.count("<!-- figures:") == len(list(figures.FIGURE.finditer(text)))
    assert re.findall(r"^ *<!-- figures: .+? -->.+", text, re.MULTILINE) == []


@pytest.mark.more
def test_a_changed_figure_is_written_again_and_an_unknown_one_refused():
    page = "takes <!-- figures: longest neural MB -->9.999<!-- end --> MB"
    assert "9.999" not in figures.written(page)
    with pytest.raises(UsageError, match="Did you mean 'longest neural MB'"):
        figures.written(page.replace("neural", "neurl"))
