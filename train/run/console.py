"""The command `attention-bench`: every program by a short name, from any folder.

A program starts as `python -m` would start it, but Python does not look for it in the current folder, where a user's
own `train.py` or `models/` would hide ours.
"""

import ast
import importlib.util
import os
import runpy
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from attention.errors import unknown
from train import cli
from train.cli import terminal

NAME = "attention-bench"
COMMAND = "ATTENTION_BENCH_COMMAND"  # what to type to continue, if another program started this process
PROGRAMS = {
    "train": "train.main",
    "sweep": "train.sweep",
    "report": "analysis.report",
    "evaluate": "train.evaluate",
    "generate": "train.generate",
    "translate": "train.translate",
    "score": "train.score",
    "trials": "train.trials",
    "pictures": "analysis.pictures",
    "explore": "analysis.explore",
    "archive": "analysis.archive",
    "mechanisms": "train.mechanisms",
    "check": "attention.check",
    "launch": "train.launch",
}


def command(module: str) -> list[str]:
    """Makes the command that starts a program in a new process, which finds it where this process would."""
    here = sys.path[:1] in ([""], [os.getcwd()])
    return [sys.executable, *([] if here else ["-P"]), "-m", module]


def typed(module: str, arguments: Sequence[str], *more: str) -> str:
    """Repeats this process's command line, of a `module` with `arguments`, with `more` in place of --workdir."""
    _, rest = cli.taken(arguments, "--workdir".__eq__)
    return shlex.join([*_start(module, len(arguments)), *rest, *more])


def _start(module: str, arguments: int) -> list[str]:
    """Finds what precedes the last so many arguments on this process's command line."""
    start = sys.orig_argv[: len(sys.orig_argv) - arguments]
    if start[-2:] == ["-m", module]:
        return start
    if len(start) > 2 and Path(start[-2]).name == NAME:
        return [NAME if shutil.which(NAME) == start[-2] else start[-2], start[-1]]
    return ["python", "-m", module]  # the program was called as a function


def main() -> int:
    """Runs the program that the command line names; without one, or with --help, lists all of them."""
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("--help", "-h"):
        return cli.run(lambda: print(listing()))
    if name not in PROGRAMS:
        return cli.mistake(str(unknown("command", name, PROGRAMS)))
    sys.argv[1:] = arguments
    runpy.run_module(PROGRAMS[name], run_name="__main__", alter_sys=True)
    return cli.DONE


def listing() -> str:
    """Lists the commands, each with its purpose, the first paragraph of its module's docstring."""
    lines = [line for name in PROGRAMS for line in terminal.row(name, _purpose(PROGRAMS[name]), 14, terminal.COLUMNS)]
    usage = terminal.block("Usage", [f"{NAME} COMMAND [flags]", f"{NAME} COMMAND --help"])
    return f"{usage}\n\n{terminal.block('Commands', lines)}"


def _purpose(module: str) -> str:
    spec = importlib.util.find_spec(module)
    if spec.submodule_search_locations:
        spec = importlib.util.find_spec(f"{module}.__main__")
    text = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8")))
    return " ".join(text.split("\n\n")[0].split())
