"""What watches the pages notices their faults."""

import shutil

import pytest

from tests import browser as browsers


@pytest.mark.parametrize(
    "content",
    ["<script>missing()</script>", "<script>console.error('no')</script>", '<img src="http://127.0.0.1:9/a.png">'],
    ids=["an exception", "an error of the console", "a request of the network"],
)
def test_a_fault_of_a_page_is_noticed(browser, content, tmp_path):
    (tmp_path / "page.html").write_text(f'<!doctype html><link rel="icon" href="data:,">{content}')
    tab = browser.new_page()
    errors = browsers.watch(tab)
    tab.goto((tmp_path / "page.html").as_uri())
    tab.close()
    assert errors


@pytest.mark.parametrize(("required", "outcome"), [("", pytest.skip.Exception), ("1", pytest.fail.Exception)])
def test_where_a_browser_is_required_its_absence_is_no_reason_to_skip(required, outcome, monkeypatch):
    monkeypatch.setenv("REQUIRE_BROWSER", required)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(outcome, match="none of chromium, chromium-browser, google-chrome is installed"):
        browsers.chromium()
