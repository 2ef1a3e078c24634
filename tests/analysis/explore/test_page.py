"""The page in a real browser, from a file: pointing, keys, sizes, dark, and what it says."""

import pytest

from analysis.explore import page as pages
from tests.analysis.explore.looks import looks

TOKEN = "#token-0-row-{}"


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("explorer") / "page.html"
    path.write_text(pages.of([looks(), looks("two", signed=True, seed=1)]), encoding="utf-8")
    return path


@pytest.fixture
def seen(page, file):
    """Opens the page at an address within it."""

    def open_at(words="", width=1300):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme="light")
        page.goto("about:blank")
        page.goto(f"{file.as_uri()}#{words}")
        page.wait_for_selector(".run")
        return page

    return open_at


def ground(page, token):
    return page.locator(token).evaluate("it => getComputedStyle(it).backgroundColor")


def test_pointing_at_a_token_shows_what_it_looks_at(seen):
    page, weights = seen("example=0&runs=0&heads=1.2&row=5"), looks().examples[0].maps["self-attention"]
    before = ground(page, TOKEN.format(0))
    assert page.locator(".token.now").inner_text() == "the"
    page.hover(TOKEN.format(2))
    row = weights.layers["block_1/attention"][2, 2]
    assert ground(page, TOKEN.format(0)) != before
    assert ground(page, TOKEN.format(4)) == "rgb(255, 255, 255)"  # a later token, which has no weight
    table = page.locator("tbody tr").all_inner_texts()
    strongest = max(range(3), key=lambda column: row[column])
    assert table[0].split("\t")[:2] == [f"“{['<script>', '</script>', 'the'][strongest]}”", f"{row[strongest]:.2f}"]
    page.mouse.move(5, 5)
    assert ground(page, TOKEN.format(0)) == before


def test_a_gallery_shows_every_mechanism_and_they_share_the_token(page, tmp_path):
    file = tmp_path / "gallery.html"
    file.write_text(pages.gallery({f"mechanism {n}": [looks(seed=n)] for n in range(10)}), encoding="utf-8")
    page.emulate_media(color_scheme="dark")
    page.goto(f"{file.as_uri()}#example=0")
    assert page.locator(".run h2").all_inner_texts() == [f"mechanism {n}" for n in range(10)]
    page.hover("#token-9-row-1")
    assert page.locator(".token.now").all_inner_texts() == ["</script>"] * 10
    page.set_viewport_size({"width": 420, "height": 900})
    for example in range(3):
        page.select_option("#choose-example", str(example))
        assert page.evaluate("document.documentElement.scrollWidth") == 420
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(246, 245, 242)"


@pytest.mark.more
def test_keys_move_through_tokens_and_heads_and_the_address_keeps_them(seen):
    page = seen("example=0&runs=0&heads=0.0&row=2")
    page.locator(TOKEN.format(2)).focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.id") == "token-0-row-3"
    page.locator("#head-0-0-0").focus()
    page.keyboard.press("ArrowDown")
    page.reload()
    page.wait_for_selector(".run")
    assert "row=3" in page.url
    assert page.locator('.head[aria-pressed="true"]').get_attribute("id") == "head-0-1-0"
