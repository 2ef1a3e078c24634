"""A mistake is told in one sentence that a person can read, however long what was given is."""

import pickle

import pytest

from attention.errors import MESSAGE, WORD, UsageError, unknown
from train import main


@pytest.mark.parametrize("given", ["x" * 10**6, "x y " * 10**6])
def test_a_megabyte_is_cut_and_the_sentence_keeps_its_beginning_and_its_end(given):
    told = unknown("thing", given, ["one", "two"])
    for error in (told, pickle.loads(pickle.dumps(told))):
        assert len(str(error)) <= MESSAGE
        assert max(map(len, str(error).replace("[...", " ").split())) <= WORD
        assert str(error).startswith("Unknown thing 'x")
        assert "characters ...]" in str(error)
        assert "Valid: " in str(error)


def test_what_is_short_is_not_cut():
    sentence = f"{'x' * WORD} is no path."
    assert str(UsageError(sentence)) == sentence


@pytest.mark.parametrize("path", ["run\udcff", "a\0b"])
def test_an_argument_that_is_no_text_is_told(path, refused):
    said = refused(main.main, [f"--workdir={path}"])
    assert said.startswith(f"error: The argument {f'--workdir={path}'!r} is no text in UTF-8")


def test_what_would_steer_a_terminal_is_shown():
    said = str(UsageError("no \x1b[31mred\x07, no \x9b1m, no \udcff\n but é"))
    assert said == r"no \x1b[31mred\x07, no \x9b1m, no \udcff but é"
