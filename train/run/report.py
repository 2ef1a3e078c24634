"""What a run reports before its first step and after its last."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from train.cli import files
from train.cli.terminal import counted
from train.data.splits import PARTS
from train.mesh import memory, processes
from train.run import doubts, results, workdir
from train.run.progress import Life
from train.run.recorder import Recorder
from train.run.results import Metrics
from train.setup import Setup
from train.state import TrainState


def outline(kind: str, setup: Setup, state: TrainState, fake: str = "") -> Iterator[str]:
    """Yields lines about a run's model, devices and memory; `state` may be shapes."""
    about, mesh = setup.about, setup.replicas.mesh
    yield (
        f"{kind} {about['attention']}: {about['parameters']:,} parameters, "
        f"{about['attention_layer_parameters']:,} in an attention layer, {about['tokens']} tokens"
    )
    axes = " x ".join(f"{axis} {size}" for axis, size in mesh.shape.items())
    yield f"Devices: {mesh.size} {fake}{mesh.devices.flat[0].platform}, mesh {axes}"
    yield from memory.lines(state, mesh)


def header(setup: Setup, state: TrainState) -> Iterator[str]:
    """Yields what a run prints before its first step: the outline, the data, and remarks."""
    task, timetable, replicas = setup.task, setup.timetable, setup.replicas
    yield from outline("Training", setup, state)
    measured = {split: task.eval_examples(split) for split in task.sources}
    counts = ", ".join(f"{n:,} {split}" for split, n in (measured | {"train": task.train_examples}).items())
    yield f"Data: {counts}; {counted(timetable.total, 'step')} of {setup.config.data.batch_size}"
    yield from map(doubts.caution, doubts.of_sizes(setup.about | sizes(setup)))
    yield from replicas.remarks()
    yield from task.remarks()
    uncut, warmup = timetable.uncut_warmup, timetable.warmup
    if warmup != uncut:
        yield f"The warm-up of {uncut} steps is longer than the run; it is cut to {warmup}."


def sizes(setup: Setup) -> dict[str, int]:
    """Counts the examples for `result.json`; windows of running text do not count as test examples."""
    task = setup.task
    tested = {} if task.unit == "tokens" else {"test_examples": task.eval_examples("test")}
    return {"train_examples": task.train_examples} | tested


def write(
    directory: Path, setup: Setup, recorder: Recorder, step: int, outcomes: Iterable[tuple[Life, Metrics, Metrics]]
) -> dict[str, Any]:
    """Writes `result.json` and `curves.png`, prints a summary, and returns the content of `result.json`.

    Each replica's outcome is its life and its test metrics after the last and the best step.
    """
    task, replicas = setup.task, setup.replicas
    first, clock, early = processes.is_first(), recorder.clock, step < setup.timetable.total
    shared = {
        **({"stopped_early": early} if setup.config.train.patience else {}),
        "seconds": clock.seconds,
        "wall_seconds": clock.wall,
        **sizes(setup),
        "seconds_per_epoch": task.train_examples * task.units_per_example * clock.seconds / max(clock.units, 1),
        recorder.rate: clock.per_second,
        "baselines": task.baselines() if first else {},
        **setup.about,
        **workdir.peak_memory(),
        **workdir.environment(),
    }
    record = files.read_record(directory) if first else []  # only the first process surely sees all of it
    found = [
        results.replica_result(life, step, last, best, results.lines_of_replica(record, replica), recorder.rate)
        for replica, (life, last, best) in enumerate(outcomes)
    ]
    result = results.run_result(found, replicas.seeds, replicas.rates, shared)
    if first:
        files.write_json(directory / "result.json", result)
        draw_curves(record, directory / "curves.png")
    if early and setup.config.train.patience:
        patience = f"{counted(setup.config.train.patience, 'evaluation')} on validation data (train.patience)"
        recorder.say(f"Ended after step {step} of {setup.timetable.total}: no better {task.best} in {patience}.")
    recorder.say(*results.summary(result, task.best))
    recorder.say(f"Everything is in {directory}: result.json, metrics.jsonl, curves.png, checkpoints/")
    return result


def draw_curves(lines: list[dict[str, Any]], path: Path) -> None:
    """Draws loss and accuracy on training and validation data, a line for each replica."""
    from matplotlib.figure import Figure

    splits = {split: [line for line in lines if line["split"] == split] for split in PARTS}
    if not (splits["validation"] or splits["train"]):
        return
    count = 1 + max(line.get("replica", 0) for line in lines)
    metrics = [name for name in (splits["validation"] or splits["train"])[0] if name in ("loss", "accuracy")]
    figure = Figure(figsize=(4.5 * len(metrics), 3.2), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(metrics), squeeze=False)[0], metrics, strict=True):
        for split, points in splits.items():
            colour, width = f"C{list(splits).index(split)}", 0.8 if count > 1 else None
            for replica in range(count):
                measured = results.lines_of_replica(points, replica)
                steps, values = [p["step"] for p in measured], [p[name] for p in measured]
                style = {"color": colour, "linewidth": width, "marker": "o" if len(measured) == 1 else None}
                axes.plot(steps, values, label=None if replica else split, **style)
        axes.set(xlabel="step", title=name)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    figure.savefig(path, dpi=120)
