"""All programs meet their user alike: help, mistakes, exit codes, colours."""

import importlib
import shlex
from types import SimpleNamespace

import pytest

from analysis import compare, report
from analysis.pictures import __main__ as pictures
from analysis.pictures import attention_maps
from tests.conftest import ROOT
from train import cli, loading, sweep
from train.cli import terminal
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


def examples(text):
    """Commands of a help, in one line each."""
    lines = text.partition("Examples:\n")[2].replace("\\\n", " ").splitlines()
    return [shlex.split(line[line.index("python -m") :]) for line in lines]


def test_help_imports_nothing_that_takes_long(run_python):
    code = """
import contextlib, runpy, sys
names = sys.argv[1:]
sys.argv[1:] = ["--help"]
for name in names:
    with contextlib.suppress(SystemExit):
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    slow = {"datasets", "flax", "grain", "matplotlib", "optax", "orbax", "scipy", "tensorstore"} & sys.modules.keys()
    assert not slow, (name, slow)
"""
    run_python("-c", code, *sorted({*console.PROGRAMS.values(), "analysis.pages"} - {"train.mechanisms"}))


def test_what_flags_offer_is_what_there_is():
    """Where it takes long to import, the flags have it written out."""
    assert tuple(matching.EQUAL) == sweep.EQUAL
    assert pictures.STACKS == attention_maps.STACKS
    assert ", ".join(compare.BUDGETS) in report.main.parser().format_help()


@pytest.mark.parametrize("name", PROGRAMS)
def test_help_has_purpose_flags_and_examples_in_80_columns_and_a_mistake_is_one_sentence(name, capsys, refused):
    parser = parser_of(name)
    assert program(name).main(["--help"]) == 0
    whole = capsys.readouterr().out
    assert whole.partition("\n\n")[0].endswith(".")
    assert f"Usage:\n  python -m {name}" in whole
    assert len(examples(whole)) >= 1
    for text in (whole, *(kind.format_help() for kind in parser.kinds.values())):
        assert max(map(len, text.splitlines())) <= 80
        assert ESCAPE not in text
    assert refused(program(name).main, ["--no-such-flag"]).startswith("error: Unknown argument '--no-such-flag'.")


@pytest.mark.parametrize("name", PROGRAMS)
def test_examples_can_be_typed(name):
    for _, _, module, *arguments in examples(parser_of(name).format_help()):
        if module == "train.launch":
            arguments = program(module).parse(arguments)[2]
            module = "train.main"
        flags = parser_of(module).parse_args(arguments)
        if module in ("train.main", "train.sweep"):
            spec = flags.config.replace("DIR", ".")
            loading.resolve(spec, flags.overrides)


def test_colours_are_for_terminals_whose_user_wants_them(monkeypatch):
    screen = SimpleNamespace(isatty=lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert terminal.styled("error:", terminal.RED, screen) == "\x1b[1;31merror:\x1b[0m"
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert terminal.styled("error:", terminal.RED, screen) == "error:"


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
        (["--out=/dev/null"], "--out must be a file, but '/dev/null' is a device or a pipe"),
        (["--config.x"], "--config.x needs a value: write --config.x=VALUE."),
        (["--config.x=1", "--config.x=2"], "--config.x is given twice, as '1' and '2'; give it once."),
    ],
)
def test_mistakes_are_one_sentence(parser, refused, arguments, message):
    said = refused(lambda arguments: cli.run(lambda: parser.parse_args(arguments) and None), arguments)
    assert said.startswith(f"error: {message}")


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
