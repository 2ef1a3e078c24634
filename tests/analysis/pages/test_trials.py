"""The page of a table of trials in a real browser."""

import dataclasses
import re

import pytest

from analysis.pages import __main__ as page_of
from tests.analysis import tried


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """The page about `delta`, with the other mechanisms beside it."""
    folder, kept = tmp_path_factory.mktemp("trials"), tried.table()
    own = folder / "own.json"
    rows = [row for row in kept.rows if row["spec"] == "delta"]
    dataclasses.replace(kept, rows=rows).write(own)
    kept.write(folder / "kept.json")
    assert page_of.main([str(own), str(folder / "kept.json")]) == 0
    return own.with_suffix(".html")


def test_the_map_has_a_row_for_each_mechanism_sorts_and_is_no_wider_than_the_window(page, path):
    page.goto(path.as_uri())
    names = page.locator("#map tbody th")
    assert names.all_inner_texts() == ["delta", "dot_product", "linear", "retention", "super"]  # best first
    assert page.locator("#map tr.lit th").all_inner_texts() == ["delta"]
    cells = page.locator("#map tbody tr").first.locator("td").all_inner_texts()
    assert [re.sub(r"\s+", " ", cell).strip() for cell in cells] == [
        "100 5/5 solve", "70 69–72", "100 5/5 solve", "80 46–100 3/5 solve",
    ]  # fmt: skip
    page.locator("#map thead button").nth(2).click()
    assert names.all_inner_texts()[0] == "dot_product"  # of stacked at 128
    page.set_viewport_size({"width": 420, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= 420
    assert page.locator("svg").count() == 2
