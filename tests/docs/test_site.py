"""The documentation site builds, holds every page, and is whole without a network."""

import os
import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
from mkdocs.exceptions import PluginError

from docs import hooks, make_configs
from tests.conftest import ROOT

pytestmark = pytest.mark.xdist_group(__name__)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@pytest.mark.more
def test_the_site_is_whole_without_a_network(site):
    made = sorted(site.rglob("*.html"))
    assert len(made) > 25
    for page in made:
        text = page.read_text(encoding="utf-8")
        fetched = re.findall(r'<(?:script|img|iframe|source|link)[^>]*\s(?:src|href)="?([^"\s>]+)', text)
        assert fetched
        assert [address for address in fetched if re.match(r"(https?:)?//", address)] == [], page.name


@pytest.mark.skipif(not shutil.which("node"), reason="needs node to run KaTeX")
def test_katex_reads_every_equation():
    script = """
        const katex = require("./docs/katex/katex.min.js");
        const read = file => require("fs").readFileSync("docs/mechanisms/" + file, "utf-8");
        const pages = require("fs").readdirSync("docs/mechanisms").map(read).join("\\n");
        const equations = [...pages.matchAll(/^\\$\\$(.+)\\$\\$$/gm)].flatMap(match => match[1].split("\\\\qquad"));
        for (const equation of equations) katex.renderToString(equation, {displayMode: true, strict: "error"});
        console.log(equations.length);
    """
    ran = subprocess.run(["node", "-e", script], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) > 30


@pytest.mark.more
def test_equations_are_shown_from_a_disk_and_fit_a_narrow_screen(site, page):
    page.set_viewport_size({"width": 420, "height": 900})
    page.goto((site / "mechanisms/recurrences.html").as_uri())
    page.wait_for_selector(".katex")
    assert page.locator(".arithmatex").count() == page.locator(".arithmatex:has(.katex)").count() > 5
    assert page.locator(".katex-error").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") == 420


def test_an_equation_that_would_stay_raw_fails_the_build():
    page = SimpleNamespace(file=SimpleNamespace(src_uri="a.md"))
    with pytest.raises(PluginError, match=r"a\.md: this equation would be shown as raw TeX: '\$\$x\^2\$\$"):
        hooks.on_page_content("<p>words $$x^2$$</p>", page, None, None)
    whole = '<pre>a $$ b</pre><p><code>$$</code></p><div class="arithmatex">\\[x\\]</div>'
    assert hooks.on_page_content(whole, page, None, None) == whole


def test_indices_are_lowered_but_not_in_code_equations_or_names():
    written = "W^A and s_ij, Σ_j of √d_k `s_ij` p_value train_x\n\n$$s_{ij} = a_i$$\n\n```\ns_ij\n```"
    made = "W<sup>A</sup> and s<sub>ij</sub>, Σ<sub>j</sub> of √d<sub>k</sub> "
    assert hooks.with_scripts(written) == written.replace(written[: written.index("`")], made)


def test_flags_stay_whole_and_drawings_have_their_sizes():
    page = SimpleNamespace(file=SimpleNamespace(src_uri="looking.md"))
    written = (
        '<code>--seeds=5</code> <code>- a</code> <img alt="a" src="images/curves.svg" /> <img alt="" src="a.png" />'
    )
    made = written.replace("<code>--", '<code class="flag">--').replace('.svg"', '.svg" width="461" height="528"')
    assert hooks.on_page_content(written, page, None, None) == made
    assert 'class="wide"' in hooks.on_page_content('<img alt="" src="images/surface.svg" />', page, None, None)


@pytest.mark.more
def test_the_ledger_is_filtered_and_sorted_in_place(site, page):
    page.set_viewport_size({"width": 420, "height": 900})
    page.goto((site / "ledger.html").as_uri())
    count, words, verdict = (page.locator(f".ledger {part}") for part in ("output", "input", "select >> nth=1"))

    def verdicts():
        return page.locator("article tbody tr:visible td:nth-child(5):nth-last-child(5)").all_inner_texts()

    everything = verdicts()
    assert count.inner_text() == f"{len(everything)} of {len(everything)} claims"
    verdict.select_option("undecided")
    assert set(verdicts()) == {"undecided"}
    words.fill("imdb")
    assert 0 < len(verdicts()) < everything.count("undecided")
    words.fill("")
    verdict.select_option("")
    page.locator("th button", has_text="verdict").first.click()
    first = len(page.locator("article table").first.locator("tbody tr").all())
    assert verdicts()[:first] == sorted(everything[:first])
    assert verdicts()[first:] == everything[first:]
    assert page.evaluate("document.documentElement.scrollWidth") == 420


def test_the_pages_of_fields_are_made_from_the_code():
    for path, text in make_configs.pages().items():
        assert path.read_text(encoding="utf-8") == text, f"{path}: run python -m docs.make_configs"


LINKS = {
    "[a](docs/data.md#splits)": "[a](data.md#splits)",
    "![a](docs/images/curves.svg)": "![a](images/curves.svg)",
    "[a](benchmarks/README.md#start)": "[a](measurements.md#start)",
    "[docs/data.md](docs/data.md#splits)": "[*Data*](data.md#splits)",
    "[a](train/main.py)": "[a](https://forge/one/blob/main/train/main.py)",
    "[a](https://example.org/x.md) [b](#here)": "[a](https://example.org/x.md) [b](#here)",
    "`[a](nothing.md)`": "`[a](nothing.md)`",
    "    [a](nothing.md)": "    [a](nothing.md)",
}


def test_links_lead_where_they_lead_on_a_forge_and_never_to_nothing():
    for link, made in LINKS.items():
        assert hooks.relinked(link, "README.md", "index.md", "https://forge/one") == made
    below = "[a](../../README.md) [b](../../train/main.py) [c](../data.md)"
    assert hooks.relinked(below, "docs/api/train.md", "api/train.md", "") == "[a](../index.md) b [c](../data.md)"
    with pytest.raises(PluginError, match=r"docs/data.md: the link to nothing.md leads nowhere"):
        hooks.relinked("[a](nothing.md)", "docs/data.md", "data.md", "")


def test_lists_and_tables_are_as_python_markdown_wants_them():
    written = "words\n- one\n  more\n\n  ```sh\n  ls\n  ```\n  - inner\n    still\n\n1. first\n   more"
    made = "words\n\n- one\n    more\n\n    ```sh\n    ls\n    ```\n    - inner\n        still\n\n1. first\n    more"
    assert hooks.as_python_markdown(written) == made
    table = "words\n\n| a | b |\n| --- | --- |\n| `x\\|y` | z \\| w |"
    assert hooks.as_python_markdown(table) == table.replace("x\\|y", "x|y")
    marks = "a\n<!-- run -->\n    <!-- code -->\n\n<!-- setup:\nx = 1\n-->\nb"
    assert hooks.without_marks(marks) == "a\n    <!-- code -->\n\nb"
