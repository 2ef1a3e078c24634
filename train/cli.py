"""How every program meets its user: one form of flags, help, mistakes, exit codes and colours.

Exit codes are 0 done, 1 it failed, 2 a mistake of the user's, which is told in one sentence, and 130 after Ctrl-C.
"""

import argparse
import io
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from attention.errors import UsageError, unknown

DONE, FAILED, MISTAKE, INTERRUPTED = 0, 1, 2, 130
COLUMNS = 80
BOLD, RED = "1", "1;31"
OVERRIDE = "--config."
_COMMAND = re.compile(r"(?:taskset .*)?(python -m [\w.]+)")
_WORD = re.compile(r"""(?:[^\s"']|"[^"]*"|'[^']*')+""")


def run(program: Callable[[], int | None], speaks: Callable[[], bool] = lambda: True) -> int:
    """Runs a program to its end or its mistake, which is told once; returns the exit code.

    Args:
      program: The program, which may return an exit code of its own.
      speaks: Whether this process, of several that make the same mistake, is the one that tells of it.
    """
    try:
        code = program() or DONE
        sys.stdout.flush()
    except (UsageError, FloatingPointError) as error:  # the latter is a loss that is not finite
        if speaks():
            mistake(str(error))
        return MISTAKE if isinstance(error, UsageError) else FAILED
    except BrokenPipeError:  # whoever read, such as head, has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except OSError as error:
        if error.filename is None:
            raise
        return mistake(f"{error.filename}: {error.strerror}.")
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as end:  # argparse's, after --help
        return end.code or DONE
    return code


def mistake(sentence: str) -> int:
    """Tells of a user's mistake; returns its exit code."""
    print(styled("error:", RED, sys.stderr), sentence, file=sys.stderr, flush=True)
    return MISTAKE


def styled(text: str, style: str, stream: io.TextIOBase) -> str:
    """Text in a style of ANSI's, such as `BOLD`, where the stream is a terminal that shows it."""
    return f"\x1b[{style}m{text}\x1b[0m" if coloured(stream) else text


def coloured(stream: io.TextIOBase) -> bool:
    """Whether a stream is a terminal whose user wants colours (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def filled(text: str) -> str:
    """A line as several of at most `COLUMNS`, the others indented; paths and the like stay whole."""
    return textwrap.fill(text, COLUMNS, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def count(text: str) -> int:
    """A flag's type: a whole number from 1 on."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 on, but it is {text!r}")
    return int(text)


def new_file(text: str) -> Path:
    """A flag's type: a file that can be written, which is better known before hours of work than after."""
    path = Path(text)
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"must be a file in a folder that can be written, but it is {text!r}")
    return path


class Parser(argparse.ArgumentParser):
    """The flags of a program.

    Args:
      doc: The docstring of its module. The first paragraph is the purpose, paragraphs of `python -m ...` lines are the
        examples, of which the first names the program, and others explain. Subcommands have none.
      options: Of argparse.
    """

    def __init__(self, doc: str = "", **options: Any):
        if doc:
            options |= _parts(doc)
        super().__init__(formatter_class=_Help, allow_abbrev=False, **options)
        self._positionals.title, self._optionals.title = "Arguments", "Flags"
        self.register("type", int, _whole)
        self.register("type", float, _number)

    def add_overrides(self) -> None:
        """Takes `--config.FIELD=VALUE` too; what `parse_args` returns has them as `overrides`, from field to text."""
        # For --help and suggestions: they are taken out before argparse sees them.
        self.add_argument(f"{OVERRIDE}FIELD", help="overrides a leaf of the config; docs/configs.md has all")

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> argparse.Namespace:
        """The flags, which come in any order.

        Raises:
          UsageError: a flag that is unknown, missing, given twice or without a value, or a value that cannot be.
        """
        given = list(sys.argv[1:] if args is None else args)
        overrides, own = self._overrides(given)
        self._check_names(own)
        flags, rest = self.parse_known_args(own, namespace)
        if rest:
            raise unknown("argument", rest[0], set(self._names()))
        vars(flags).pop(f"{OVERRIDE[2:]}FIELD", None)
        flags.overrides = overrides
        return flags

    def format_help(self) -> str:
        """Purpose, usage, flags, examples."""
        made = self._get_formatter()
        made.add_text(self.description)
        made.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        for group in self._action_groups:
            made.start_section(group.title)
            made.add_text(group.description)
            made.add_arguments(group._group_actions)
            made.end_section()
        made.add_text(self.epilog)
        return made.format_help()

    def error(self, message: str) -> None:
        """One sentence, as everywhere."""
        name, _, what = message.removeprefix("argument ").partition(": ")
        if name == "the following arguments are required":
            raise UsageError(f"Something is missing: {what}; --help shows examples.")
        if what.startswith("expected") and "one argument" in what:
            raise UsageError(f"{name} needs a value: write {name}=VALUE.")
        if what.startswith("ignored explicit argument"):
            raise UsageError(f"{name} takes no value: write {name} alone.")
        if what.startswith("must be"):
            raise UsageError(f"{name} {what}.")
        raise UsageError(f"{message[0].upper()}{message[1:]}; --help shows examples.")

    def _overrides(self, given: list[str]) -> tuple[dict[str, str], list[str]]:
        """Fields of the config with their values, and what is left."""
        overrides: dict[str, str] = {}
        own: list[str] = []
        takes = f"{OVERRIDE}FIELD" in self._option_string_actions
        while given:
            argument = given.pop(0)
            name, equals, value = argument.partition("=")
            if not (takes and name.startswith(OVERRIDE)):
                own.append(argument)
                continue
            if not equals and (not given or given[0].startswith("--")):
                raise UsageError(f"{name} needs a value: write {name}=VALUE.")
            field, value = name.removeprefix(OVERRIDE), value if equals else given.pop(0)
            if field in overrides:
                raise UsageError(f"{name} is given twice, as {overrides[field]!r} and {value!r}; give it once.")
            overrides[field] = value
        return overrides, own

    def _check_names(self, given: list[str]) -> None:
        """Argparse would tell of unknown flags last, and take the last of two."""
        flags = given[: given.index("--")] if "--" in given else given
        names = [argument.partition("=")[0] for argument in flags if argument.startswith("--")]
        once = (argparse._StoreAction, argparse._StoreTrueAction)
        for name in names:
            if name not in (valid := self._names()):
                raise unknown("argument", name, set(valid))
            if isinstance(self._option_string_actions.get(name), once) and names.count(name) > 1:
                raise UsageError(f"{name} is given twice; give it once.")

    def _names(self) -> list[str]:
        """All flags, of subcommands too."""
        own = [name for name in self._option_string_actions if name.startswith("--")]
        kinds = [action.choices for action in self._actions if isinstance(action, argparse._SubParsersAction)]
        return own + [name for each in kinds for kind in each.values() for name in kind._names()]

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            raise unknown(_called(action), value, map(str, action.choices))


class _Help(argparse.HelpFormatter):
    """At most `COLUMNS` wide; flags as they are written, `--name=VALUE`; values without them; headings in bold."""

    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=26, width=min(COLUMNS, shutil.get_terminal_size().columns))

    def add_usage(self, usage, actions, groups, prefix=None):
        """What is needed."""
        needed = [self._format_action_invocation(each) for each in actions if each.required or not each.option_strings]
        lines = _wrapped(" ".join([self._prog, *needed, "[flags]"]), self._width - 2)
        self._add_item("\n  ".join, [[styled("Usage:", BOLD, sys.stdout), *lines]])
        self._add_item(str, ["\n\n"])

    def start_section(self, heading):
        """Its heading in bold."""
        super().start_section(heading and styled(heading, BOLD, sys.stdout))

    def _format_action_invocation(self, action):
        if not action.option_strings:
            return action.metavar or f"{action.dest.upper()}{' ...' if action.nargs in ('*', '+') else ''}"
        name = action.option_strings[-1]
        if action.nargs == 0:
            return name
        value = action.metavar or "|".join(map(str, action.choices or ())) or _PLACEHOLDERS.get(action.type, "VALUE")
        return f"{name} {value} ..." if action.nargs in ("*", "+") else f"{name}={value}"

    def _get_help_string(self, action):
        default = action.default
        shown = isinstance(default, str | int | float) and default not in ("", False, argparse.SUPPRESS)
        return f"{action.help}; {default} without it" if shown and "without" not in action.help else action.help

    def _fill_text(self, text, width, indent):
        return "\n\n".join(_paragraph(part, width) for part in text.split("\n\n"))


def _paragraph(text: str, width: int) -> str:
    """Words; a paragraph of several lines, the first of which is a heading, is of commands."""
    heading, *commands = text.splitlines()
    if not commands:
        return textwrap.fill(heading, width, break_on_hyphens=False)
    lines = [line for each in commands for line in _wrapped(each, width - 2)]
    return "\n".join([styled(heading, BOLD, sys.stdout), *(f"  {line}" for line in lines)])


def _wrapped(command: str, width: int) -> list[str]:
    """The lines of a command, continued as a shell takes it."""
    lines = [""]
    for word in _WORD.findall(command):
        if lines[-1].strip() and len(lines[-1]) + len(word) + 3 > width:
            lines[-1] += " \\"
            lines.append("   ")
        lines[-1] += f" {word}" if lines[-1] else word
    return lines


def _parts(doc: str) -> dict[str, str]:
    """A docstring as argparse's texts."""
    paragraphs = [[line.strip() for line in part.splitlines()] for part in textwrap.dedent(doc).strip().split("\n\n")]
    examples = [line for part in paragraphs for line in part if _COMMAND.match(part[0])]
    texts = [" ".join(part).replace("`", "") for part in paragraphs if not _COMMAND.match(part[0])]
    return {
        "prog": _COMMAND.match(examples[0])[1],
        "description": "\n\n".join(texts),
        "epilog": "\n".join(["Examples:", *examples]),
    }


_PLACEHOLDERS = {int: "N", count: "N", float: "X", Path: "PATH", new_file: "FILE"}


def _called(action: argparse.Action) -> str:
    return action.option_strings[-1] if action.option_strings else str(action.metavar or action.dest)


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be a whole number, but it is {text!r}") from error


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be a number, but it is {text!r}") from error
