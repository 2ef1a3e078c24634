"""The notebooks: those in the repository are what their scripts say, and every script runs from first line to last.

Scripts are run as plain Python, so neither Jupyter nor a kernel is needed, and are read here, not by what builds the
notebooks.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest

from notebooks import build
from tests.conftest import ROOT

NAMES = [path.stem for path in build.scripts()]
TINY = r"(0\.0|\d\.\d+e-(0[6-9]|1\d))\n"
PRINTED = {
    "01_attention_mechanisms": ["twin at", "def masked_softmax", "def delta_head"],
    "02_train_on_colab": ["1 x cpu, reduced size", "The same result, to the last bit: True"],
    "03_train_on_tpu": ["8 x cpu, pretended", "data 2 x fsdp 2 x tensor 2", "mesh data 2 x fsdp 2 x tensor 2"],
    "04_add_your_own": [f"fast - definition: {TINY}", f"decoded - full pass: {TINY}", "the past: False"],
    "05_translation_and_alignments": ["Training additive", "Training dot_product", "% exact"],
}


def script(name):
    return (build.FOLDER / f"{name}.py").read_text(encoding="utf-8")


def cells_of_script(name):
    """Yields the kind and source of each cell of a percent script."""
    kinds_and_texts = re.split(r"^# %%(.*)\n", script(name), flags=re.MULTILINE)[1:]
    for kind, text in zip(kinds_and_texts[::2], kinds_and_texts[1::2], strict=True):
        if kind.strip() == "[markdown]":
            yield "markdown", "\n".join(line.removeprefix("#").removeprefix(" ") for line in text.strip().split("\n"))
        else:
            magic = re.compile(r"^# (%\w)", re.MULTILINE)  # which Python must not see
            yield "code", magic.sub(r"\1", text.strip())


def notebook(name):
    return json.loads((build.FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_has_the_cells_of_its_script(name):
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in notebook(name)["cells"]]
    assert len(cells) > 10
    assert cells == list(cells_of_script(name))


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_shows_what_its_cells_gave(name):
    code = [cell for cell in notebook(name)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    texts = [json.dumps(output.get("text", output.get("data", {}).get("text/plain", ""))) for output in outputs]
    machine = re.compile(r"/(?:home|root|tmp|work|usr|Users|content)/|site-packages| at 0x[0-9a-f]+")
    assert not [text for text in texts if machine.search(text)]


def test_all_begin_alike_and_say_once_where_they_are():
    for name in NAMES:
        assert script(name).startswith(build.head(name))
        assert "OWNER" not in script(name)


def test_an_address_on_github_has_a_badge():
    badge = "(https://colab.research.google.com/github/me/bench/blob/main/notebooks/01_a.ipynb)"
    assert badge in build.head("01_a", "https://github.com/me/bench")
    assert "colab.research" not in build.head("01_a", "https://example.org/bench.git")


@pytest.fixture
def install(monkeypatch, tmp_path):
    """Runs the install cell for an address in an empty folder, and returns the commands so far."""
    commands, found = [], sys.path
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(found))
    monkeypatch.setattr(subprocess, "run", lambda command, check: commands.append(command))

    def run_cell(address="", there=()):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if name in there else None)
        monkeypatch.setattr("shutil.which", lambda name: name if name in there else None)
        exec(build.head("01_a", address).partition("# %%\n")[2], {})
        assert sys.path[0] == str(tmp_path / "attention-bench") or "attention" in there
        return commands

    return run_cell


@pytest.mark.parametrize(
    ("there", "jax_for_it"), [((), "jax"), (("nvidia-smi",), "jax[cuda12]"), (("nvidia-smi", "libtpu"), "jax[tpu]")]
)
def test_the_install_cell_installs_where_the_project_is_missing(install, tmp_path, there, jax_for_it):
    clone, pip = install("https://example.org/bench", there)
    assert clone == ["git", "clone", "-q", "https://example.org/bench", "attention-bench"]
    packages = [jax_for_it, "-e", "attention-bench", "-c", "attention-bench/constraints.txt"]
    assert pip == [sys.executable, "-m", "pip", "install", "-q", *packages]
    (tmp_path / "attention-bench").mkdir()
    assert install("https://example.org/bench", there)[2:] == [pip]  # what was cloned before is not cloned again


def test_on_colab_the_session_restarts_once_after_the_installation(install, monkeypatch, tmp_path, capsys):
    restarts = []
    kernel = SimpleNamespace(do_shutdown=lambda restart: restarts.append(restart))
    (tmp_path / "attention-bench").mkdir()
    monkeypatch.setitem(sys.modules, "google.colab", SimpleNamespace())
    shell = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=kernel))
    monkeypatch.setitem(sys.modules, "IPython", shell)
    install()
    install(there=("attention",))
    assert restarts == [True]
    assert "run the notebook again, from its first cell" in capsys.readouterr().out


def test_without_an_address_the_install_cell_takes_an_uploaded_archive(install, tmp_path):
    (tmp_path / "made" / "attention-bench" / "attention").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match=r"Upload attention-bench\.zip"):
        install()
    shutil.make_archive("attention-bench", "zip", tmp_path / "made", "attention-bench")
    install()
    assert (tmp_path / "attention-bench/attention").is_dir()


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.long) for name in NAMES])
def test_every_cell_runs(name, tmp_path):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg", "XLA_FLAGS": ""}
    command = [sys.executable, str(build.FOLDER / f"{name}.py")]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert [pattern for pattern in PRINTED[name] if not re.search(pattern, done.stdout)] == []


def test_a_notebook_that_is_not_there(capsys):
    assert build.main(["06"]) == 2
    assert "Unknown notebook '06'" in capsys.readouterr().err
