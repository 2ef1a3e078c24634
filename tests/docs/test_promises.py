"""Every test that the documents name exists, and every promise names one; those of reliability are in `make test`."""

import ast
import importlib
import re

import pytest

from tests.conftest import ROOT
from tests.sizes import SIZES, sizes_of

DOCS = ("reliability.md", "scaling.md", "replicas.md")
# `tests/a/test_b.py::test_c`, or of the file named before: `test_d`, `..._e`
REFERENCE = re.compile(r"`(?:(?P<file>tests/[\w/]+\.py)(?:::)?)?(?P<dots>\.\.\.)?(?P<name>\w*)`")


def names_in(file):
    tree = ast.parse((ROOT / file).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name[:5] == "test_"}


def promises(doc):
    """The rows of a document's tables of promises, as lists of their cells."""
    text = (ROOT / "docs" / doc).read_text() + "\n"
    tables = re.findall(r"\| promise \| test[^|]*\|(?: size \|)?\n(?:\| --- )+\|\n((?:\|.*\n)+)", text)
    return [row.strip("| ").split(" | ") for row in "".join(tables).splitlines()]


def sizes(tests):
    """The sizes in which the tests that a cell names run."""
    file, found = "", set()
    for match in REFERENCE.finditer(tests):
        file = match["file"] or file
        module = vars(importlib.import_module(file.removesuffix(".py").replace("/", ".")))
        found |= set(sizes_of(module[match["name"]], module))
    return [size for size in SIZES if size in found]


def missing(text):
    """References of a text that lead nowhere."""
    file, found = "", []
    for match in REFERENCE.finditer(text):
        file, name = match["file"] or file, match["name"]
        if not (match["file"] or match["dots"] or name.startswith("test_")):
            continue  # some other word in code's letters
        names = names_in(file) if file and (ROOT / file).is_file() else set()
        known = any(test.endswith(name) for test in names) if match["dots"] else name in names | {""}
        if not names or not known:
            found.append(match[0])
    return found


@pytest.mark.parametrize("doc", DOCS)
def test_named_tests_exist(doc):
    text = (ROOT / "docs" / doc).read_text()
    assert text.count("test_") > 5
    assert missing(text) == []


@pytest.mark.parametrize("doc", ["reliability.md", "scaling.md"])
def test_every_promise_names_a_test(doc):
    rows = promises(doc)
    assert len(rows) > 15
    assert [row for row in rows if not re.search(r"test_\w+`|, all tests of|^the same$", row[1])] == []


def test_every_promise_of_reliability_is_in_make_test_and_the_table_says_in_what_else():
    found = {promise: sizes(tests) for promise, tests, _ in promises("reliability.md")}
    assert {promise: size for promise, _, size in promises("reliability.md")} == {
        promise: ", ".join(where) for promise, where in found.items()
    }
    assert [promise for promise, where in found.items() if where[0] != "test"] == []


def test_a_reference_that_leads_nowhere_is_found():
    here = "tests/docs/test_promises.py"
    good = f"`{here}::test_named_tests_exist`, `test_every_promise_names_a_test`, `..._tests_exist`, `word`, `{here}`"
    assert missing(good) == []
    bad = [f"`{here}::test_nothing`", "`test_nothing`", "`..._nothing`", "`tests/docs/test_none.py`"]
    assert missing(good + " ".join(bad)) == bad
