"""Every command and every snippet of README and docs does what a reader would have it do; see `pages`."""

import json
import os

import pytest

from models import mechanisms
from tests.conftest import ROOT
from tests.docs import reader
from tests.docs.pages import Block, PageError, blocks, programs
from train import matching, pool

FILES = ["README.md", "CONTRIBUTING.md", "benchmarks/README.md", *(f"docs/{p.name}" for p in ROOT.glob("docs/*.md"))]
PAGES = {file: blocks((ROOT / file).read_text(encoding="utf-8")) for file in FILES if (ROOT / file).is_file()}
TYPED = sorted(file for file, found in PAGES.items() if found)


@pytest.fixture
def desk(monkeypatch, tmp_path):
    """An empty folder, where sweeps train in this process and rows of the mechanisms' table are on loan."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pool, "run_all", reader.runs_in_turn)
    monkeypatch.setattr(matching, "apart", lambda function, *arguments: function(*arguments))
    rows = dict(mechanisms.MECHANISMS)
    yield tmp_path
    mechanisms.MECHANISMS.clear()
    mechanisms.MECHANISMS.update(rows)


def typed(file, kinds):
    own = reader.Reader(file)
    for block in PAGES[file]:
        if block.kind in kinds:
            own.types(block)


@pytest.mark.parametrize("file", TYPED)
def test_a_page_does_as_it_says(file, desk):
    typed(file, ("setup", "run", "dry-run", "not run"))


@pytest.mark.long
@pytest.mark.parametrize("file", [file for file in TYPED if any(block.kind == "long" for block in PAGES[file])])
def test_a_page_does_as_it_says_at_length(file, desk):
    typed(file, ("setup", "run", "long"))


@pytest.mark.parametrize("file", TYPED)
def test_what_takes_long_names_what_there_is(file):
    assert [reader.look_up(block) for block in PAGES[file] if block.kind == "long" and reader.look_up(block)] == []
