"""The command attention-bench: short names for the programs, which a user's own files cannot stand in for."""

import os
import re
import subprocess
import sys
import tomllib

import pytest

from tests.conftest import ROOT
from tests.test_programs import PROGRAMS
from train.grids import pool
from train.run import console


def test_it_is_installed_and_names_programs_that_there_are():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"attention-bench": "train.run.console:main"}
    assert set(console.PROGRAMS.values()) <= {*PROGRAMS, "attention.check"}


def test_alone_it_lists_all_programs_with_their_purpose(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["attention-bench"])
    assert console.main() == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    for name in console.PROGRAMS:
        assert re.search(rf"^  {name} +[A-Z]", out, re.MULTILINE)


def test_an_unknown_command_is_one_sentence(monkeypatch, refused):
    monkeypatch.setattr(sys, "argv", ["attention-bench", "raport", "runs/a"])
    said = refused(lambda arguments: console.main(), [])
    assert said.startswith("error: Unknown command 'raport'. Did you mean 'report'?")


@pytest.mark.parametrize(
    ("start", "printed"),
    [
        (["/a b/python", "-X", "dev", "-m", "train.main"], "'/a b/python' -X dev -m train.main"),
        (["/venv/bin/python", "/venv/bin/attention-bench", "train"], "attention-bench train"),
        (["/venv/bin/python", "/elsewhere/attention-bench", "train"], "/elsewhere/attention-bench train"),
        (["python"], "python -m train.main"),
    ],
)
def test_a_command_is_repeated_as_it_was_typed(monkeypatch, start, printed):
    given = ["--config.model.attention=neural(dim=2)|dot_product", "--workdir=", "--config.seed", "1"]
    monkeypatch.setattr(sys, "orig_argv", [*start, *given])
    monkeypatch.setattr(console.shutil, "which", lambda name: f"/venv/bin/{name}")
    typed = console.typed("train.main", given, "--workdir=runs/a b")
    attention = "'--config.model.attention=neural(dim=2)|dot_product'"
    assert typed == f"{printed} {attention} --config.seed 1 '--workdir=runs/a b'"


def test_files_of_the_current_folder_do_not_stand_in_for_ours(tmp_path):
    """The folder has files with the names of ours; the script is as an installer makes it, elsewhere."""
    for name in ("train.py", "models/__init__.py", "attention.py", "analysis/__init__.py", "configs/__init__.py"):
        (tmp_path / "home" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "home" / name).write_text(f"raise SystemExit('this is the user\\'s {name}')\n")
    script = tmp_path / "bin/attention-bench"
    script.parent.mkdir()
    script.write_text("import sys\nfrom train.run.console import main\nsys.exit(main())\n")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}  # as what is installed is found
    command = [sys.executable, str(script), "mechanisms", "dot_product"]
    done = subprocess.run(command, cwd=tmp_path / "home", env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "dot_product" in done.stdout


def test_a_process_looks_into_the_current_folder_only_where_this_one_does(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for first, options in ((str(tmp_path), []), ("", []), (str(tmp_path / "bin"), ["-P"])):
        monkeypatch.setattr(sys, "path", [first, "/elsewhere"])
        assert console.command("train.main") == [sys.executable, *options, "-m", "train.main"]
        assert pool.command(["--config=a"], tmp_path)[: 3 + len(options)] == console.command("train.main")
