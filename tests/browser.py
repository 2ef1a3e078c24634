"""A headless Chromium for the pages that the programs write.

The machine's own Chromium is driven by Playwright. Tests that need it are skipped where either is absent, and fail
where REQUIRE_BROWSER=1 says that both are there.
"""

import importlib.util
import os
import shutil
from collections.abc import Iterator

import pytest

CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")
OFFLINE = ("file:", "data:", "blob:", "about:")


@pytest.fixture(scope="module")
def browser() -> Iterator:
    """A browser for the tests of one file; it ends with them, since Playwright's event loop would block Orbax's."""
    path = chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


def chromium() -> str:
    """Finds the browser; where it is absent, or its driver, the test is skipped or fails."""
    path = next(filter(None, map(shutil.which, CHROMIUMS)), None)
    missing = [f"none of {', '.join(CHROMIUMS)} is installed"] * (not path)
    missing += ["Playwright is not installed"] * (not importlib.util.find_spec("playwright"))
    if missing:
        stop = pytest.fail if os.environ.get("REQUIRE_BROWSER") == "1" else pytest.skip
        stop(" and ".join(missing))
    return path


@pytest.fixture
def page(browser):
    """A tab of 1300 x 900; the test fails where it had an error or asked the network for anything.

    Open a file with `page.goto(path.as_uri())`; `page.set_viewport_size` and `page.emulate_media(color_scheme="dark")`
    change how it is seen.
    """
    tab = browser.new_page(viewport={"width": 1300, "height": 900})
    errors = watch(tab)
    yield tab
    tab.close()
    assert not errors, "\n".join(errors)


def watch(tab) -> list[str]:
    errors: list[str] = []
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    tab.on("request", lambda wish: None if wish.url.startswith(OFFLINE) else errors.append(f"asked for {wish.url}"))
    return errors
