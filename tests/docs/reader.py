"""Does what a block of a page says, and looks up what it names."""

import ast
import contextlib
import glob
import importlib.util
import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import jaxtyping

from attention.errors import unknown
from tests.conftest import ROOT
from tests.docs.pages import ENDS, Block, PageError
from tests.test_programs import parser_of
from tests.test_programs import program as source
from train import launch, loading
from train.config.schema import MeshConfig
from train.dry_run import dry
from train.grids import grid, pool
from train.loading.leaves import LEAVES
from train.main import LIST

OURS = ("analysis", "attention", "benchmarks", "docs", "models", "notebooks", "studies", "tests", "train")
SHORT = {"train.length": "2 steps"}
TRAINING = ("train.main", "train.launch", "train.sweep")
FILES = re.compile(r"\b(?:(?:tests|benchmarks|docs)/[\w/]+\.\w+|requirements[\w-]*\.txt)")
TARGETS = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)


def types(block: Block) -> None:
    """Does what a block says, as far as its mark does."""
    kind = block.mark.kind
    if block.mark.changes and not trains(block):
        raise PageError(f"line {block.line}: nothing is trained, so the mark's fields change nothing")
    if block.mark.package and not importlib.util.find_spec(block.mark.package):
        return
    runs = kind not in ("dry-run", "not run")
    for example in block.examples[:-1] if runs else ():
        example.evaluate()  # what the block needs, such as a run whose config it reads
    if kind != "fails":
        look_up(block)
    if kind == "dry-run":
        dry_run(block)
    elif runs:
        for example in block.examples[-1:] if block.language == "python" else ():
            example.evaluate()
        for words in block.commands:
            command([os.path.expandvars(word) for word in words], block)


def command(words: Sequence[str], block: Block) -> None:
    """Runs one command, a program of ours in this process."""
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
    """Changes fields of the config in flags, and takes two seeds."""
    flags = {f"--config.{field}": text for field, text in changes.items()}
    kept = [re.sub(r"^--seeds=\d+", "--seeds=2", word) for word in arguments if word.partition("=")[0] not in flags]
    return kept + [f"{flag}={text}" for flag, text in flags.items()]


def program(module: str, arguments: Sequence[str]) -> tuple[int, str]:
    """Runs `python -m module`, in this process unless it is a dry run, which needs other devices."""
    if "--dry-run" in arguments:
        line = [sys.executable, "-m", module, *arguments]
        done = subprocess.run(line, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr
    printed = io.StringIO()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    jaxtyping.config.update("jaxtyping_disable", True)  # as users run
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            return source(module).main(list(arguments)), printed.getvalue()
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def runs_in_turn(
    todo: Mapping[Path, Sequence[str]], jobs: int, ended: pool.Ended, watch: pool.Watch = lambda running: None
) -> dict[Path, str]:
    """Replaces `pool.run_all` without processes, whose starts take most of the time of such short runs."""
    outcomes = {}
    for path, words in todo.items():
        module = words.index("-m") + 1
        code, printed = program(words[module], words[module + 1 :])
        pool.log_of(path).write_text(printed)
        outcomes[path] = pool.FAILED if code else pool.FINISHED
        ended(path, outcomes[path], 0.0)
    return outcomes


def trains(block: Block) -> bool:
    """Tells whether a block trains something."""
    return any(module in TRAINING for module, _ in block.programs)


def dry_run(block: Block) -> None:
    """Builds the shapes of what commands train, or of the first setting of a sweep, on a mesh of one device."""
    if not trains(block):
        raise PageError(f"line {block.line}: nothing is trained, so there is no dry run; say 'not run'")
    for module, arguments in block.programs:
        if module in TRAINING:
            config, _ = loading.resolve(*next(settings(module, changed(arguments, block.mark.changes))))
            dry.DryRun.of(replace(config, mesh=MeshConfig(1, 1, 1)))


def look_up(block: Block) -> None:
    """Finds the modules, flags, fields of configs, files and targets that a block names."""
    if block.language == "python":
        imports = (node for node in ast.walk(ast.parse(block.text)) if isinstance(node, ast.ImportFrom))
        exec("\n".join(ast.unparse(node) for node in imports if node.module.partition(".")[0] in OURS), {})
        return
    if missing := [name for name in FILES.findall(block.text) if not (ROOT / name).is_file()]:
        raise PageError(f"line {block.line}: there is no {missing[0]}")
    made = " ".join(re.findall(r"^make (.+)$", block.text, re.MULTILINE)).split()
    if missing := [target for target in made if target not in TARGETS]:
        raise PageError(f"line {block.line}: make has no target {missing[0]}")
    for module, arguments in block.programs:
        for spec, overrides in settings(module, arguments):
            loading.resolve(spec, overrides)


def settings(module: str, arguments: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yields the specs and overrides of the configs that a command names, once its program has taken its flags."""
    if module.partition(".")[0] not in OURS:
        return
    if module == "train.launch":
        module, arguments = "train.main", launch.parse(arguments)[2]
    parser = parser_of(module)
    if not parser:
        return
    with contextlib.chdir(ROOT):
        flags = parser.parse_args(arguments)
    overrides, spec = flags.overrides, getattr(flags, "config", "")
    if wrong := sorted(overrides.keys() - LEAVES.keys()):
        raise unknown("config field", f"--config.{wrong[0]}", [f"--config.{name}" for name in LEAVES])
    if not spec or spec == LIST:
        return
    over = grid.over(getattr(flags, "over", []), overrides, "")
    for field, value in ((field, value) for field, values in over.items() for value in values):
        yield (f"{spec}:{value}", overrides) if field == "argument" else (spec, {**overrides, field: value})
    if not over:
        yield spec, overrides
