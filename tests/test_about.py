"""What the project says of itself: README, citation, changelog, version."""

import importlib.util
import re
import subprocess
import tomllib

import pytest
import yaml

from models.mechanisms import MECHANISMS
from tests.conftest import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/install.md", "docs/tour.md")
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
PUBLISHED = re.compile(r"\b(19|20)\d\d\b|arXiv|eq\. \d|Definition|§")  # in the source of a row
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


def programs(text):
    return set(re.findall(r"python -m ([\w.]+)", text)) - {"venv", "pytest"}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    assert list(broken(page)) == []


@pytest.mark.parametrize("page", PAGES)
def test_programs_that_are_named_exist(page):
    for name in programs((ROOT / page).read_text(encoding="utf-8")):
        assert importlib.util.find_spec(name), name


def test_readme_is_short_and_shows_a_picture():
    assert README.count("\n") <= 160
    lines = re.sub(r"<!-- .*? -->", "", README).splitlines()  # without the marks of figures
    assert max(len(line) for line in lines if not line.startswith(("|", "!["))) <= 120
    assert "make demo\nmake test\n" in README


def test_readme_names_the_mechanisms_of_papers():
    named = {name for name in MECHANISMS if f"`{name}`" in README}
    assert {name for name, row in MECHANISMS.items() if PUBLISHED.search(row.source)} <= named


def test_every_target_of_make_that_is_named_exists():
    rules = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        named = re.findall(r"^    (?:\w+=\S+ )?make ([a-z -]+)$|`make ([a-z -]+)`", text, re.MULTILINE)
        assert {word for pair in named for words in pair for word in words.split()} <= set(rules)


def test_make_says_what_takes_minutes_before_it_is_silent():
    planned = subprocess.run(["make", "-nB", "demo"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert re.search(r'echo "Installing .* some minutes.*\n.*pip install -q', planned)


def test_the_version_is_one():
    assert CITATION["version"] == VERSION
    assert re.search(rf"^## \[{re.escape(VERSION)}\] – ", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def test_the_citation_names_every_paper_of_the_readme():
    assert CITATION["cff-version"] == "1.2.0"
    assert {"title", "message", "authors", "license"} <= set(CITATION)
    assert all({"type", "title", "authors"} <= set(each) for each in CITATION["references"])
    urls = {each.get("url") for each in CITATION["references"]}
    assert set(re.findall(r"https://arxiv\.org/abs/[\d.]+", README)) <= urls
    people = {person.get("family-names") for each in CITATION["references"] for person in each["authors"]}
    assert {"Vaswani", "Sanger", "Bahdanau", "Luong", "Parikh", "Katharopoulos", "Schlag"} <= people
    mechanisms = " ".join(paper.get("notes", "") for paper in CITATION["references"])
    published = [name for name, row in MECHANISMS.items() if PUBLISHED.search(row.source)]
    assert [name for name in published if f"`{name}`" not in mechanisms] == []


def test_a_link_that_leads_nowhere_is_found(tmp_path, monkeypatch):
    (tmp_path / "page.md").write_text("# One two\n[a](page.md) [b](#one-two) [c](no.md) [d](#three) [e](https://f.g)")
    monkeypatch.setattr("tests.test_about.ROOT", tmp_path)
    assert list(broken("page.md")) == ["no.md#", "#three"]
