"""A mechanism of a user's file runs only where the user has named the file."""

import pytest

from attention import UsageError
from attention.defining import files
from attention.specs import of_files, parse
from models.mechanisms import Mechanism, resolve

CODE = """
import attention

@attention.pair
def product(query, key, at, *, scale=0.5):
    return query @ key * scale
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.setenv(files.ALLOWED, "")
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "my.py"
    file.write_text(CODE, encoding="utf-8")
    return file


def test_a_file_that_nobody_named_is_not_run(mine):
    mine.write_text("raise SystemExit('run')")
    with pytest.raises(UsageError, match=r"my.py is code, which runs only if you name it: add --code=my.py"):
        resolve("my.py:product", 1)


@pytest.mark.parametrize(
    "words",
    [
        ["--config.model.attention=my.py:product"],
        ["--over=model.attention=dot_product,my.py:product(scale=2.0)|super"],
        ["--code", "my.py"],
    ],
)
def test_a_file_that_a_command_line_names_is_run(mine, words):
    files.allow(words)
    (first, second) = resolve("my.py:product(scale=2.0)|dot_product", 2)
    assert (type(first.score).__name__, first.score.scale, second.name) == ("product", 2.0, "dot_product")
    assert first.score == resolve("my.py:product(scale=2.0)", 1)[0].score  # the file is run once


@pytest.mark.parametrize("word", ["--prompt=my.py", "my.pyc"])
def test_a_word_that_only_mentions_a_file_allows_nothing(mine, word):
    files.allow([word])
    with pytest.raises(UsageError, match="is code, which runs only if you name it"):
        resolve("my.py:product", 1)


def test_a_run_elsewhere_finds_the_file_by_its_name(mine, tmp_path):
    files.allow([f"--code={mine}"])
    assert resolve("somewhere/my.py:product", 1)[0].score.scale == 0.5


def test_a_row_of_a_file_keeps_its_projections(mine):
    mine.write_text(CODE + "from models.mechanisms import Mechanism\nROW = Mechanism('x', 'y', key='identity')\n")
    files.allow(["my.py"])
    assert resolve("my.py:ROW", 1)[0] == Mechanism("my.py:ROW", "y", key="identity")


@pytest.mark.parametrize(
    ("code", "name", "message"),
    [
        (CODE, "my.py:prodcut", "Unknown mechanism of my.py 'prodcut'. Did you mean 'product'"),
        (CODE, "no.py:product", "Cannot read no.py, which no.py:product names; give the path of a Python file"),
        (CODE + "x = 3", "my.py:x", "A layer needs .* a score or a Mechanism, not 3"),
        (CODE + "1 / 0", "my.py:product", r"my.py, line \d+, fails: ZeroDivisionError: division by zero"),
        (
            CODE + "def plain(query, key, at):\n    return 0.0",
            "my.py:plain",
            "plain is a plain function; write @attention.pair",
        ),
    ],
)
def test_mistakes_of_a_file_are_one_sentence(mine, code, name, message):
    mine.write_text(code)
    files.allow([name])
    with pytest.raises(UsageError, match=message):
        resolve(name, 1)


def test_the_texts_of_files_are_kept_by_their_names(mine, tmp_path):
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab/my.py").write_text("")
    files.allow(["my.py", "lab/my.py"])
    assert files.texts(["dot_product", "my.py:product", "my.py:other"]) == {"my.py": CODE}
    with pytest.raises(UsageError, match="Files of mechanisms need different names"):
        files.texts(["my.py:product", "lab/my.py:product"])


def test_names_of_files_are_read_in_spec_strings():
    spec = "lab/my.py:A(x=1, y='b.py:C')|dot_product|./m-y.py:B"
    assert [item.name for item in parse(spec)] == ["lab/my.py:A", "dot_product", "./m-y.py:B"]
    assert of_files(spec) == ["lab/my.py:A", "./m-y.py:B"]
    assert parse(spec)[0].options == {"x": 1, "y": "b.py:C"}
