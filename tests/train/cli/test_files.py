"""A file is written where a file can be put: nothing else is replaced by one, and no link is followed."""

import os

import numpy as np
import pytest
from matplotlib.figure import Figure

from analysis import archive, flops
from analysis.pictures import __main__ as pictures
from analysis.pictures import style
from attention import UsageError
from tests.test_programs import PROGRAMS, parser_of
from train import cli
from train.cli import files
from train.decode import alignment, translator

ALIGNED = alignment.Alignment(["a"], ["b"], np.ones((1, 1)))
WRITERS = {
    "JSON": lambda path: files.write_json(path, {}),
    "SVG": lambda path: style.save(Figure(), path),
    "PNG and SVG": lambda path: style.save(Figure(), path.with_suffix("")),
    "alignment": lambda path: alignment.draw(ALIGNED, path.with_suffix("")),
    "translations": lambda path: translator.translate_file(None, path.parent / "in.txt", path, None),
}
ENDINGS = {"SVG": ".svg", "JSON": ".json", "translations": ".txt"}
OBSTACLES = {
    "a link": lambda path: path.symlink_to(path.parent / "other"),
    "a folder": lambda path: path.mkdir(),
    "a device or a pipe": os.mkfifo,
}
KEPT = "what was there"


def seen(folder):
    """What is in a folder, without opening a pipe."""
    return {path.name: (os.lstat(path).st_mode, path.is_file() and path.read_text()) for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("kind", "name"), [("a folder", "JSON"), ("a device or a pipe", "JSON"), *(("a link", name) for name in WRITERS)]
)
def test_what_is_no_file_is_refused_and_stays(tmp_path, name, kind):
    path = tmp_path / f"out{ENDINGS.get(name, '.png')}"
    (tmp_path / "other").write_text(KEPT)
    (tmp_path / "in.txt").write_text("a")
    OBSTACLES[kind](path)
    before = seen(tmp_path)
    with pytest.raises(UsageError, match=f"{path.name} is {kind}, where a file cannot be put"):
        WRITERS[name](path)
    assert seen(tmp_path) == before


def test_every_flag_that_names_a_file_to_write_is_checked():
    """Flags of another type name a folder or the start of a name, which is checked before writing."""
    written = {"--out", "--output", "--alignment", "--plot"}
    types = {
        (name, flag): action.type
        for name in PROGRAMS
        for parser in (parser_of(name), *parser_of(name).kinds.values())
        for action in parser._actions
        for flag in written & {*action.option_strings}
    }
    others = {program for (program, _), kind in types.items() if kind is not cli.new_file}
    assert others == {"analysis.archive", "analysis.flops", "analysis.pictures", "analysis.report", "benchmarks.device"}


def test_programs_whose_flag_is_not_the_file_itself_refuse_it_before_they_work(tmp_path, monkeypatch, refused):
    for module, name in ((archive, "find"), (pictures, "_projection"), (flops, "counted")):
        monkeypatch.setattr(module, name, None)  # which would be called first
    for place, main, arguments in (
        ("out.json", archive.main, [str(tmp_path), f"--out={tmp_path / 'out.json'}"]),
        ("out.png", pictures.main, ["projection", f"--out={tmp_path / 'out'}"]),
        ("flops.json", flops.main, [f"--out={tmp_path}"]),
    ):
        (tmp_path / place).symlink_to(tmp_path / "other")
        assert f"{place} is a link, where a file cannot be put" in refused(main, arguments)


def test_what_is_written_meanwhile_has_a_name_of_its_own(tmp_path):
    """A file of the user's with the same stem stays, and a link of that name is not followed."""
    (tmp_path / "out.tmp").write_text(KEPT)
    (tmp_path / "other").write_text(KEPT)
    (tmp_path / "out.json.tmp").symlink_to(tmp_path / "other")
    files.write_json(tmp_path / "out.json", {})
    assert (tmp_path / "out.tmp").read_text() == (tmp_path / "other").read_text() == KEPT
    assert sorted(os.listdir(tmp_path)) == ["other", "out.json", "out.tmp"]
