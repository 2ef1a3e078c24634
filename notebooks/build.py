"""Build each notebook from its script, with the outputs of its cells; building all of them takes minutes.

    python -m notebooks.build
    python -m notebooks.build 01 04
    python -m notebooks.build --heads
    python -m notebooks.build --check

Edit the scripts, which are in jupytext's percent format. Their first two cells are the same and come from this file.
"""

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from attention.errors import unknown
from docs.address import ADDRESS, ARCHIVE
from train import cli

FOLDER = Path(__file__).resolve().parent
ACCELERATORS = {"02_train_on_colab": "GPU", "03_train_on_tpu": "TPU"}  # for Colab
COLAB = (
    "[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]"
    "(https://colab.research.google.com/github/{}/blob/main/notebooks/{}.ipynb)"
)
UPLOAD = (
    "On Colab, first upload `ARCHIVE`, which `make archive` writes; the session restarts once after the first cell. "
    "In the project's folder, nothing is needed."
)
HEAD = """\
# %% [markdown]
# WHERE

# %%
# Installs the project where it is missing, as on Colab; elsewhere nothing happens.
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

if importlib.util.find_spec("attention") is None:
    folder = Path("..") if Path("../attention").is_dir() else Path("attention-bench")
    if not folder.exists() and Path("ARCHIVE").exists():
        shutil.unpack_archive("ARCHIVE")
    if not folder.exists():
        GET
    on_gpu, on_tpu = shutil.which("nvidia-smi"), importlib.util.find_spec("libtpu")
    jax_for_it = "jax[tpu]" if on_tpu else "jax[cuda12]" if on_gpu else "jax"
    packages = [jax_for_it, "-e", str(folder), "-c", str(folder / "constraints.txt")]
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", *packages], check=True)
    sys.path.insert(0, str(folder.resolve()))
    if "google.colab" in sys.modules:  # this session has loaded other versions of NumPy, pandas and JAX already
        import IPython

        print("Installed. The session restarts now; then run the notebook again, from its first cell.")
        IPython.get_ipython().kernel.do_shutdown(restart=True)

"""
CLONE = 'subprocess.run(["git", "clone", "-q", "{}", str(folder)], check=True)'
NOTHING = 'raise FileNotFoundError("Upload ARCHIVE, which `make archive` writes, beside this notebook.")'
CELL = re.compile(r"^(?=# %%)", re.MULTILINE)


def scripts(wanted: Iterable[str] = ()) -> list[Path]:
    """Lists the scripts whose names begin as wanted, or all.

    Raises:
      UsageError: No script's name begins so.
    """
    found = sorted(FOLDER.glob("[0-9][0-9]_*.py"))
    for name in (wanted := list(wanted)):
        if not any(path.stem.startswith(name) for path in found):
            raise unknown("notebook", name, [path.stem for path in found])
    return [path for path in found if not wanted or path.stem.startswith(tuple(wanted))]


def head(name: str, address: str = ADDRESS) -> str:
    """Makes the first two cells of a script, for a project at an address, or without one ('')."""
    _, on_github, place = address.removesuffix(".git").partition("https://github.com/")
    where = COLAB.format(place, name) if on_github else UPLOAD
    get = CLONE.format(address) if address else NOTHING
    return HEAD.replace("WHERE", where).replace("GET", get).replace("ARCHIVE", ARCHIVE)


def with_head(script: Path) -> str:
    """Replaces the first two cells of a script's text by `head`."""
    _, _, _, *cells = CELL.split(script.read_text(encoding="utf-8"))
    return head(script.stem) + "".join(cells)


def notebook(script: Path) -> Any:
    """Converts a script to a notebook without outputs, the same each time."""
    import jupytext

    made = jupytext.reads(script.read_text(encoding="utf-8"), fmt="py:percent")
    made.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    if script.stem in ACCELERATORS:
        made.metadata |= {"accelerator": ACCELERATORS[script.stem], "colab": {"provenance": []}}
    for number, cell in enumerate(made.cells):
        cell.id, cell.metadata = f"cell-{number:02}", {}
    return made


def execute(made: Any) -> None:
    """Runs the cells of a notebook in an empty folder, and keeps the outputs that a reader wants to see.

    Raises:
      CellExecutionError: A cell fails.
    """
    from nbclient import NotebookClient

    paths = [str(FOLDER.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "TF_CPP_MIN_LOG_LEVEL": "3"}
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        NotebookClient(made, timeout=None, resources=resources, record_timing=False).execute(env=environment)
    made.metadata["language_info"] = {"name": "python"}  # in place of this machine's version
    for cell in made.cells:
        if cell.cell_type == "code":
            cell.metadata, cell.outputs = {}, _kept(cell.outputs)


def _kept(outputs: Iterable[Any]) -> list[Any]:
    """Joins printed text, and drops warnings and the texts that stand for pictures and tables."""
    kept: list[Any] = []
    for output in outputs:
        if output.get("name") == "stderr":
            continue
        if kept and output.output_type == kept[-1].output_type == "stream":
            kept[-1].text += output.text
            continue
        if len(output.get("data", {})) > 1:
            output.data.pop("text/plain", None)
        kept.append(output)
    return kept


def differing(script: Path) -> bool:
    """Tells whether a script's head differs from `head`, or its notebook's cells from the script's."""
    import nbformat

    path = script.with_suffix(".ipynb")
    if not path.is_file() or script.read_text(encoding="utf-8") != with_head(script):
        return True
    made, kept = notebook(script), nbformat.read(path, nbformat.NO_CONVERT)
    cells, others = ([(cell.cell_type, cell.source) for cell in each.cells] for each in (made, kept))
    return cells != others


def build(script: Path) -> None:
    """Writes a script's head and its notebook."""
    import nbformat

    script.write_text(with_head(script), encoding="utf-8")
    made = notebook(script)
    execute(made)
    nbformat.validate(made)
    script.with_suffix(".ipynb").write_text(nbformat.writes(made) + "\n", encoding="utf-8")


def put_head(script: Path) -> None:
    """Writes a script's head, and the same cells of its notebook, keeping the outputs."""
    import nbformat

    script.write_text(with_head(script), encoding="utf-8")
    path = script.with_suffix(".ipynb")
    kept = nbformat.read(path, nbformat.NO_CONVERT)
    for cell, made in zip(kept.cells[:2], notebook(script).cells[:2], strict=True):
        cell.source = made.source
    path.write_text(nbformat.writes(kept) + "\n", encoding="utf-8")


@cli.program(
    __doc__,
    cli.flag("names", nargs="*", help="beginnings of names, such as 01; default all"),
    cli.flag("--heads", action="store_true", help="only write the first two cells, after a change of address"),
    cli.flag("--check", action="store_true", help="only name notebooks that differ from their scripts"),
)
def main(flags: argparse.Namespace) -> int:
    """Builds or checks the notebooks; returns the exit code."""
    found = scripts(flags.names)
    if flags.check:
        stale = [script.stem for script in found if differing(script)]
        print("\n".join(f"{name}.ipynb differs from its script; build it." for name in stale) or "All agree.")
        return cli.FAILED if stale else cli.DONE
    for script in found:
        (put_head if flags.heads else build)(script)
        print(f"Built {script.with_suffix('.ipynb').name}", flush=True)
    return cli.DONE


if __name__ == "__main__":
    sys.exit(main())
