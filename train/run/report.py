"""The report of a run before the first step and after the last."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from train.config.schema import Config
from train.config.timetable import Timetable
from train.devices import memory, processes
from train.devices.replicas import Replicas
from train.run import curves, results, workdir
from train.run.recorder import Recorder
from train.run.results import Metrics
from train.run.writers import read_record, write_json
from train.state import TrainState
from train.tasks.task import Task


def outline(kind: str, about: dict[str, Any], state: TrainState, mesh: Mesh, fake: str = "") -> Iterator[str]:
    """Yields lines about model, devices and memory.

    Args:
      kind: The kind of run, such as `Training`.
      about: The task's description of the model.
      state: Arrays or their shapes, with shardings.
      mesh: The mesh of the state.
      fake: `fake ` where the devices are fake, else empty.
    """
    yield (
        f"{kind} {about['attention']}: {about['parameters']:,} parameters, "
        f"{about['attention_layer_parameters']:,} in an attention layer, {about['tokens']} tokens"
    )
    axes = " x ".join(f"{axis} {size}" for axis, size in mesh.shape.items())
    yield f"Devices: {mesh.size} {fake}{mesh.devices.flat[0].platform}, mesh {axes}"
    yield from memory.lines(state, mesh)


def header(
    config: Config, task: Task, timetable: Timetable, replicas: Replicas, about: dict[str, Any], state: TrainState
) -> Iterator[str]:
    """Yields what a run prints before its first step: the outline, the data, and remarks."""
    yield from outline("Training", about, state, replicas.mesh)
    measured = {split: task.eval_examples(split) for split in task.sources}
    counts = ", ".join(f"{n:,} {split}" for split, n in (measured | {"train": task.train_examples}).items())
    yield f"Data: {counts}; {timetable.total:,} steps of {config.data.batch_size}"
    yield from replicas.remarks()
    yield from task.remarks()
    wanted, warmup = timetable.warmup_wanted, timetable.warmup
    if warmup != wanted:
        yield f"The warm-up of {wanted} steps is longer than the run; it is cut to {warmup}."


def write(
    directory: Path,
    task: Task,
    replicas: Replicas,
    recorder: Recorder,
    about: dict[str, Any],
    step: int,
    best: Sequence[int],
    metrics: Sequence[tuple[Metrics, Metrics]],
) -> dict[str, Any]:
    """Writes `result.json` and `curves.png`, and prints a summary.

    Args:
      directory: The work directory.
      task: The task.
      replicas: The replicas that were trained.
      recorder: Prints the summary, and has counted the time.
      about: The task's description of the model.
      step: The last step.
      best: Each replica's best step.
      metrics: Each replica's test metrics at the last and at the best step.

    Returns:
      The content of `result.json`.
    """
    first, clock = processes.is_first(), recorder.clock  # only the first process is sure to see the whole record
    shared = {
        "seconds": clock.seconds,
        "wall_seconds": clock.wall,
        "train_examples": task.train_examples,
        "seconds_per_epoch": clock.seconds_of(task.train_examples * task.units_per_example),
        recorder.rate: clock.per_second,
        "baselines": task.baselines() if first else {},
        **about,
        **workdir.peak_memory(),
        **workdir.environment(),
    }
    record = read_record(directory) if first else []
    outcomes = [
        results.of_one(results.of_replica(record, replica), step, best[replica], *metrics[replica], recorder.rate)
        for replica in range(len(replicas))
    ]
    result = results.of_all(outcomes, replicas.seeds, shared)
    if first:
        write_json(directory / "result.json", result)
        curves.draw(record, directory / "curves.png")
    recorder.say(*results.told(result, task.best))
    recorder.say(f"Everything is in {directory}: result.json, metrics.jsonl, curves.png, checkpoints/")
    return result
