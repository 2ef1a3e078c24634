"""The cost of durability: steps while a checkpoint is written, the time that a save stops the loop, and digests.

    python -m benchmarks.endurance --out=benchmarks/results/endurance_cpu.json

Steps with and without a save in progress take turns within a process, round by round; medians are over rounds.
"""

import argparse
import sys
from typing import Any

from analysis import measurements
from analysis.tables import plain_markdown
from benchmarks import measure
from benchmarks.train_step import SilentTraining, silent_training, spread_of
from train import cli, loading
from train.main import parse
from train.run import digest

# The digits' model at its default size, and at that of vit_cifar100: a small and a medium checkpoint.
MODELS = {
    "vit_digits": [],
    "as vit_cifar100": [f"--config.model.{field}" for field in ("depth=8", "width=256", "heads=8", "mlp=512")],
}


@measurements.program(
    __doc__,
    measure.rounds(5),
    cli.flag("--seconds", type=float, default=2.0, help="seconds of steps in half a round"),
)
def main(flags: argparse.Namespace) -> measurements.Measured:
    """Yields the costs of saving a small and a medium checkpoint."""
    models = {name: saving(more, flags.rounds, flags.seconds) for name, more in MODELS.items()}
    yield {"saving": models}, markdown({"saving": models})


def saving(overrides: list[str], rounds: int, seconds: float) -> dict[str, Any]:
    """Measures median seconds of a step alone, a step while a checkpoint is written, and the parts of a save."""
    config, _ = loading.resolve("configs/vit_digits.py", parse(overrides)[1])
    with silent_training(config) as training:
        steps = max(2, round(seconds / training.take(3)))
        first, *rounds = [_round(training, steps) for _ in range(rounds + 1)]
    times = {name: [row[name] for row in rounds] for name in first}
    ratio, size = spread_of(times, "step while saving", "step"), measure.bytes_of(training.state)
    seconds = measure.medians(times)
    return {"state_bytes": size, "steps": steps, "seconds": seconds, "while_saving_over_alone": ratio}


def _round(training: SilentTraining, steps: int) -> dict[str, float]:
    def save() -> None:
        training.kept.save(training.run.step, training.state, {}, [])

    alone = training.take(steps)
    digests = measure.seconds(lambda: digest.digests(training.state))
    blocked = measure.seconds(save)
    under_way = training.take(steps)
    training.kept.wait()
    # A save and a restore without steps at the same time: the duration of writing and reading.
    training.take(1)
    written = measure.seconds(lambda: (save(), training.kept.wait()))
    read = measure.seconds(lambda: training.kept.restore(training.abstract))
    return {
        "step": alone,
        "step while saving": under_way,
        "save, until the loop goes on": blocked,
        "digests alone": digests,
        "save, until on disk": written,
        "restore": read,
    }


def markdown(result: dict[str, Any]) -> str:
    """Tabulates the results."""
    models = result["saving"]
    rows = [["state, MB", *(f"{model['state_bytes'] / 1e6:,.1f}" for model in models.values())]]
    for name in next(iter(models.values()))["seconds"]:
        rows.append([f"{name}, ms", *(f"{1e3 * model['seconds'][name]:,.1f}" for model in models.values())])
    ratios = [model["while_saving_over_alone"] for model in models.values()]
    rows.append(["while saving / alone", *(f"{r['median']:.2f} ({r['min']:.2f} – {r['max']:.2f})" for r in ratios)])
    return plain_markdown(["", *models], rows)


if __name__ == "__main__":
    sys.exit(main())
