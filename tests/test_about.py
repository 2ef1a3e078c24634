"""What the project says of itself: README, citation, changelog, version."""

import re
import tomllib

import pytest
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


PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")


def anchors(text):
    """Of the headings, as a forge makes them."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(page):
    path = ROOT / page
    for target, anchor in LINK.findall(path.read_text(encoding="utf-8")):
        place = path.parent / target if target else path
        if re.match(r"\w+:", target):
            continue
        if not place.exists() or (anchor and anchor not in anchors(place.read_text(encoding="utf-8"))):
            yield f"{target}#{anchor}"


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    assert list(broken(page)) == []


def test_readme_is_short_and_shows_a_picture():
    assert README.count("\n") <= 160
    lines = re.sub(r"<!-- .*? -->", "", README).splitlines()  # without the marks of figures
    assert max(len(line) for line in lines if not line.startswith(("|", "!["))) <= 120
    assert "make demo\nmake test\n" in README
