"""A mistake is told in one sentence that a person can read, however long what was given is."""

import pickle

import pytest

from attention.errors import MESSAGE, WORD, UsageError, unknown
from tests.sizes import more
from train import main
from train.cli import terminal


@pytest.mark.parametrize(("unit", "times"), [("x", 10**6), more("x y ", 10**6), more("x" * 500 + " ", 10**4)])
def test_a_megabyte_is_cut_and_the_sentence_keeps_its_beginning_and_its_end(unit, times):
    given = unit * times
    for error in (unknown("thing", given, ["one", "two"]), pickle.loads(pickle.dumps(unknown("thing", given, "ab")))):
        assert len(str(error)) <= MESSAGE
        assert max(map(len, str(error).replace("[...", " ").split())) <= WORD
        assert str(error).startswith("Unknown thing 'x")
        assert "characters ...]" in str(error)
        assert "Valid: " in str(error)


def test_what_is_short_is_not_cut():
    sentence = f"{'x' * WORD} is no path."
    assert str(UsageError(sentence)) == sentence


@pytest.mark.parametrize("path", ["run\udcff", "a\0b"])
def test_an_argument_that_is_no_text_is_told(path, capsys):
    assert main.main([f"--workdir={path}"]) == 2
    assert capsys.readouterr().err.startswith(f"error: The argument {f'--workdir={path}'!r} is no text in UTF-8")


def test_what_would_steer_a_terminal_is_shown():
    assert (
        str(UsageError("no \x1b[31mred\x07, no \x9b1m, no \udcff\n but é"))
        == r"no \x1b[31mred\x07, no \x9b1m, no \udcff but é"
    )
    assert terminal.filled("Classes: \x1b[31mred, \udcff") == r"Classes: \x1b[31mred, \udcff"
