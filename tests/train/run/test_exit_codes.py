"""Exit codes are those in docs/reliability.md, and each means what the page says."""

import re
import signal

import pytest

from attention import UsageError
from tests.conftest import ROOT
from train import cli
from train.cli import terminal


def page():
    """Reads the page's exit codes and their meanings."""
    table = (ROOT / "docs/reliability.md").read_text().partition("## Exit codes")[2].partition("\n## ")[0]
    return {int(code): said for code, said in re.findall(r"^\| (\d+) \| (.*) \|$", table, re.MULTILINE)}


def test_the_page_names_every_exit_code():
    ours = {cli.DONE, cli.FAILED, cli.MISTAKE, cli.ALONE, cli.DIVERGED, cli.INTERRUPTED, terminal.UNREAD}
    assert page().keys() == ours | {128 + signal.SIGKILL, 128 + signal.SIGTERM}
    assert cli.INTERRUPTED == 128 + signal.SIGINT
    assert terminal.UNREAD == 128 + signal.SIGPIPE


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (None, 0, "done"),
        (UsageError("No."), 2, "a mistake of the user's"),
        (FileNotFoundError(2, "No such file", "x"), 2, "a file or disk that cannot be used"),
        (FloatingPointError("No."), 4, "a loss or parameter is not finite"),
        (KeyboardInterrupt(), 130, "Ctrl-C"),
        (SystemExit(terminal.UNREAD), 141, "nobody reads"),
    ],
)
def test_what_a_program_raises_is_its_exit_code(error, code, said):
    def program():
        if error:
            raise error

    assert cli.run(program) == code
    assert said in page()[code]
