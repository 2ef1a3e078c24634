"""Does what a block of a page says, and looks up what it names."""

import ast
import contextlib
import functools
import glob
import importlib.util
import io
import os
import re
import runpy
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import jaxtyping

from attention.errors import UsageError
from docs.make_configs import page as page_of_fields
from tests.conftest import ROOT
from tests.docs.pages import ENDS, Block, PageError
from train.config import loading
from train.config.schema import MeshConfig
from train.devices import dry
from train.grids import grid, pool
from train.main import DEFAULT_CONFIG

OURS = ("analysis", "attention", "benchmarks", "docs", "models", "notebooks", "tests", "train")
SHORT = {"train.length": "2 steps"}
TRAINING = ("train.main", "train.launch", "train.sweep")
HARMLESS = ("cat", "head", "ls", "mkdir")
FLAG = re.compile(r"--[a-z][\w-]*")


def types(block: Block) -> None:
    """Does what a block says, as far as its mark does.

    Raises:
      PageError: it cannot be done.
    """
    kind = block.mark.kind
    if kind != "fails" and (mistakes := look_up(block)):
        raise PageError(f"line {block.line}: {'; '.join(mistakes)}")
    if kind == "dry-run":
        dry_run(block)
    elif kind != "not run":
        *invisible, shown = block.examples
        for example in invisible + [shown] * (block.language == "python"):
            example.evaluate()
        for words in block.commands:
            command([os.path.expandvars(word) for word in words], block)


def command(words: Sequence[str], block: Block) -> None:
    """Runs one command, a program of ours in this process.

    Raises:
      PageError: it is none of those that are run, or fails.
    """
    if words[0] in HARMLESS and not set(words) & set(ENDS):
        subprocess.run(words, check=True, capture_output=True)
        return
    if words[:2] != ["python", "-m"] or set(words) & set(ENDS):
        raise PageError(f"line {block.line}: {' '.join(words)!r} is not run here; put a mark before it")
    module, *arguments = words[2:]
    arguments = [name for word in arguments for name in (sorted(glob.glob(word)) or [word])]
    if module in TRAINING:
        arguments = changed(arguments, SHORT | block.mark.changes)
    code, printed = program(module, arguments)
    if code != (2 if block.mark.kind == "fails" else 0):
        raise PageError(f"line {block.line}: python -m {module} ends with {code}: {printed[-600:]}")


def changed(arguments: Sequence[str], changes: Mapping[str, str]) -> list[str]:
    """Flags with such fields of the config in place of their own, and two seeds."""
    flags = {f"--config.{field}": text for field, text in changes.items()}
    own = [re.sub(r"^--seeds=\d+", "--seeds=2", word) for word in arguments if word.partition("=")[0] not in flags]
    return own + [f"{flag}={text}" for flag, text in flags.items()]


def program(module: str, arguments: Sequence[str]) -> tuple[int, str]:
    """Exit code and output of `python -m module`: in this process, but for a dry run, which has devices of its own."""
    if "--dry-run" in arguments:
        line = [sys.executable, "-m", module, *arguments]
        done = subprocess.run(line, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed), _as_it_was():
        sys.argv = [module, *arguments]
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=False)
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(bool(ended.code))
            return code, printed.getvalue() + str(ended.code)
    return 0, printed.getvalue()


@contextlib.contextmanager
def _as_it_was() -> Iterator[None]:
    """Puts back what programs change of a process; they run as users do, without checks of shapes."""
    argv, numbers = sys.argv, (signal.SIGINT, signal.SIGTERM)
    handlers = [signal.getsignal(number) for number in numbers]
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*found in sys.modules after import", category=RuntimeWarning)
            yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
        sys.argv = argv
        for number, handler in zip(numbers, handlers, strict=True):
            signal.signal(number, handler)


def runs_in_turn(todo: Mapping[Path, Sequence[str]], jobs: int, ended: Callable[[Path, str], None]) -> dict[Path, str]:
    """In place of `pool.run_all`: no processes, whose starts take most of the time of so short runs."""
    outcomes = {}
    for path, words in todo.items():
        code, printed = program(words[2], words[3:])
        pool.log_of(path).write_text(printed)
        outcomes[path] = pool.FAILED if code else pool.FINISHED
        ended(path, outcomes[path])
    return outcomes


def trains(block: Block) -> bool:
    """Whether something is to be trained."""
    return any(words[0] in TRAINING for words in block.programs)


def dry_run(block: Block) -> None:
    """Builds as shapes what training commands train, on a mesh of one device.

    Raises:
      PageError: none of them trains.
      UsageError: as the program would.
    """
    if not trains(block):
        raise PageError(f"line {block.line}: nothing is trained, so there is no dry run; say 'not run'")
    for arguments in (words for module, *words in block.programs if module in TRAINING):
        spec, overrides, _ = _flags(changed(arguments, block.mark.changes))
        config, _ = loading.resolve(spec or DEFAULT_CONFIG, overrides)
        dry.DryRun.of(replace(config, mesh=MeshConfig(1, 1, 1)))


def look_up(block: Block) -> list[str]:
    """What a block names and is not there: modules, flags, fields of configs, files, targets."""
    if block.mark.changes and not trains(block):
        return [f"nothing is trained, so {', '.join(block.mark.changes)} changes nothing"]
    if block.language == "python":
        return list(_imports(block.text))
    mistakes = [mistake for words in block.commands for mistake in _files(words)]
    for words in block.programs:
        mistakes += _program(words)
    return mistakes


def _imports(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] in OURS and _source(node.module):
            module = importlib.import_module(node.module)
            names = (alias.name for alias in node.names)
            yield from (
                f"{node.module} has no {name}"
                for name in names
                if not (hasattr(module, name) or _source(f"{node.module}.{name}"))
            )


def _files(words: Sequence[str]) -> Iterator[str]:
    for before, word in zip(["", *words], words, strict=False):
        if before in ("-r", "-c") and word.endswith(".txt") and not (ROOT / word).is_file():
            yield f"there is no {word}"
        if re.fullmatch(r"(tests|configs|benchmarks|docs)/[\w/]+\.\w+", word) and not (ROOT / word).is_file():
            yield f"there is no {word}"
    if words[0] == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        yield from (f"make has no target {word}" for word in words[1:] if word not in targets)


def _source(module: str) -> str:
    """The file of a module; '' where there is none."""
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        return ""
    return (spec.origin or module) if spec else ""


def _program(words: Sequence[str]) -> Iterator[str]:
    module, *arguments = words
    if not _source(module):
        yield f"there is no module {module}"
        return
    if module.partition(".")[0] not in OURS:
        return
    own, rest = arguments, []
    if "--" in arguments:  # what stands behind is train.main's
        own, rest = arguments[: arguments.index("--")], arguments[arguments.index("--") + 1 :]
        yield from _program(["train.main", *rest])
    spec, overrides, flags = _flags(own)
    if flags:
        kind = "" if own[0].startswith("-") else own[0]
        yield from (f"python -m {module} has no {flag}" for flag in flags if flag not in known_flags(module, kind))
    yield from _config(spec or (DEFAULT_CONFIG if module == "train.main" else ""), overrides, _over(own))


def _config(spec: str, overrides: Mapping[str, str], over: Sequence[str]) -> Iterator[str]:
    """Mistakes in a config's flags, those of a grid included."""
    try:
        if spec == "list":  # of all configs
            return
        if not spec:
            yield from (f"no config has {name}" for name in overrides if f"| `{name}` |" not in page_of_fields())
            return
        for field, values in (grid.over(over, overrides, "") if over else {"": [""]}).items():
            for value in values:
                ours, file = (
                    (overrides, f"{spec}:{value}") if field == "argument" else ({**overrides, field: value}, spec)
                )
                loading.resolve(file, {name: text for name, text in ours.items() if name})
    except UsageError as error:
        yield str(error)


def _flags(arguments: Sequence[str]) -> tuple[str, dict[str, str], list[str]]:
    """The config's spec, its overrides, and the names of all other flags."""
    spec, overrides, flags, rest = "", {}, [], [*arguments]
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if name == "--config" or name.startswith("--config."):
            value = value if equals else rest.pop(0)
            spec, overrides = (value, overrides) if name == "--config" else (spec, overrides | {name[9:]: value})
        elif FLAG.fullmatch(name):
            flags.append(name)
    return spec, overrides, flags


def _over(arguments: Sequence[str]) -> list[str]:
    apart = [after for word, after in pairwise(arguments) if word == "--over"]
    return apart + [word.removeprefix("--over=") for word in arguments if word.startswith("--over=")]


@functools.cache
def known_flags(module: str, kind: str) -> set[str]:
    """The flags that a program's help names; of one that does several things, the help of that."""
    return set(FLAG.findall(program(module, [*filter(None, [kind]), "--help"])[1]))
