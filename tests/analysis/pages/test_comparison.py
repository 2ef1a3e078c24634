"""The page of a report in a real browser: from a file, without a network, by pointer and by keys."""

import itertools
import json
import re

import pytest

from analysis import report, runs
from analysis.comparison import report as compared
from analysis.pages import comparison, shell

MEANS = {"dot_product": 0.90, "super": 0.95, "efficient": 0.85}  # and of `linear` nothing is known


@pytest.fixture(scope="module")
def path(tmp_path_factory, write_run):
    """The page of four settings, one of which is better than the baseline and one worse."""
    folder = tmp_path_factory.mktemp("report")
    for seed in (0, 1, 2):
        for name, mean in MEANS.items():
            place, curve = folder / name / f"seed {seed}", (mean - 0.4, mean - 0.2, mean - 0.1, mean)
            write_run(place, seed, mean + seed / 1000 * (name[0] != "d"), curve, model__attention=name)
        write_run(folder / "linear" / f"seed {seed}", seed, float("nan"), model__attention="linear")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "_draw", lambda *_: None)
        assert report.main([str(folder)]) == 0
    return folder / "report.html"


def column(page, number):
    return page.locator(f"#results tbody tr td:nth-child({number})").all_inner_texts()


def lit(page):
    """Lists the highlighted settings, in the table and among the curves."""
    rows = page.locator("#results tr.lit td:first-child").all_inner_texts()
    return rows, page.locator("#chart .group.lit").evaluate_all("all => all.map((one) => +one.dataset.group)")


def test_headings_sort_by_value_and_what_is_unknown_is_last(page, path):
    page.goto(path.as_uri())
    assert column(page, 1) == ["dot_product", "efficient", "linear", "super"]
    page.get_by_role("button", name="test accuracy, %").click()
    assert column(page, 1) == ["efficient", "dot_product", "super", "linear"]
    page.keyboard.press("Enter")  # the heading has the focus
    assert column(page, 1) == ["super", "dot_product", "efficient", "linear"]


def test_pointing_at_a_row_or_a_curve_highlights_it_and_shows_its_values(page, path):
    page.goto(path.as_uri())
    assert lit(page) == ([], [])
    page.locator("#results tbody tr").nth(1).hover()
    assert lit(page) == (["efficient"], [1])
    page.locator("#chart").scroll_into_view_if_needed()
    box = page.locator("#chart").bounding_box()
    page.mouse.move(box["x"] + box["width"] - 15, box["y"] + 20)
    assert lit(page) == (["super"], [3])
    assert page.locator("#tip").inner_text().splitlines()[:3] == ["step 40", "95 super", "90 dot_product"]
    page.mouse.move(0, 0)
    assert lit(page) == ([], [])
    assert page.locator("#tip").is_hidden()


def test_keys_move_through_the_curves(page, path):
    page.goto(path.as_uri())
    page.locator("#chart").focus()
    for key in ("ArrowLeft", "ArrowLeft", "ArrowUp"):
        page.keyboard.press(key)
    assert page.locator("#status").inner_text() == "super, step 30: 85"
    assert lit(page) == (["super"], [3])
    page.keyboard.press("Escape")
    assert lit(page) == ([], [])


@pytest.mark.parametrize(("width", "scheme"), [(420, "dark"), (1300, "light")])
def test_it_fits_a_telephone_and_is_dark_in_the_dark(page, path, width, scheme):
    page.set_viewport_size({"width": width, "height": 800})
    page.emulate_media(color_scheme=scheme)
    page.goto(path.as_uri())
    page.locator(".group[data-group='0'] path").first.wait_for(state="attached")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    style = "getComputedStyle(document.body)"
    curve = "getComputedStyle(document.querySelector(\".group[data-group='0'] path\")).stroke"  # the baseline's is ink
    colours = page.evaluate(f"[{style}.backgroundColor, {style}.color, {curve}]")
    ground, text, line = (sum(map(int, re.findall(r"\d+", colour))) for colour in colours)
    assert (ground < text, ground < line) == (scheme == "dark",) * 2


def test_long_records_are_thinned_and_keep_their_end(tmp_path, write_run, monkeypatch):
    write_run(tmp_path / "run")
    lines = [{"step": step, "seconds": 0.1 * step, "split": "train", "loss": 1 / step} for step in range(1, 20_001)]
    (tmp_path / "run/metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.setattr(comparison, "POINTS", 4_000)  # of validation and training data
    text = comparison.page(compared(runs.find([tmp_path])), tmp_path)
    (group,) = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])["groups"]
    steps = group["runs"][0]["record"]["train"]["step"]
    assert steps[-1] == 20_000
    assert 1_000 < len(steps) <= 2_000
    assert len({later - earlier for earlier, later in itertools.pairwise(steps)}) == 1


def test_data_cannot_end_their_script(tmp_path):
    page = tmp_path / "a.html"
    page.write_text("{{TITLE}}{{DATA}}{{STYLE}}{{SCRIPT}}")
    for name in ("a.css", "a.js"):
        (tmp_path / name).write_text("")
    text = shell.filled(page, {"name": "</script><b>"}, TITLE="{{DATA}}")
    assert "</script>" not in text
    assert text.partition("</head>\n")[2].startswith('{{DATA}}{"name":"\\u003c/script>')
