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

FILES = ["README.md", "CONTRIBUTING.md", "benchmarks/README.md", *(f"docs/{p.name}" for p in ROOT.glob("docs/*.md"))]
PAGES = {file: blocks((ROOT / file).read_text(encoding="utf-8"), str(ROOT / file)) for file in sorted(FILES)}
TYPED = [file for file, page in PAGES.items() if page]
LONG = [file for file in TYPED if any(block.mark.kind == "long" for block in PAGES[file])]


@pytest.fixture
def desk(monkeypatch, tmp_path):
    """An empty folder, where sweeps train in this process and rows of the mechanisms' table are on loan."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # of what is run in processes of its own
    monkeypatch.setattr(pool, "run_all", reader.runs_in_turn)
    monkeypatch.setattr(matching, "apart", lambda function, *arguments: function(*arguments))
    rows, fast = dict(mechanisms.MECHANISMS), jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)  # programs of two steps: compiling is all there is
    yield tmp_path
    jax.config.update("jax_disable_most_optimizations", fast)
    mechanisms.MECHANISMS.clear()
    mechanisms.MECHANISMS.update(rows)


def typed(page, kinds):
    for block in page:
        if block.mark.kind in kinds:
            reader.types(block)


@pytest.mark.parametrize("file", once(TYPED, ["README.md"]))
def test_a_page_does_as_it_says(file, desk):
    typed(PAGES[file], ("run", "fails", "dry-run", "not run"))


@pytest.mark.long
@pytest.mark.parametrize("file", LONG)
def test_a_page_does_as_it_says_at_length(file, desk):
    typed(PAGES[file], ("run", "long"))


@pytest.mark.parametrize("file", LONG)
def test_what_takes_long_names_what_there_is(file):
    assert [mistake for block in PAGES[file] if block.mark.kind == "long" for mistake in reader.look_up(block)] == []


def test_only_what_needs_a_cluster_or_an_environment_is_never_trained():
    trained = {block.mark.kind: file for file in TYPED for block in PAGES[file] if reader.trains(block)}
    assert set(trained) == {"run", "long", "fails", "dry-run", "not run"}
    never = {file for file in TYPED for block in PAGES[file] if block.mark.kind == "not run" and reader.trains(block)}
    assert never == {"docs/install.md", "docs/scaling.md"}


RUN = "python -m train.main --config=configs/vit_digits.py"


def sh(text, mark=""):
    return f"{mark}\n```sh\n{text}\n```\n"


WRONG_PAGES = {
    sh(RUN, "<!-- dry-run -->"): "needs a reason",
    sh(RUN, "<!-- not-run: because -->"): "'not-run' is none of",
    sh(RUN, "<!-- run: quickly -->"): "'quickly' is neither a number of steps nor",
    "<!-- run -->\n\nWords.\n" + sh(RUN): "stands before no block",
    sh(RUN, "<!-- run -->\n<!-- long -->"): "stands before no block",
    sh(RUN) + "\n<!-- long -->\n": "stands before no block",
    "```text\npython -m train.main\n```": "a block of 'text' with a mark or a command",
    "```console\nls\n```": "a block of 'console'",
}


@pytest.mark.parametrize("page", WRONG_PAGES)
def test_a_wrong_page_is_noticed(page):
    with pytest.raises(PageError, match=WRONG_PAGES[page]):
        blocks(page)


WRONG_BLOCKS = {
    sh("python -m train.mian"): "there is no module train.mian",
    sh("python -m train.main --workdr=runs/a"): "python -m train.main has no --workdr",
    sh("python -m train.main --config=configs/vit_digit.py"): "Did you mean 'configs/vit_digits.py'",
    sh("python -m train.main --config.model.atention=super"): "Did you mean '--config.model.attention'",
    sh("python -m train.main --config.model.attention=supr"): "Did you mean 'super'",
    sh("python -m train.sweep --config=configs/vit_digits.py --over model.heads=2,five"): "must be of type int",
    sh("python -m train.sweep --config=configs/vit_digits.py --over argument=super,supr"): "Did you mean 'super'",
    sh("python -m benchmarks.decoding --config.model.widht=512"): "no config has model.widht",
    sh("python -m train.launch --processes=2 -- --config=configs/vit_digit.py"): "Did you mean 'configs/vit_digits.py'",
    sh("bash -c 'python -m train.mian'"): "there is no module train.mian",
    sh("python -m pytest -q tests/train/test_nothing.py"): "there is no tests/train/test_nothing.py",
    sh("pip install -r requirements-nothing.txt"): "there is no requirements-nothing.txt",
    sh("make dmeo"): "make has no target dmeo",
    "```python\nfrom attention import dot_attention\n```": "attention has no dot_attention",
}


@pytest.mark.parametrize("kind", ["long", "not run: a reason"])
@pytest.mark.parametrize("block", WRONG_BLOCKS)
def test_what_is_not_there_is_noticed_whatever_the_mark(block, kind):
    (wrong,) = blocks(f"<!-- {kind} -->\n{block}")
    with pytest.raises(PageError, match=WRONG_BLOCKS[block]):
        reader.types(wrong)


@pytest.mark.parametrize(
    ("page", "error", "message"),
    [
        (sh("pip install -r requirements.txt"), PageError, "is not run here; put a mark before it"),
        (sh("python -m train.mechanisms super | less"), PageError, "is not run here; put a mark before it"),
        (sh("python -m train.mechanisms super --width=7"), PageError, "ends with 2: .*7"),
        (sh("python -m train.main --config=list", "<!-- fails -->"), PageError, "ends with 0"),
        (sh("python -m train.mechanisms super", "<!-- run: 3 steps -->"), PageError, "nothing is trained"),
        (sh("python -m train.main --config.model.patch=3", "<!-- dry-run: a reason -->"), UsageError, "patch=3"),
        ("```python\nassert 1 + 1 == 3\n```", AssertionError, None),
        (
            "```python\nx = 1\n```\n\n<!-- invisible-code-block: python\nx += 1\n-->\n```python\nassert x == 1\n```",
            AssertionError,
            None,
        ),
    ],
)
def test_what_does_not_work_is_noticed(page, error, message, desk):
    with pytest.raises(error, match=message):
        typed(blocks(page), ("run", "fails", "dry-run", "not run"))


def test_blocks_have_their_marks_and_lines():
    page = (
        f"# Title\n{sh(RUN + ' --config.seed=1')}\n- item\n\n  <!-- long: 3 steps, seed=2 -->\n  ```sh\n  ls\n  ```\n"
    )
    first, second = blocks(page)
    assert (first.line, first.mark.kind, first.mark.changes) == (3, "run", {})
    assert first.programs == [["train.main", "--config=configs/vit_digits.py", "--config.seed=1"]]
    assert (second.mark.kind, second.mark.changes) == ("long", {"train.length": "3 steps", "seed": "2"})
    assert second.commands == [["ls"]]
