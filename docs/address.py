"""The project's address, from `docs/address.txt`, which is empty while there is none.

The pages take it through `python -m docs.figures`, the notebooks through `python -m notebooks.build --heads`, and the
site through `docs/hooks.py`.
"""

from pathlib import Path

ADDRESS = Path(__file__).with_name("address.txt").read_text(encoding="utf-8").strip()
ARCHIVE = "attention-bench.zip"  # what `make archive` writes


def begin(*commands: str) -> str:
    """Writes a block of shell commands that gets the project, and continues in its folder."""
    clone = [f"git clone {ADDRESS} attention-bench"] if ADDRESS else []
    return "\n".join(
        [
            "<!-- not run: it makes an environment of its own -->",
            "```sh",
            *clone,
            "cd attention-bench",
            *commands,
            "```",
        ]
    )


def begin_on_colab() -> str:
    """Writes the lines that install the project in a cell of Colab."""
    get = f"!git clone {ADDRESS} attention-bench" if ADDRESS else f"!unzip -q {ARCHIVE}  # upload it first"
    return f'```text\n{get}\n%cd attention-bench\n!pip install "jax[cuda12]" -e . -c constraints.txt\n```'
