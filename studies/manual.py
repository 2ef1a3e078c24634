"""Train every mechanism briefly in a small GPT on Python's manual, for a table of bits per byte.

    python -m studies.manual --runs=runs/all-on-the-manual

The table shows that each mechanism learns in a decoder, where no token sees the next; the training is too short to
compare mechanisms. Only rows without a result are trained, one process on each CPU. Results are added to
`benchmarks/results/manual_cpu.json`, of which `python -m docs.figures` makes the table in
`docs/mechanisms/measured.md`.
"""

import sys
from pathlib import Path

from models.mechanisms import MECHANISMS, resolve
from studies import precision, rows

LEARNED = ("--config.model.positions=learned",)
LENGTH = ("--config.train.length=100 steps", "--config.optimizer.warmup=20 steps")


def positions(spec: str) -> tuple[str, ...]:
    """Chooses learned positions if rotary ones cannot rotate the mechanism's queries and keys apart from its values."""
    (row,) = resolve(spec, 1)
    return LEARNED if "none" in (row.query, row.key) or row.value == "tied" else ()


TABLE = rows.Table(
    "manual",
    (*MECHANISMS, *rows.TODAY),
    ("--config=configs/gpt_pydoc.py", *precision.SMALLER, *precision.RARELY, *LENGTH),
    "bits per byte, test",
    lambda result: result["best"]["test"]["bits_per_byte"],
    positions,
)
main = rows.program(__doc__, TABLE, Path("runs/all-on-the-manual"), seeds=1)


if __name__ == "__main__":
    sys.exit(main())
