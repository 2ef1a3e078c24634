"""Every command and every snippet of README and docs does what a reader would have it do; see `pages`."""

import jax
import pytest

from attention.errors import UsageError
from models import mechanisms
from tests.conftest import ROOT
from tests.docs import reader
from tests.docs.pages import PageError, blocks
from tests.sizes import once
from train.grids import matching, pool

FILES = [
    "README.md",
    "CONTRIBUTING.md",
    "benchmarks/README.md",
    *(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/**/*.md")),
]
PAGES = {file: blocks((ROOT / file).read_text(encoding="utf-8"), str(ROOT / file)) for file in sorted(FILES)}
TYPED = [file for file, page in PAGES.items() if page]
LONG = [file for file in TYPED if any(block.mark.kind == "long" for block in PAGES[file])]
SHORT_KINDS = ("run", "fails", "dry-run", "not run", "needs")


@pytest.fixture
def desk(monkeypatch, tmp_path):
    """Provides an empty folder, trains sweeps in this process, and restores the table of mechanisms."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # of what is run in processes of its own
    monkeypatch.setattr(pool, "run_all", reader.runs_in_turn)
    monkeypatch.setattr(matching, "in_new_process", lambda function, *arguments: function(*arguments))
    rows, fast = dict(mechanisms.MECHANISMS), jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)  # programs of two steps: compiling is all there is
    yield tmp_path
    jax.config.update("jax_disable_most_optimizations", fast)
    mechanisms.MECHANISMS.clear()
    mechanisms.MECHANISMS.update(rows)


def typed(page, kinds=SHORT_KINDS):
    for block in page:
        if block.mark.kind in kinds:
            reader.types(block)


@pytest.mark.parametrize("file", once(TYPED, ["README.md"]))
def test_a_page_does_as_it_says(file, desk):
    typed(PAGES[file])


@pytest.mark.long
@pytest.mark.parametrize("file", LONG)
def test_a_page_does_as_it_says_at_length(file, desk):
    typed(PAGES[file], ("run", "long"))


@pytest.mark.parametrize("file", LONG)
def test_what_takes_long_names_what_there_is(file):
    for block in PAGES[file]:
        if block.mark.kind == "long":
            reader.look_up(block)


def test_only_what_needs_a_cluster_or_an_environment_is_never_trained():
    never = {file for file in TYPED for block in PAGES[file] if block.mark.kind == "not run" and reader.trains(block)}
    assert never == {"docs/install.md", "docs/scaling.md"}


RUN = "python -m train.main --config=configs/vit_digits.py"


def sh(text, mark=""):
    return f"{mark}\n```sh\n{text}\n```\n"


WRONG = {
    # pages
    sh(RUN, "<!-- dry-run -->"): "needs a reason",
    sh(RUN, "<!-- run: quickly -->"): "'quickly' is neither a number of steps nor",
    "<!-- run -->\n\nWords.\n" + sh(RUN): "stands before no block",
    "```console\nls\n```": "a block of 'console'",
    # what is looked up
    sh("python -m train.mian", "<!-- not run: slow -->"): "No module named 'train.mian'",
    sh("python -m train.main --workdr=runs/a", "<!-- not run: slow -->"): "Did you mean '--workdir'",
    sh("python -m pytest -q tests/train/test_nothing.py"): "there is no tests/train/test_nothing.py",
    sh("make dmeo"): "make has no target dmeo",
    "<!-- not run: slow -->\n```python\nfrom attention import dot_attention\n```": "cannot import name 'dot_attention'",
    # what is done
    sh("pip install -r requirements.txt"): "is not run here; put a mark before it",
    sh("python -m train.mechanisms super --width=7"): "ends with 2: .*7",
    sh("python -m train.mechanisms super", "<!-- run: 3 steps -->"): "nothing is trained",
    sh("python -m train.main --config.model.patch=3", "<!-- dry-run: a reason -->"): "patch=3",
    "```python\nassert 1 + 1 == 3\n```": "1 \\+ 1 == 3|",
}  # fmt: skip


@pytest.mark.parametrize("page", WRONG)
def test_a_wrong_page_is_noticed(page, desk):
    with pytest.raises((PageError, UsageError, ImportError, AssertionError), match=WRONG[page]):
        typed(blocks(page))
