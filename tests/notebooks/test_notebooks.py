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
from tests.sizes import more

NAMES = [path.stem for path in build.scripts()]
# So little optimised, programs that run for a moment compile in half the time.
XLA_FLAGS = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
# What is smaller in the short form of the first notebook, each of it once in the script.
SMALLER = {
    "12, 32, 500": "12, 32, 2",
    'maps("dot_product", "luong_dot", "luong_general")': 'maps("luong_general")',
    'maps("optimised", "efficient", "super")': 'maps("super")',
    '"mlp_qkv", "mlp_kv", "dual_linear", "mlp_marian", "mlp_roberta", "decomposable"': '"mlp_marian",',
    '"additive", "luong_concat", "neural", "neural(dim=16)"': '"luong_concat", "neural(dim=16)"',
    '"gaussian", "gaussian(sigma=0.3)", "gaussian(sigma=0.1)"': '"gaussian(sigma=0.3)"',
    'maps("positional", "positional_factorised")': 'maps("positional_factorised")',
}
TINY = r"(0\.0|\d\.\d+e-(0[6-9]|1\d))\n"
PRINTED = {
    "01_attention_mechanisms": ["twin at", "def masked_softmax", "def delta_head"],
    "02_train_on_colab": ["1 x cpu, reduced size", "The same result, to the last bit: True"],
    "03_train_on_tpu": ["8 x cpu, pretended", "data 2 x fsdp 2 x tensor 2", "mesh data 2 x fsdp 2 x tensor 2"],
    "04_add_your_own": [
        f"fast - definition: {TINY}",
        f"decoded - full pass: {TINY}",
        "the future reaches the past: False",
        "Training manhattan",
    ],
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


def test_an_address_is_cloned_and_one_on_github_has_a_badge():
    head = build.head("01_a", "https://github.com/me/bench")
    assert "(https://colab.research.google.com/github/me/bench/blob/main/notebooks/01_a.ipynb)" in head
    assert '["git", "clone", "-q", "https://github.com/me/bench", str(folder)]' in head
    elsewhere = build.head("01_a", "https://example.org/bench.git")
    assert ("https://example.org/bench.git" in elsewhere, "colab.research" in elsewhere) == (True, False)
    assert "http" not in build.head("01_a", "")


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


@pytest.mark.parametrize(
    ("name", "smaller"), [more(NAMES[0], SMALLER), *(pytest.param(name, {}, marks=pytest.mark.long) for name in NAMES)]
)
def test_every_cell_runs(name, smaller, tmp_path):
    """The first in its short form too; in `make test-long`, all as they are written."""
    text = script(name)
    for old, new in smaller.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    (tmp_path / "script.py").write_text(text, encoding="utf-8")
    flags = XLA_FLAGS if smaller else ""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg", "XLA_FLAGS": flags}
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert [pattern for pattern in PRINTED[name] if not re.search(pattern, done.stdout)] == []


def test_a_script_that_was_changed_is_found(monkeypatch, tmp_path):
    pytest.importorskip("jupytext", reason="is in requirements-notebooks.txt")
    monkeypatch.setattr(build, "FOLDER", tmp_path)
    name = NAMES[0]
    for ending in (".py", ".ipynb"):
        (tmp_path / f"{name}{ending}").write_bytes((ROOT / "notebooks" / f"{name}{ending}").read_bytes())
    assert build.main(["--check"]) == 0
    (tmp_path / f"{name}.py").write_text(script(name).replace("# # Every", "# # Any"), encoding="utf-8")
    assert build.main(["--check"]) == 1


def test_a_notebook_that_is_not_there(refused):
    assert "Unknown notebook '06'" in refused(build.main, ["06"])
