"""A script whose own files have the names of ours is told so where an import fails for it, and left alone elsewhere."""

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.sizes import more

REMEDY = "If you meant that one, rename yours, or move it into a package of yours."


def run(folder, script):
    (folder / "mine.py").write_text(f"import attention\n{script}\n")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    return subprocess.run([sys.executable, "mine.py"], cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("file", ["models.py", more("models/layers.py")])
def test_a_file_that_hides_ours_is_named_with_the_remedy(file, tmp_path):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).touch()
    (tmp_path / file).with_name("__init__.py").touch()
    told = run(tmp_path, "from models.layers import MultiHeadAttention").stderr.splitlines()[-1]
    assert told == f"{tmp_path / file.partition('/')[0]} hides the attention bench's models.layers. {REMEDY}"


def test_own_files_of_these_names_are_no_fault(tmp_path):
    for name in ("models", "train"):
        (tmp_path / f"{name}.py").write_text("mine = 1")
    failed = run(tmp_path, "from models import mine\nimport train\nimport models.mine")
    assert failed.stderr.endswith("No module named 'models.mine'; 'models' is not a package\n")
