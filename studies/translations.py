"""Train translators with several mechanisms, for tables with BLEU and accuracy.

    python -m studies.translations --set=anki --data=spa.txt.xz --runs=runs/anki
    python -m studies.translations --set=multi30k --data=FOLDER --runs=runs/multi30k

Runs without a result are trained with `python -m train.main`, one process on each CPU. The program writes
`benchmarks/results/SET_cpu.json`, of which `python -m docs.figures` makes the table in `docs/language.md`. There is no
file until dot product has reached the set's minimum BLEU on test data: mechanisms are not compared in models that
cannot translate.
"""

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import Any

from analysis.tables import plain_markdown
from attention.errors import UsageError
from studies import data, runs
from train import cli
from train.grids import pool

BASELINE = "dot_product"
SCORES = ("bleu_signature", "chrf_signature", "too_long_test")
KEPT = ("best", "best_step", "steps", "seconds", "parameters", "attention_layer_parameters", "git", *SCORES)


@dataclasses.dataclass(frozen=True)
class Set:
    """A comparison of translators.

    Attributes:
      config: The config of all runs.
      mechanisms: The config's arguments, the baseline first.
      flags: Fields that make the training small enough for two CPU cores.
      floor: BLEU that the baseline must reach on test data.
    """

    config: str
    mechanisms: tuple[str, ...]
    flags: tuple[str, ...]
    floor: float


SETS = {
    "anki": Set(
        "configs/translate_anki.py",
        (BASELINE, "gaussian"),
        ("train.length=3 epochs", "train.log_every=200 steps", "train.checkpoint_every=500 steps"),
        10.0,
    ),
    "multi30k": Set(
        "configs/translate_iwslt.py",
        (BASELINE, "mlp_marian", "mlp_kv", "dual_linear"),
        (
            *data.PAIRS,
            *data.TRANSLATOR,
            "data.translations=200",
            "optimizer.learning_rate=2e-3",
            "optimizer.warmup=400 steps",
            "train.length=4 epochs",
            "train.eval_every=1 epoch",
            "train.log_every=200 steps",
            "train.checkpoint_every=300 steps",
        ),
        10.0,
    ),
}


@cli.program(
    __doc__,
    cli.flag("--set", choices=SETS, required=True, help="the set of pairs"),
    cli.flag("--data", type=Path, required=True, help="the file or folder of pairs"),
    cli.flag("--runs", type=Path, required=True, help="folder of the work directories"),
    lasting=True,
)
def main(flags: argparse.Namespace) -> None:
    """Trains the translators, then writes the JSON."""
    chosen = SETS[flags.set]
    folders = {spec: flags.runs / pool.name_of(spec) for spec in chosen.mechanisms}
    fields = [f"--config.data.source=file:{flags.data.resolve()}", *(f"--config.{field}" for field in chosen.flags)]
    todo = {folder: (f"--config={chosen.config}:{spec}", *fields) for spec, folder in folders.items()}
    runs.train_all(todo, lambda result: f"{result['best']['test']['bleu']:.2f} BLEU")
    found = {spec: runs.result(folder) for spec, folder in folders.items()}
    write(flags.set, {spec: result for spec, result in found.items() if result})


def write(name: str, done: dict[str, dict[str, Any]]) -> None:
    """Writes the JSON with all figures.

    Raises:
      UsageError: The baseline has not finished, or has not reached the floor.
    """
    check_floor(done, SETS[name].floor)
    about = {
        "command": f"python -m studies.translations --set={name} --data=DATA --runs=DIR",
        "flags": [f"--config.{flag}" for flag in SETS[name].flags],
        "floor": SETS[name].floor,
    }
    kept = {spec: {key: result[key] for key in KEPT} for spec, result in done.items()}
    runs.write(name, about, done[BASELINE], kept)


def check_floor(done: dict[str, dict[str, Any]], floor: float) -> None:
    """Raises a UsageError if the baseline cannot translate yet."""
    if BASELINE not in done:
        raise UsageError(f"{BASELINE} has not finished, so there is nothing to compare with; run it again.")
    reached = done[BASELINE]["best"]["test"]["bleu"]
    if reached < floor:
        raise UsageError(
            f"{BASELINE} reached {reached:.2f} BLEU, below the floor of {floor}: models that cannot translate are not "
            "compared; train longer."
        )


def table(done: dict[str, dict[str, Any]]) -> str:
    """Tabulates test results of each mechanism at the step that was best on validation data."""
    titles = ("mechanism", "BLEU", "chrF", "accuracy, %", "with padding, %", "loss", "parameters", "trains for")
    return plain_markdown(titles, (_cells(spec, result) for spec, result in done.items()))


def _cells(spec: str, result: dict[str, Any]) -> tuple[str, ...]:
    test = result["best"]["test"]
    scores = (f"{test['bleu']:.2f}", f"{test['chrf']:.2f}")
    accuracies = (f"{100 * test[name]:.2f}" for name in ("accuracy", "accuracy_with_padding"))
    minutes = f"{result['seconds'] / 60:.0f} min"
    return f"`{spec}`", *scores, *accuracies, f"{test['loss']:.3f}", f"{result['parameters']:,}", minutes


if __name__ == "__main__":
    sys.exit(main())
