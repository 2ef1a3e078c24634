"""What the project says of itself: README, citation, changelog, version."""

import re
import tomllib

import yaml

from models.mechanisms import MECHANISMS
from tests.conftest import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
PUBLISHED = re.compile(r"\b(19|20)\d\d\b|arXiv|eq\. \d|Definition|§")  # in the source of a row


def test_the_version_is_one():
    assert CITATION["version"] == VERSION
    assert re.search(rf"^## \[{re.escape(VERSION)}\] – ", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def test_every_published_mechanism_is_in_the_readme_and_its_paper_is_cited():
    published = [name for name, row in MECHANISMS.items() if PUBLISHED.search(row.source)]
    assert [name for name in published if f"`{name}`" not in README] == []
    notes = " ".join(paper.get("notes", "") for paper in CITATION["references"])
    assert [name for name in published if f"`{name}`" not in notes] == []


def test_the_citation_names_every_paper_of_the_readme():
    assert {"title", "message", "authors", "license"} <= set(CITATION)
    assert all({"type", "title", "authors"} <= set(each) for each in CITATION["references"])
    urls = {each.get("url") for each in CITATION["references"]}
    assert set(re.findall(r"https://arxiv\.org/abs/[\d.]+", README)) <= urls
