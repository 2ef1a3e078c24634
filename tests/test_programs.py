"""All programs meet their user alike: help, mistakes, exit codes, colours."""

import contextlib
import importlib
import os
import pty
import re
import shlex

import pytest

from analysis import compare, report
from analysis.pictures import __main__ as pictures
from analysis.pictures import attention_maps
from tests.conftest import ROOT
from train import cli, loading, sweep
from train.grids import matching
from train.run import console

FOLDERS = ("analysis", "benchmarks", "docs", "notebooks", "studies", "train")
PROGRAMS = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
    for folder in FOLDERS
    for path in (*ROOT.glob(f"{folder}/*.py"), *ROOT.glob(f"{folder}/*/__main__.py"))
    if '__name__ == "__main__"' in path.read_text()
)
ESCAPE = "\x1b["


def program(name):
    """The module that has the program's `main` and `parser`."""
    module = importlib.import_module(name)
    return importlib.import_module(f"{name}.__main__") if hasattr(module, "__path__") else module


def parser_of(name):
    """The parser of a program; None of a module that has none."""
    module = program(name)
    parser = getattr(module, "parser", None) or getattr(getattr(module, "main", None), "parser", None)
    return parser and parser()


def run(name, *arguments, capsys):
    """Exit code, stdout, stderr."""
    code = program(name).main(list(arguments))
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def helps(name, capsys):
    """Of a program and of each of its subcommands."""
    for kind in ((), *((kind,) for kind in parser_of(name).kinds)):
        code, out, err = run(name, *kind, "--help", capsys=capsys)
        assert (code, err) == (0, "")
        yield out


def examples(text):
    """Commands of a help, in one line each."""
    lines = text.partition("Examples:\n")[2].replace("\\\n", " ").splitlines()
    return [shlex.split(line[line.index("python -m") :]) for line in lines]


@pytest.mark.parametrize("name", sorted({*console.PROGRAMS.values(), "analysis.pages"} - {"train.mechanisms"}))
def test_help_imports_nothing_that_takes_long(name, run_python):
    code = """
import runpy, sys
sys.argv[1:] = ["--help"]
try:
    runpy.run_module(sys.orig_argv[-1], run_name="__main__", alter_sys=True)
finally:
    slow = {"datasets", "flax", "grain", "matplotlib", "optax", "orbax", "scipy", "tensorstore"}
    print(slow & sys.modules.keys())
"""
    assert run_python("-c", code, name).stdout.endswith("\nset()\n")


def test_what_flags_offer_is_what_there_is():
    """Where it takes long to import, the flags have it written out."""
    assert tuple(matching.EQUAL) == sweep.EQUAL
    assert pictures.STACKS == attention_maps.STACKS
    assert ", ".join(compare.BUDGETS) in report.main.parser().format_help()


def on_a_terminal(act):
    """What is written to a terminal meanwhile."""
    reader, writer = pty.openpty()
    with open(writer, "w") as terminal, contextlib.redirect_stdout(terminal), contextlib.redirect_stderr(terminal):
        act()
        terminal.flush()
        text = os.read(reader, 65536).decode()
    os.close(reader)
    return text


def test_the_programs_are_found():
    assert {"train.main", "train.launch", "train.mechanisms", "analysis.report", "benchmarks.attention"} <= set(
        PROGRAMS
    )


@pytest.mark.parametrize("name", PROGRAMS)
def test_help_has_purpose_flags_and_examples_in_80_columns(name, capsys):
    whole, *kinds = helps(name, capsys)
    purpose = whole.partition("\n\n")[0].replace("\n", " ")
    assert purpose[0].isupper() or purpose[0].isdigit()
    assert purpose.endswith(".")
    assert f"Usage:\n  python -m {name}" in whole
    assert len(examples(whole)) >= 1
    for text in (whole, *kinds):
        assert max(map(len, text.splitlines())) <= 80
        assert ESCAPE not in text


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_flag_says_what_it_is(name):
    parser = parser_of(name)
    rows = [row for one in (parser, *parser.kinds.values()) for section in one.sections.values() for row in section]
    assert all(text for _, text in rows)


@pytest.mark.parametrize("name", PROGRAMS)
def test_examples_can_be_typed(name, capsys):
    for _, _, module, *arguments in examples(next(helps(name, capsys))):
        if module == "train.launch":
            arguments = program(module).parse(arguments)[2]
            module = "train.main"
        flags = parser_of(module).parse_args(arguments)
        if module in ("train.main", "train.sweep"):
            spec = flags.config.replace("DIR", ".")
            loading.resolve(spec, flags.overrides)


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_unknown_flag_is_one_sentence_and_2(name, capsys):
    code, out, err = run(name, "--no-such-flag", capsys=capsys)
    assert (code, out) == (2, "")
    assert re.fullmatch(r"error: Unknown argument '--no-such-flag'\..*\n", err)


def test_colours_are_for_terminals_whose_user_wants_them(monkeypatch):
    def show():
        cli.mistake("No.")

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert on_a_terminal(show) == "\x1b[1;31merror:\x1b[0m No.\r\n"
    assert f"{ESCAPE}1mExamples:" in on_a_terminal(lambda: program("train.main").main(["--help"]))
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert on_a_terminal(show) == "error: No.\r\n"


@pytest.fixture
def parser():
    made = cli.Parser("Makes.\n\npython -m a.b --count=1 'a b'\n\nMore words.")
    made.add_argument("words", nargs="*", help="some")
    made.add_argument("--count", type=cli.count, default=3, help="how many")
    made.add_argument("--ratio", type=float, help="of both")
    made.add_argument("--colour", choices=("red", "green"), help="of it")
    made.add_argument("--again", action="append", help="and again")
    made.add_argument("--out", type=cli.new_file, help="where to")
    made.add_overrides()
    return made


def test_flags_and_overrides_come_in_any_order(parser):
    for arguments in (["a", "--config.x.y=1", "--count=2"], ["--count", "2", "--config.x.y", "1", "a"]):
        flags = parser.parse_args(arguments)
        assert (flags.words, flags.count, flags.overrides) == (["a"], 2, {"x.y": "1"})
    assert parser.parse_args(["--again=1", "--again=2", "--config.x=-1"]).again == ["1", "2"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cuont=1"], "Unknown argument '--cuont'. Did you mean '--count'?"),
        (["--count=0"], "--count must be a whole number from 1 on, but it is '0'."),
        (["--count=x"], "--count must be a whole number from 1 on, but it is 'x'."),
        (["--count"], "--count needs a value: write --count=VALUE."),
        (["--count=1", "--count=2"], "--count is given twice; give it once."),
        (["--ratio=half"], "--ratio must be a number, but it is 'half'."),
        (["--colour=gren"], "Unknown --colour 'gren'. Did you mean 'green'? Valid: green, red."),
        (["--out=/no/such/folder/a.json"], "--out must be a file in a folder that can be written"),
        (["--config.x"], "--config.x needs a value: write --config.x=VALUE."),
        (["--config.x=1", "--config.x=2"], "--config.x is given twice, as '1' and '2'; give it once."),
    ],
)
def test_mistakes_are_one_sentence(parser, capsys, arguments, message):
    assert cli.run(lambda: parser.parse_args(arguments) and None) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: {message}")
    assert err.count("\n") == 1


def test_the_last_folder_of_a_file_to_write_is_made(parser, tmp_path):
    parser.parse_args([f"--out={tmp_path}/runs/page.html"])
    assert (tmp_path / "runs").is_dir()
    with pytest.raises(cli.UsageError, match="must be a file in a folder that can be written"):
        parser.parse_args([f"--out={tmp_path}/no/such/page.html"])
    assert not (tmp_path / "no").exists()


def test_help_is_made_of_the_docstring(parser):
    text = parser.format_help()
    assert text.startswith("Makes.\n\nMore words.\n\nUsage:\n  python -m a.b WORDS ... [flags]\n")
    assert "--count=N" in text
    assert "how many; default 3" in text
    assert text.endswith("Examples:\n  python -m a.b --count=1 'a b'\n")


def test_what_ends_a_program_is_its_exit_code(capsys, tmp_path):
    def raising(error):
        def program():
            raise error

        return cli.run(program)

    assert cli.run(lambda: None) == 0
    assert cli.run(lambda: 1) == 1
    assert raising(KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == ""
    assert cli.run(lambda: (tmp_path / "none").read_text() and None) == 2
    assert capsys.readouterr().err == f"error: {tmp_path / 'none'}: No such file or directory.\n"
    with pytest.raises(ZeroDivisionError):  # a bug is no mistake of the user's
        raising(ZeroDivisionError())
