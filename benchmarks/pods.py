"""The smallest slice of TPUs v5e on which a training step fits, by the TPU's own compiler; nothing runs.

    python -m benchmarks.pods --keep=benchmarks/results/pods_cpu.json --out=benchmarks/results/pods_cpu.json

The program needs requirements-tpu.txt, in a separate environment. The models are those of the configs with the papers'
sizes, and two GPTs with the block of today's models on 8,192 tokens. Slices that are too small even for the state and
the gradients are skipped.
"""

import argparse
import dataclasses
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

from analysis import measurements
from analysis.tables import plain_markdown
from attention.errors import UsageError
from attention.mesh import compiled_for
from train import cli, loading
from train.dry_run import chips, dry, topology
from train.mesh import memory
from train.mesh.compilation import TooLarge

CHIP = "v5e"
TODAY = {
    "data.tokeniser": "bpe(size=32000)",
    "data.context": "8192",
    "data.eval_stride": "8192",
    "model.remat": "block",
    "model.scan": "True",
    "train.loss_chunk": "1024",
    "train.precision": "bfloat16",
    "mesh.data": "1",
    "mesh.fsdp": "-1",
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A model whose smallest slice is wanted.

    Attributes:
      config: The name of a file in `configs/`.
      specs: The attention mechanisms, as arguments of the config.
      overrides: Fields that differ from the config.
      sequences: Fewest sequences in a step, of which a chip takes one at a time; 0 for the config's batch.
    """

    config: str
    specs: tuple[str, ...]
    overrides: dict[str, str] = dataclasses.field(default_factory=dict)
    sequences: int = 0


BOTH = ("dot_product", "neural(dim=2)")
CASES = {
    "vit_imagenet": Case("vit_imagenet", (*BOTH, "super")),
    "gpt_wikitext103": Case("gpt_wikitext103", BOTH, {"model.scan": "True"}),
    "mlm_wikitext103": Case("mlm_wikitext103", BOTH, {"model.scan": "True"}),
    "translate_europarl": Case("translate_europarl", (*BOTH, "super")),
    "translate_iwslt": Case("translate_iwslt", BOTH),
    "GPT of 1.3 B": Case(
        "gpt_modern_pydoc",
        BOTH,
        TODAY | {"model.depth": "24", "model.width": "2048", "model.heads": "16", "model.mlp": "5504"},
        16,
    ),
    "GPT of 7 B": Case(
        "gpt_modern_pydoc",
        BOTH,
        TODAY | {"model.depth": "32", "model.width": "4096", "model.heads": "32", "model.mlp": "11008"},
        16,
    ),
}


@measurements.program(
    __doc__,
    cli.flag("--only", metavar="MODEL", choices=list(CASES), help="one model of the table; default all"),
    cli.flag("--keep", type=Path, metavar="FILE", help="results whose rows are kept and not compiled again"),
)
def main(flags: argparse.Namespace) -> measurements.Measured:
    """Yields all rows so far after each new one."""
    there = flags.keep is not None and flags.keep.is_file()
    rows = json.loads(flags.keep.read_text(encoding="utf-8"))["rows"] if there else []
    kept = {(row["name"], row["attention"]) for row in rows}
    pairs = [(name, spec) for name in ([flags.only] if flags.only else CASES) for spec in CASES[name].specs]
    for name, spec in [pair for pair in pairs if pair not in kept]:
        rows.append({"name": name, "attention": spec} | smallest(CASES[name], spec))
        yield {"rows": rows}, table(rows)


def smallest(case: Case, spec: str) -> dict[str, Any]:
    """Finds the smallest slice that a step fits on and its memory there, and what the step needs on smaller slices.

    Raises:
      UsageError: The step fits on no slice of a pod.
    """
    tried: list[dict[str, Any]] = []
    for shape in topology.SHAPES[CHIP]:
        devices = topology.devices(f"{CHIP}:{shape}")
        with compiled_for(devices[0]):
            config, _ = loading.resolve(f"configs/{case.config}.py:{spec}", overrides(case, len(devices)))
            run = dry.DryRun.of(config, devices)
            state, gradients = memory.bytes_a_device(run.state), memory.bytes_a_device(run.state.params)
            started = time.monotonic()
            try:
                if state + gradients > chips.CHIPS[CHIP].memory:
                    raise TooLarge(state + gradients, chips.CHIPS[CHIP].memory)
                sizes = run.memory(run.compile())
            except TooLarge as error:
                tried.append({"topology": f"{CHIP}:{shape}", "needs": error.used})
                continue
        return {
            "parameters": run.setup.about["parameters"],
            "examples": run.setup.config.data.batch_size,
            "topology": f"{CHIP}:{shape}",
            "memory": sizes,
            "compile_seconds": time.monotonic() - started,
            "smaller": tried,
        }
    raise UsageError(f"{case.config} with {spec} fits on no slice of {CHIP}; change its overrides.")


def overrides(case: Case, devices: int) -> dict[str, str]:
    """Makes the overrides for a number of chips; if sequences are counted, each chip takes one at a time."""
    if not case.sequences:
        return case.overrides
    batch = max(case.sequences, devices)
    sizes = {"data.batch_size": batch, "data.eval_batch_size": batch, "train.accumulate": batch // devices}
    return case.overrides | {field: str(size) for field, size in sizes.items()}


def table(rows: list[dict[str, Any]]) -> str:
    """Writes a row for each model and mechanism, with gigabytes per chip."""
    titles = ("", "attention", "parameters", "examples a step", "smallest slice", "GB a chip", "of it state")
    return plain_markdown((*titles, "on the next smaller"), map(_cells, rows))


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    state = sum(size for what, size in row["memory"].items() if what not in ("batch", "gradients and activations"))
    shape = row["topology"].partition(":")[2]
    count = math.prod(map(int, shape.split("x")))
    slice_of = f"{count} chip{'s' if count > 1 else ''} (`{row['topology']}`)"
    smaller = f"{row['smaller'][-1]['needs'] / 1e9:.1f}" if row["smaller"] else ""
    counts = (f"{row[name]:,}" for name in ("parameters", "examples"))
    gigabytes = (f"{size / 1e9:.2f}" for size in (sum(row["memory"].values()), state))
    return row["name"], f"`{row['attention']}`", *counts, slice_of, *gigabytes, smaller


if __name__ == "__main__":
    sys.exit(main())
