"""Every test that the documents name exists, and every promise names one."""

import ast
import re

import pytest

from tests.conftest import ROOT

DOCS = ("reliability.md", "scaling.md", "replicas.md")
# `tests/a/test_b.py::test_c`, or of the file named before: `test_d`, `..._e`
REFERENCE = re.compile(r"`(?:(?P<file>tests/[\w/]+\.py)(?:::)?)?(?P<dots>\.\.\.)?(?P<name>\w*)`")


def names_in(file):
    tree = ast.parse((ROOT / file).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name[:5] == "test_"}


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
    text = (ROOT / "docs" / doc).read_text()
    tables = re.findall(r"\| promise \| test[^|]*\|\n\| --- \| --- \|\n((?:\|.*\n)+)", text + "\n")
    rows = "".join(tables).splitlines()
    assert len(rows) > 15
    assert [row for row in rows if not re.search(r"test_\w+`|, all tests of|\| the same \|", row)] == []


def test_a_reference_that_leads_nowhere_is_found():
    here = "tests/docs/test_promises.py"
    good = f"`{here}::test_named_tests_exist`, `test_every_promise_names_a_test`, `..._tests_exist`, `word`, `{here}`"
    assert missing(good) == []
    bad = [f"`{here}::test_nothing`", "`test_nothing`", "`..._nothing`", "`tests/docs/test_none.py`"]
    assert missing(good + " ".join(bad)) == bad
