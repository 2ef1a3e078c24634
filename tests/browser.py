"""A headless Chromium for the pages that the programs write.

The machine's own Chromium is driven by Playwright; tests that need it are skipped where either is absent.
"""

import shutil
from collections.abc import Iterator

import pytest

CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")
OFFLINE = ("file:", "data:", "blob:", "about:")


@pytest.fixture(scope="module")
def browser() -> Iterator:
    """A browser for the tests of one file; it ends with them, since Playwright's event loop would block Orbax's."""
    driver = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    path = next(filter(None, map(shutil.which, CHROMIUMS)), None)
    if not path:
        pytest.skip(f"none of {', '.join(CHROMIUMS)} is installed")
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


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
    """Returns a list that takes up all errors of a tab, and all that it asks for but local files."""
    errors: list[str] = []
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    tab.on("request", lambda wish: None if wish.url.startswith(OFFLINE) else errors.append(f"asked for {wish.url}"))
    return errors
