"""The command line of every program: flags, help, mistakes in one sentence, exit codes and colours.

Exit codes: 0 done, 1 failed, 2 the user's mistake, 3 one of several processes failed alone, 4 a loss that is not
finite, 130 after Ctrl-C, 141 when nobody reads what a program prints.
"""

import argparse
import contextlib
import ctypes
import functools
import logging
import os
import re
import signal
import sys
import textwrap
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attention.defining import files as code
from attention.errors import UsageError, check_known, shortened, unknown, visible
from train.cli import files, terminal

DONE, FAILED, MISTAKE, ALONE, DIVERGED, INTERRUPTED = 0, 1, 2, 3, 4, 130
MOST = 2**16  # the most devices, processes or seeds, each of which is made
HELP_COLUMN = 26  # the rightmost column in which explanations start
OVERRIDE = "--config."
_NO_TEXT = re.compile("[\0\ud800-\udfff]")  # Python reads bytes that are not UTF-8 as the latter
# The options of glibc's mallopt, as <malloc.h> numbers them: MMAP_MAX, TRIM_THRESHOLD, TOP_PAD and ARENA_MAX.
_KEEPING = {-4: 0, -1: 2**31 - 1, -2: 2**28, -8: 1}
_COMMAND = re.compile(r"(?:taskset .*)?(python -m [\w.]+)")


def run(
    program: Callable[[], int | None],
    speaks: Callable[[], bool] = lambda: True,
    lasting: bool = False,
    verbatim: bool = False,
) -> int:
    """Runs a program, reports the user's mistake if there is one, and returns the exit code.

    Args:
      program: The program, which may return an exit code.
      speaks: Tells whether this process reports the mistake, where several processes find the same one.
      lasting: Whether the program goes on where its output cannot be written, since it does more than print.
      verbatim: Whether the program prints a model's texts; see `terminal.screens`.
    """
    _keep_freed_memory()
    logging.getLogger("huggingface_hub").propagate = False  # it prints by itself, and absl gives the root a handler
    with terminal.screens(lasting, verbatim):
        try:
            code = _code_of(program)
            sys.stdout.flush()
        except (UsageError, FloatingPointError) as error:  # the latter means a loss that is not finite
            if speaks():
                mistake(str(error))
            return MISTAKE if isinstance(error, UsageError) else DIVERGED
        except OSError as error:
            if error.filename is None:
                raise
            return mistake(shortened(f"{error.filename}: {error.strerror}."))
        except KeyboardInterrupt:
            return INTERRUPTED
        except SystemExit as unread:
            return unread.code
        return code


def _keep_freed_memory() -> None:
    """Makes glibc keep the memory that this process frees; has no effect elsewhere, nor on threads that exist.

    XLA allocates a step's buffers anew at every step. Otherwise glibc takes large ones from the kernel and returns them
    at once, and the kernel clears every page each time, which took a quarter of a small GPT's step on a CPU.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    for option, value in _KEEPING.items() if set_option else ():
        set_option(option, value)


def _code_of(program: Callable[[], int | None]) -> int:
    try:
        return program() or DONE
    except SystemExit as end:  # argparse's, after --help
        return end.code or DONE


def flag(*names: str, **options: Any) -> Callable[["Parser"], Any]:
    """Describes a flag or an argument, to be added to a parser; see `Parser.add_argument`."""
    return lambda parser: parser.add_argument(*names, **options)


def program(
    doc: str, *flags: Callable[["Parser"], Any], lasting: bool = False, verbatim: bool = False
) -> Callable[[Callable[[argparse.Namespace], int | None]], Callable[..., int]]:
    """Turns a function of flags into a program's `main`, which reads the flags and returns the exit code.

    `main.parser()` makes the parser.

    Args:
      doc: The docstring of the program's module; see `Parser`.
      flags: What adds the flags to the parser, such as `flag(...)` and `OVERRIDES`.
      lasting, verbatim: See `run`.
    """

    def parser() -> Parser:
        made = Parser(doc)
        for add in flags:
            add(made)
        return made

    def decorate(act: Callable[[argparse.Namespace], int | None]) -> Callable[..., int]:
        @functools.wraps(act)
        def main(arguments: Sequence[str] | None = None) -> int:
            return run(lambda: act(parser().parse_args(arguments)), lasting=lasting, verbatim=verbatim)

        main.parser = parser
        return main

    return decorate


# For programs that load a run. A run may name files of code, which are executed only if the user names them too.
CODE = flag(
    "--code", action="append", metavar="FILE", help="a Python file of mechanisms that a run names; may be repeated"
)


# For programs in which a model generates text.
WRITING = (
    flag("--seed", type=int, default=0, help="random seed"),
    flag("--step", default="best", help="best, last or the number of a step with a checkpoint"),
    flag("--replica", type=int, default=0, help="number of the replica"),
    CODE,
)


@contextlib.contextmanager
def signals_handled(handle: Callable[[int, Mapping[int, Any]], None]) -> Iterator[None]:
    """Calls a function on SIGTERM and SIGINT, with the signal and the former handlers; restores these at the end."""
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():  # other threads cannot set handlers
        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, lambda received, _: handle(received, before))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def mistake(sentence: str) -> int:
    """Reports the user's mistake and returns its exit code."""
    print(terminal.styled("error:", terminal.RED, sys.stderr), visible(sentence), file=sys.stderr, flush=True)
    return MISTAKE


def taken(arguments: Sequence[str], is_wanted: Callable[[str], bool]) -> tuple[list[tuple[str, str | None]], list[str]]:
    """Splits a command line into the wanted flags, each with its value or None, and the other arguments."""
    flags, rest, left = [], [], list(arguments)
    while left:
        argument = left.pop(0)
        name, equals, value = argument.partition("=")
        if not is_wanted(name):
            rest.append(argument)
            continue
        if not equals:
            value = left.pop(0) if left and not left[0].startswith("--") else None
        flags.append((name, value))
    return flags, rest


def count(text: str) -> int:
    """Reads a flag's value as a whole number from 1 to `MOST`."""
    if not text.isdecimal() or not text.strip("0"):
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 on, but it is {text!r}")
    if len(text) > len(str(MOST)) or int(text) > MOST:
        raise argparse.ArgumentTypeError(f"must be at most {MOST}, but it is {text!r}")
    return int(text)


def new_file(text: str) -> Path:
    """Reads a flag's value as a file to write, which is checked, and its folder made, before hours of work."""
    path = Path(text)
    if what := files.obstacle(path):
        raise argparse.ArgumentTypeError(f"must be a file, but {text!r} is {what}")
    with contextlib.suppress(OSError):
        path.parent.mkdir(exist_ok=True)
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"must be a file in a folder that can be written, but it is {text!r}")
    return path


def _choice(name: str, choices: Collection[str], default: Any) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in choices and text != default:
            raise argparse.ArgumentTypeError(str(unknown(name, text, choices)))
        return text

    return read


def _written(action: argparse.Action, placeholder: str) -> str:
    """Writes a flag or an argument as a user types it."""
    several = " ..." if action.nargs in ("*", "+") else ""
    if not action.option_strings:
        return action.metavar or f"{action.dest.upper()}{several}"
    name, value = action.option_strings[-1], action.metavar or placeholder
    if action.nargs == 0:
        return name
    return f"{name} {value}{several}" if several else f"{name}={value}"


NUMBERS = {"int": "a whole number", "float": "a number"}
PLACEHOLDERS = {int: "N", count: "N", float: "X", Path: "PATH", new_file: "FILE"}


class Parser(argparse.ArgumentParser):
    """The flags of a program.

    Args:
      doc: The docstring of the program's module. Paragraphs of `python -m ...` lines are examples, the first of which
        names the program; the other paragraphs explain it.
      program: The command that starts the program, where there is no example.
    """

    def __init__(self, doc: str, program: str = ""):
        self.sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Flags": []}
        self.kinds: dict[str, Parser] = {}
        self.needed: list[str] = []
        self.once: dict[str, bool] = {}  # whether each flag that starts with -- may be given only once
        paragraphs = [textwrap.dedent(text).splitlines() for text in textwrap.dedent(doc).strip().split("\n\n")]
        self.examples = [line.strip() for lines in paragraphs if _COMMAND.match(lines[0]) for line in lines]
        self.texts = [" ".join(lines).replace("`", "") for lines in paragraphs if not _COMMAND.match(lines[0])]
        program = program or _COMMAND.match(self.examples[0])[1]
        super().__init__(prog=program, add_help=False, allow_abbrev=False)
        self.add_argument("-h", "--help", action="help", help="show this help message and exit")

    def add_argument(
        self, *names: str, help: str, section: str = "", choices: Collection[str] | None = None, **options: Any
    ) -> argparse.Action:
        """Adds a flag or an argument as argparse does, with its row in a section of the help."""
        default, is_flag = options.get("default"), names[0].startswith("-")
        placeholder = "|".join(choices or ()) or PLACEHOLDERS.get(options.get("type"), "VALUE")
        if choices is not None:
            options["type"] = _choice(names[-1] if is_flag else options["metavar"], choices, default)
        action = super().add_argument(*names, **options)
        written = _written(action, placeholder)
        shown = isinstance(default, str | int | float) and default not in ("", False, argparse.SUPPRESS)
        explained = f"{help}; default {default}" if shown and "default" not in help else help
        self.sections.setdefault(section or ("Flags" if is_flag else "Arguments"), []).append((written, explained))
        if action.required or not is_flag:
            self.needed.append(written)
        once = options.get("action", "store") in ("store", "store_true")
        self.once |= {name: once for name in names if name.startswith("--")}
        return action

    def add_overrides(self) -> None:
        """Accepts `--config.FIELD=VALUE`, which `parse_args` returns as `overrides`, from field to text."""
        text = "overrides a leaf of the config; docs/configs.md and docs/fields/ list all"
        self.add_argument(f"{OVERRIDE}FIELD", help=text, default=argparse.SUPPRESS)

    def add_kind(self, name: str, text: str) -> "Parser":
        """Adds a subcommand and returns its parser."""
        if not self.kinds:
            explained = "KIND --help says more"
            self.add_argument("kind", metavar="KIND", choices=self.kinds, section="Kinds", help=explained)
        self.sections["Kinds"].append((f"  {name}", text))
        self.kinds[name] = Parser(f"{text[0].upper()}{text[1:]}.", f"{self.prog} {name}")
        return self.kinds[name]

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> argparse.Namespace:
        """Reads the flags, in any order; adds `overrides`, and the command line as `arguments`."""
        given = list(sys.argv[1:] if args is None else args)
        for argument in given:
            if not argument.isprintable() and _NO_TEXT.search(argument):
                raise UsageError(
                    f"The argument {argument!r} is no text in UTF-8; give one that is, and rename the file."
                )
        code.allow(given)
        if given and given[0] in self.kinds:
            return self.kinds[given[0]].parse_args(given[1:], namespace)
        overrides, others = self._split_overrides(given)
        self._check_names(others)
        flags, rest = self.parse_known_args(others, namespace)
        if rest and "--config" in self.once and not rest[0].startswith("-"):
            name, colon, argument = rest[0].partition(":")
            path = name if name.endswith(".py") else f"configs/{name}.py"
            raise UsageError(f"A config is named by a flag: write --config={path}{colon}{argument}, not {rest[0]!r}.")
        if rest:
            raise unknown("argument", rest[0], self._names())
        flags.overrides, flags.arguments = overrides, given
        return flags

    def error(self, message: str) -> None:
        """Raises argparse's message as a `UsageError` of one sentence."""
        name, _, what = message.removeprefix("argument ").partition(": ")
        if name == "the following arguments are required":
            raise UsageError(f"Something is missing: {what}; --help shows examples.")
        if what.startswith("expected") and "one argument" in what:
            raise UsageError(f"{name} needs a value: write {name}=VALUE.")
        if what.startswith("ignored explicit argument"):
            raise UsageError(f"{name} takes no value: write {name} alone.")
        if invalid := re.fullmatch(r"invalid (int|float) value: (.*)", what):
            raise UsageError(f"{name} must be {NUMBERS[invalid[1]]}, but it is {invalid[2]}.")
        if what.startswith(("must be", "Unknown")):
            raise UsageError(what if what.startswith("Unknown") else f"{name} {what}.")
        raise UsageError(f"{message[0].upper()}{message[1:]}; --help shows examples.")

    def _split_overrides(self, given: list[str]) -> tuple[dict[str, str], list[str]]:
        overrides: dict[str, str] = {}
        pairs, rest = taken(given, lambda name: name.startswith(OVERRIDE) and f"{OVERRIDE}FIELD" in self.once)
        for name, value in pairs:
            if value is None:
                raise UsageError(f"{name} needs a value: write {name}=VALUE.")
            field = name.removeprefix(OVERRIDE)
            if field in overrides:
                raise UsageError(f"{name} is given twice, as {overrides[field]!r} and {value!r}; give it once.")
            overrides[field] = value
        return overrides, rest

    def _check_names(self, given: list[str]) -> None:
        """Checks flags before argparse, which reports unknown flags last and uses the last of two values."""
        flags = given[: given.index("--")] if "--" in given else given
        names = [argument.partition("=")[0] for argument in flags if argument.startswith("--")]
        for name in names:
            check_known("argument", name, self._names())
            if self.once.get(name) and names.count(name) > 1:
                raise UsageError(f"{name} is given twice; give it once.")

    def _names(self) -> set[str]:
        return set(self.once).union(*(kind.once for kind in self.kinds.values()))

    def format_help(self) -> str:
        """Writes the purpose, the usage, the flags and the examples, at most 80 columns wide."""
        width = terminal.width()
        column = min(HELP_COLUMN, 4 + max(len(written) for rows in self.sections.values() for written, _ in rows))
        blocks = {"Usage": terminal.wrapped(" ".join([self.prog, *self.needed, "[flags]"]), width - 2)}
        for title, rows in self.sections.items():
            blocks[title] = [line for row in rows for line in terminal.row(*row, column, width)]
        blocks["Examples"] = [line for example in self.examples for line in terminal.wrapped(example, width - 2)]
        texts = [textwrap.fill(text, width, break_on_hyphens=False) for text in self.texts]
        shown = [terminal.block(title, lines) for title, lines in blocks.items() if lines]
        return "\n\n".join(texts + shown) + "\n"


OVERRIDES = Parser.add_overrides
