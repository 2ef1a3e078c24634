"""The whole training program in order: devices and mesh, task, state, the steps, the report."""

from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import jax

from attention.errors import UsageError
from train import tasks
from train.config.schema import Config
from train.config.timetable import Timetable
from train.data.pipeline import BatchIterator
from train.devices import processes, sharding, splits
from train.devices.replicas import Replicas
from train.run import report, workdir
from train.run.best import Best
from train.run.checkpoints import Checkpoints
from train.run.evaluations import Evaluations
from train.run.interrupts import Interrupts
from train.run.meter import Meter
from train.run.recorder import Recorder
from train.state import TrainState
from train.step import Trainer
from train.tasks import Task

PER_REPLICA = ("averages", "epoch", "best")  # the entries of a checkpoint's progress that list a value per replica


def train_and_evaluate(config: Config, resolved: dict[str, Any], directory: Path) -> dict[str, Any] | None:
    """Trains until the run is done or interrupted, and continues a run that the work directory holds.

    Args:
      config: The validated config.
      resolved: The same as plain values, written to `config.json`.
      directory: The work directory.

    Returns:
      The content of `result.json`, or None where the run was interrupted.
    """
    with processes.together():
        task, timetable, replicas = prepare(config)
    workdir.claim(directory, resolved, task.files())
    with (
        workdir.lock(directory),
        jax.set_mesh(replicas.mesh),
        Checkpoints(directory, config.train.keep) as checkpoints,
        processes.ending_alone(),
        checkpoints.telling_of_a_full_disk(),
        ExitStack() as opened,
    ):
        with Interrupts() as interrupts:  # only here: a report has nothing to save, so there a signal ends the program
            with processes.together():
                trainer = Trainer.of(config, task)
                train_step = replicas.train_step(trainer, task)
                batches = opened.enter_context(closing(replicas.batches(task)))
                state, step, progress, remarks = restore_or_start(
                    directory, trainer, task, timetable, replicas, checkpoints, batches
                )
                recorder = opened.enter_context(closing(Recorder(directory, task, replicas, step, timetable, progress)))
                about = task.describe(trainer.shapes(task).params)
                recorder.say(*report.header(config, task, timetable, replicas, about, state), *remarks)
                meter = Meter(task, replicas, timetable, recorder, checkpoints, progress)
                best = Best(task, replicas, directory, progress)
                evaluations = Evaluations(task, replicas, timetable, recorder, checkpoints, best)
                workdir.keep(directory, resolved, finished=step == timetable.total)
            evaluations.catch_up(step, state)
            while step < timetable.total:
                batch = next(batches)
                meter.expect(batch)
                state, reported = train_step(state, replicas.to_devices(batch, stacked=True))
                step += 1
                meter.add(step, reported, batch["index"])  # reads the step before while this one is computed
                stopping = interrupts.stop_after(step)
                if stopping or timetable.pauses(step):
                    meter.log(step)
                    improved = evaluations.validate(step, state)
                    if improved or stopping or timetable.saves(step):
                        kept = recorder.progress() | meter.progress() | best.progress()
                        checkpoints.save(step, state, batches, kept, best.steps)
                    recorder.clock.skip()
                if stopping:
                    break
            checkpoints.wait()  # while signals are still handled, since a half-written checkpoint would be lost
        if step < timetable.total:
            recorder.say(f"Stopped after step {step} and saved; the same command continues.")
            return None
        metrics = evaluations.test(step, state)
        return report.write(directory, task, replicas, recorder, about, step, best.steps, metrics)


def prepare(config: Config) -> tuple[Task, Timetable, Replicas]:
    """Returns the task, timetable and replicas of a config.

    Raises:
      UsageError: the config or its data cannot be used.
    """
    replicas = Replicas.of(config, sharding.make_mesh(config.mesh))
    splits.check_training(config, replicas)
    task = tasks.find(config.task)(config)
    replicas.check(task)
    return task, Timetable.of(config, task.train_examples), replicas


def restore_or_start(
    directory: Path,
    trainer: Trainer,
    task: Task,
    timetable: Timetable,
    replicas: Replicas,
    checkpoints: Checkpoints,
    batches: BatchIterator,
) -> tuple[TrainState, int, dict[str, Any], list[str]]:
    """Returns state, step, progress and remarks, from the newest checkpoint or for a run that starts.

    Raises:
      UsageError: the run has taken more steps than the timetable has.
    """
    restored = checkpoints.restore(replicas.abstract(trainer.shapes(task)), batches)
    if not restored:
        state, remark = replicas.start(trainer, task)
        return state, 0, {}, [remark] if remark else []
    state, progress = restored
    step = int(state.step.max())  # all replicas share it
    if step > timetable.total:
        raise UsageError(
            f"{directory} has been trained for {step} steps, but train.length is {timetable.total} steps; give as "
            "many, or another --workdir."
        )
    # Older checkpoints of one replica have its value here, where newer ones have a list.
    listed = {name: [progress[name]] for name in PER_REPLICA if isinstance(progress.get(name), dict)}
    return state, step, progress | listed, [f"Continuing after step {step} of {directory}"]
