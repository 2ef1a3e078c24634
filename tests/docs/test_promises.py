"""Every test that the documents name exists, every promise names one, and those of reliability are not long."""

import importlib
import re

import pytest

from tests.conftest import ROOT

DOCS = {"reliability.md": 25, "scaling.md": 12, "training.md": 5}  # at least so many promises
# `tests/a/test_b.py::test_c`, or of the file named before: `test_d`, `..._e`
REFERENCE = re.compile(r"`(?:(?P<file>tests/[\w/]+\.py)(?:::)?)?(?P<dots>\.\.\.)?(?P<name>(?:test)?_\w+|)`")


def references(text):
    """Yields the names in modules, with those of their tests."""
    module = None
    for match in filter(lambda match: len(match[0]) > 2, REFERENCE.finditer(text)):
        if match["file"]:
            module = importlib.import_module(match["file"].removesuffix(".py").replace("/", "."))
        tests = [name for name in vars(module) if name.startswith("test_") and name.endswith(match["name"])]
        named = tests if match["dots"] or not match["name"] else [name for name in tests if name == match["name"]]
        assert named, match[0]
        yield vars(module), named


def promises(doc):
    """Lists the rows of a document's tables whose last column names tests, as lists of cells."""
    text = (ROOT / "docs" / doc).read_text() + "\n"
    tables = re.findall(r"\|(?: [^|\n]+ \|)+ test[^|\n]*\|\n(?:\| --- )+\|\n((?:\|.*\n)+)", text)
    return [row.strip("| ").split(" | ") for row in "".join(tables).splitlines()]


@pytest.mark.parametrize("doc", DOCS)
def test_every_promise_names_a_test_and_named_tests_exist(doc):
    rows = promises(doc)
    assert len(rows) >= DOCS[doc]
    assert [row for row in rows if not re.search(r"test_\w+`", row[-1])] == []
    assert len(list(references((ROOT / "docs" / doc).read_text()))) > 5
    with pytest.raises(AssertionError, match="test_nothing"):
        list(references("`tests/docs/test_promises.py::test_nothing`"))


def is_long(test, module):
    """Tells whether a test, its module or all values of one of its parameters are long."""
    common = module.get("pytestmark", [])
    marks = [*getattr(test, "pytestmark", []), *(common if isinstance(common, list) else [common])]
    values = [[getattr(case, "marks", ()) for case in mark.args[1]] for mark in marks if mark.name == "parametrize"]
    return any(all("long" in {mark.name for mark in each} for each in group) for group in ([marks], *values))


def test_every_row_of_reliability_is_checked_by_some_case_that_is_not_long():
    for event, _, tests in promises("reliability.md"):
        assert not all(is_long(module[name], module) for module, (name, *_) in references(tests)), event
