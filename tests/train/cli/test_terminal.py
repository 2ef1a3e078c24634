"""What is printed reaches its reader whole, or the program says why it does not; and it steers no terminal."""

import os
import pty
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.train.conftest import arguments
from train.cli import terminal
from train.cli.files import read_record

PRINTING = """
import sys
from train import cli

def program():
    for _ in range(3000):
        print("x" * 100)
    open(sys.argv[1], "w").close()

sys.exit(cli.run(program, lasting=LASTING))
"""
SHELL = {
    "closed pipe": "| head -1; exit ${PIPESTATUS[0]}",
    "closed": ">&-",
    "full": ">/dev/full",
    "none": ">&- 2>&- <&-",
}
FULL = "No space left on device"


def shell(sink, *command):
    """Exit code and stderr of a command whose stdout goes to a place of `SHELL`."""
    given = ["bash", "-c", f'"$@" {SHELL[sink]}', "bash", *command]
    done = subprocess.run(given, cwd=ROOT, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("lasting", "sink", "code", "said"),
    [
        (False, "closed pipe", terminal.UNREAD, ""),
        (False, "full", 2, f"error: The standard output cannot be written ({FULL}); free space there, or"),
        (False, "none", 2, ""),
        (True, "closed pipe", 0, ""),
        (True, "full", 0, f"Not all that was printed could be written ({FULL})."),
        (True, "closed", 0, ""),
    ],
)
def test_a_stdout_that_takes_no_more(tmp_path, lasting, sink, code, said):
    """It ends a program that only prints, and no other."""
    command = [sys.executable, "-c", PRINTING.replace("LASTING", str(lasting)), str(tmp_path / "done")]
    ended, err = shell(sink, *command)
    assert ended == code
    assert err.startswith(said)
    assert err.count("\n") == bool(said)
    assert (tmp_path / "done").exists() == lasting


@pytest.mark.more
def test_a_run_goes_on_and_is_saved(tmp_path):
    command = arguments(tmp_path / "run", train__log_every="1 steps", train__length="4 steps")
    code, err = shell("closed pipe", sys.executable, "-m", "train.main", *command)
    assert code == 0, err
    assert "Traceback" not in err
    assert read_record(tmp_path / "run")[-1]["step"] == 4
    assert (tmp_path / "run/result.json").is_file()


STEERING = ["\x1b]0;title\x07", "\x1bP", "\x90", "\x9d0;title\x9c", "\x9b2J", "\x85"]
STEERING += ["\u202e", "\u2066", "\u200f", "\u2028", "\0", "\x08"]
PLAIN = "é\tα 日本 👩\u200d👩 ±"  # a joiner of emoji is none of them


def printed(text, on_a_terminal, verbatim=False):
    """The bytes that `print` writes of a text to a pipe or to a terminal, without the end of the line."""
    reader, writer = pty.openpty() if on_a_terminal else os.pipe()
    with open(writer, "w", encoding="utf-8") as stream, open(reader, "rb", buffering=0) as read:
        print(text, file=terminal.Screen(stream, lasting=False, verbatim=verbatim), flush=True)
        return read.read(10_000).decode().rstrip("\r\n")


@pytest.mark.parametrize("on_a_terminal", [False, True])
def test_whatever_a_program_prints_is_escaped(on_a_terminal):
    for control in STEERING:
        assert printed(f"{PLAIN}{control}", on_a_terminal) == f"{PLAIN}{repr(control)[1:-1]}"


def test_a_terminal_gets_colours_and_bars_and_a_file_gets_neither():
    assert printed("\x1b[1;31mred\x1b[0m\r\x1b[A", True) == "\x1b[1;31mred\x1b[0m\r\x1b[A"
    assert printed("\x1b[1;31mred\r", False) == r"\x1b[1;31mred\r"


def test_a_text_that_was_asked_for_is_kept_in_a_file():
    assert printed("\u200fאב\x0c", False, verbatim=True) == "\u200fאב\x0c"
    assert printed("\u200fאב\x0c", True, verbatim=True) == r"\u200fאב\x0c"
