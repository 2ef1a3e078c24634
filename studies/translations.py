"""Translation with several mechanisms, trained with `python -m train.main`, as tables with BLEU and accuracy.

    python -m studies.translations --set=anki --data=spa.txt.xz --runs=runs/anki
    python -m studies.translations --set=multi30k --data=FOLDER --runs=runs/multi30k

Trains what has no result yet, a process for each CPU at a time, writes `benchmarks/results/SET_cpu.json` and the table
in `docs/translation.md`. There is no table before the dot product has reached the set's floor of BLEU on test data:
mechanisms are not compared in models that cannot translate.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analysis.tables import plain_markdown
from attention.errors import UsageError
from studies import runs
from train import cli
from train.grids import pool

DOCS = runs.ROOT / "docs/translation.md"
BASELINE = "dot_product"


@dataclasses.dataclass(frozen=True)
class Set:
    """An experiment.

    Attributes:
      config: Of all runs.
      mechanisms: Its arguments, the baseline first.
      flags: What is smaller than in the config, so that two CPU cores can do it.
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
            "data.source_column=de",
            "data.target_column=en",
            "data.source_tokeniser=bpe(size=6000)",
            "data.target_tokeniser=",
            "data.source_length=48",
            "data.target_length=48",
            "data.buckets=16,24,32",
            "data.batch_size=64",
            "data.eval_batch_size=128",
            "data.translations=200",
            "model.pretrained=",
            "model.depth=2",
            "model.decoder_depth=2",
            "model.width=128",
            "model.heads=4",
            "model.mlp=512",
            "optimizer.learning_rate=2e-3",
            "optimizer.schedule=cosine",
            "optimizer.warmup=400 steps",
            "optimizer.beta2=0.98",
            "train.length=4 epochs",
            "train.eval_every=1 epoch",
            "train.log_every=200 steps",
            "train.checkpoint_every=300 steps",
            "train.label_smoothing=0.1",
        ),
        10.0,
    ),
}


def parser() -> cli.Parser:
    """The flags."""
    made = cli.Parser(__doc__)
    made.add_argument("--set", choices=SETS, required=True, help="which pairs")
    made.add_argument("--data", type=Path, required=True, help="the file or folder of pairs")
    made.add_argument("--runs", type=Path, required=True, help="where the work directories are")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    return cli.run(lambda: run(parser().parse_args(arguments)))


def run(arguments: argparse.Namespace) -> None:
    """Trains, then writes both files."""
    chosen = SETS[arguments.set]
    folders = {spec: arguments.runs / pool.name_of(spec) for spec in chosen.mechanisms}
    flags = [f"--config.data.source=file:{arguments.data.resolve()}", *(f"--config.{flag}" for flag in chosen.flags)]
    todo = {folder: (f"--config={chosen.config}:{spec}", *flags) for spec, folder in folders.items()}
    runs.train_all(todo, lambda result: f"{result['best']['test']['bleu']:.2f} BLEU")
    found = {spec: runs.result(folder) for spec, folder in folders.items()}
    write(arguments.set, {spec: result for spec, result in found.items() if result})


def write(name: str, done: dict[str, dict[str, Any]]) -> None:
    """The JSON with all figures, and the table between the marks in the docs.

    Raises:
      UsageError: the baseline has not finished, or not reached the floor.
    """
    check_floor(done, SETS[name].floor)
    kept = ("best", "best_step", "steps", "seconds", "parameters", "bleu_signature", "chrf_signature", "git")
    kept = (*kept, "too_long_test", "attention_layer_parameters")
    some = done[BASELINE]
    record = {
        "command": f"python -m studies.translations --set={name} --data=DATA --runs=DIR",
        "flags": [f"--config.{flag}" for flag in SETS[name].flags],
        "floor": SETS[name].floor,
        "versions": some["versions"],
        "devices": some["devices"],
        "runs": {spec: {key: result[key] for key in kept} for spec, result in done.items()},
    }
    (runs.ROOT / f"benchmarks/results/{name}_cpu.json").write_text(json.dumps(record, indent=2) + "\n")
    runs.put(DOCS, f"translation {name}", table(done))


def check_floor(done: dict[str, dict[str, Any]], floor: float) -> None:
    """Raises a UsageError where the baseline cannot translate yet."""
    if BASELINE not in done:
        raise UsageError(f"{BASELINE} has not finished, so there is nothing to compare with; run it again.")
    reached = done[BASELINE]["best"]["test"]["bleu"]
    if reached < floor:
        raise UsageError(
            f"{BASELINE} reached {reached:.2f} BLEU, below the floor of {floor}: no comparison is made of models that "
            "cannot translate; train longer."
        )


def table(done: dict[str, dict[str, Any]]) -> str:
    """Markdown: what each mechanism's best step on validation data reached on test data."""
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
