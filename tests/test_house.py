"""The house stays in order: one name, one class; no room too full, no file or function too long; imports one way."""

import ast
import collections
import functools
import graphlib
import re
from pathlib import Path

import pytest

from tests.conftest import ROOT

# Each imports itself and what stands before it.
ORDER = ("attention", "models", "train", "analysis", "studies", "benchmarks", "docs", "notebooks")
# The floors of train/, from the top: each imports what is below it, and of its own floor nothing but its own room.
FLOORS = (
    {"launch"},
    {"main", "sweep", "evaluate", "generate", "translate", "score", "trials", "mechanisms"},
    {"grids", "decode", "dry_run"},
    {"loop"},
    {"start"},
    {"run"},
    {"setup"},
    {"loading"},
    {"tasks"},
    {"generation", "mesh", "losses"},
    {"step"},
    {"optimizer"},
    {"config", "state"},
    {"data"},
    {"cli"},
)
ROOMS = (*ORDER, "tests")
FULL, LONG_FILE, LONG_FUNCTION = 16, 500, 60


pytestmark = pytest.mark.xdist_group(__name__)  # one process reads all files, once


@functools.cache
def files() -> dict[Path, ast.Module]:
    return {
        path.relative_to(ROOT): ast.parse(path.read_text()) for room in ORDER for path in ROOT.glob(f"{room}/**/*.py")
    }


@functools.cache
def modules() -> dict[str, ast.Module]:
    """The same by the modules' names."""
    return {".".join(path.with_suffix("").parts).removesuffix(".__init__"): tree for path, tree in files().items()}


def imported(tree: ast.Module) -> set[str]:
    """Our modules that a file imports, wherever in it."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            below = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= below & modules().keys() or {node.module}
    return names & modules().keys()


def test_a_class_has_a_name_of_its_own():
    places = collections.defaultdict(list)
    for path, tree in files().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(path.as_posix())
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def test_no_room_is_too_full_and_no_file_is_too_long():
    lengths = {path: len(path.read_text().splitlines()) for room in ROOMS for path in ROOT.glob(f"{room}/**/*.py")}
    rooms = collections.Counter(path.parent for path in lengths)
    assert {room: number for room, number in rooms.items() if number > FULL} == {}
    assert {path: length for path, length in lengths.items() if length > LONG_FILE} == {}


def test_no_function_is_too_long():
    """Docstrings do not count."""
    lengths = {}
    for module, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                docstring = ast.get_docstring(node, clean=False) or ""
                lengths[module, node.name] = node.end_lineno - node.lineno + 1 - len(docstring.splitlines())
    assert {name: length for name, length in lengths.items() if length > LONG_FUNCTION} == {}


def test_imports_point_one_way():
    backward = {
        f"{module} imports {name}"
        for module, tree in modules().items()
        for name in imported(tree)
        if ORDER.index(name.partition(".")[0]) > ORDER.index(module.partition(".")[0])
    }
    assert backward == set()


def test_no_arrow_between_the_rooms_of_training_points_up():
    floors = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
    arrows = {
        (module.split(".")[1], name.split(".")[1])
        for module, tree in modules().items()
        for name in imported(tree)
        if module.startswith("train.") and name.startswith("train.")
    }
    assert floors.keys() == {room for arrow in arrows for room in arrow}
    assert {(room, other) for room, other in arrows if room != other and floors[other] <= floors[room]} == set()


def test_imports_close_no_circle():
    """A package's own file may gather what is in it, and what is in it may need the package: that is no circle."""
    graph = {module: imported(tree) - {module} for module, tree in modules().items()}
    apart = {module: {name for name in names if not module.startswith(f"{name}.")} for module, names in graph.items()}
    graphlib.TopologicalSorter(apart).prepare()


def test_contributing_shows_the_tree():
    tree = (ROOT / "CONTRIBUTING.md").read_text().partition("```text\n")[2].partition("```")[0]
    assert 8 <= len(tree.splitlines()) <= 12
    rooms = {path.parent.name for path in files()}
    programs = {path.stem for path in ROOT.glob("train/*.py") if "__main__" in path.read_text()}
    assert (rooms | programs) - set(re.findall(r"\w+", tree)) == set()
