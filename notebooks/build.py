"""Build each notebook from its script, with what its cells print and draw; all of them take minutes.

    python -m notebooks.build
    python -m notebooks.build 01 04
    python -m notebooks.build --heads
    python -m notebooks.build --check

Edit the scripts, which are in jupytext's percent format. All begin with the same two cells, which come from this file.
"""

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from attention.errors import unknown
from docs.address import ADDRESS, ARCHIVE
from train import cli

FOLDER = Path(__file__).resolve().parent
ACCELERATORS = {"02_train_on_colab": "GPU", "03_train_on_tpu": "TPU"}  # what Colab opens them with
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
    """Those whose names begin as wanted, or all.

    Raises:
      UsageError: there is none of that name.
    """
    found = sorted(FOLDER.glob("[0-9][0-9]_*.py"))
    for name in (wanted := list(wanted)):
        if not any(path.stem.startswith(name) for path in found):
            raise unknown("notebook", name, [path.stem for path in found])
    return [path for path in found if not wanted or path.stem.startswith(tuple(wanted))]


def head(name: str, address: str = ADDRESS) -> str:
    """The first two cells of a script, of a project at an address, or without one ('')."""
    _, on_github, place = address.removesuffix(".git").partition("https://github.com/")
    where = COLAB.format(place, name) if on_github else UPLOAD
    get = CLONE.format(address) if address else NOTHING
    return HEAD.replace("WHERE", where).replace("GET", get).replace("ARCHIVE", ARCHIVE)


def with_head(script: Path) -> str:
    """A script's text, with its first two cells as `head` has them."""
    _, _, _, *cells = CELL.split(script.read_text(encoding="utf-8"))
    return head(script.stem) + "".join(cells)


def notebook(script: Path) -> Any:
    """A script as a notebook without outputs; the same each time."""
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
    """Runs the cells of a notebook in an empty folder of their own, and keeps what a reader wants to see.

    Raises:
      CellExecutionError: a cell fails.
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
    """What was printed in one piece, pictures and tables without the text that stands for them; no warnings."""
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
    """Whether a script has another head than `head`, or its notebook other cells than it."""
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
    """Writes a script's head, and the same cells of its notebook, whose outputs stay."""
    import nbformat

    script.write_text(with_head(script), encoding="utf-8")
    path = script.with_suffix(".ipynb")
    kept = nbformat.read(path, nbformat.NO_CONVERT)
    for cell, made in zip(kept.cells[:2], notebook(script).cells[:2], strict=True):
        cell.source = made.source
    path.write_text(nbformat.writes(kept) + "\n", encoding="utf-8")


def parser() -> cli.Parser:
    """The flags."""
    made = cli.Parser(__doc__)
    made.add_argument("names", nargs="*", help="how names begin, such as 01; default all")
    made.add_argument("--heads", action="store_true", help="only write the first two cells, after a change of address")
    made.add_argument("--check", action="store_true", help="only name notebooks that differ from their scripts")
    return made


def run(flags: argparse.Namespace) -> int:
    """Builds, or checks alone; returns the exit code."""
    found = scripts(flags.names)
    if flags.check:
        stale = [script.stem for script in found if differing(script)]
        print("\n".join(f"{name}.ipynb is not what its script says; build it." for name in stale) or "All agree.")
        return cli.FAILED if stale else cli.DONE
    for script in found:
        (put_head if flags.heads else build)(script)
        print(f"Built {script.with_suffix('.ipynb').name}", flush=True)
    return cli.DONE


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    return cli.run(lambda: run(parser().parse_args(arguments)))


if __name__ == "__main__":
    sys.exit(main())
