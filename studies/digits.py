"""Train every mechanism in the ViT for digits, for a table of means and ranges over seeds.

    python -m studies.digits --runs=runs/all-on-digits

Only rows without a result are trained, with `python -m train.main`, one process on each CPU. Results are added to
`benchmarks/results/digits_cpu.json`, of which `python -m docs.figures` makes the table in
`docs/mechanisms/measured.md`. You can stop the program at any moment; the same command continues.
"""

import sys
from pathlib import Path

from models.mechanisms import MECHANISMS
from studies import rows

CAUSAL = ("forgetting", "path")  # need a causal mask, which an encoder lacks
# Besides the mechanisms: options that the papers used, and design choices worth a look.
VARIANTS = ("neural(dim=16)", "neural(dim=None)", "gaussian(sigma=0.05)", "linear(feature='identity', normalise=False)")
TABLE = rows.Table(
    "digits",
    (*(name for name in MECHANISMS if name not in CAUSAL), *VARIANTS, *rows.TODAY),
    (),
    "test accuracy, %",
    lambda result: 100 * result["best"]["test"]["accuracy"],
)
main = rows.program(__doc__, TABLE, Path("runs/all-on-digits"), seeds=3)


if __name__ == "__main__":
    sys.exit(main())
