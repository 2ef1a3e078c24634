"""The whole training program in order: devices and mesh, task, state, the steps, the report."""

from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import jax

from attention.errors import UsageError
from train.config.schema import Config
from train.data.pipeline import BatchIterator
from train.devices import processes
from train.devices.refusals import without_refused_kernels
from train.run import report, workdir
from train.run.checkpoints import Checkpoints, has_checkpoints
from train.run.evaluations import Evaluations
from train.run.interrupts import Interrupts
from train.run.meter import Meter
from train.run.recorder import Recorder, set_aside
from train.setup import Setup
from train.state import TrainState


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
        setup = Setup.of(config)
        setup.check_memory()
        if not has_checkpoints(directory):
            setup.check_start()
    task, timetable, replicas = setup.task, setup.timetable, setup.replicas
    with (
        workdir.claimed(directory, resolved, task.files()),
        jax.set_mesh(replicas.mesh),
        Checkpoints(directory, config.train.keep) as checkpoints,
        processes.ending_alone(),
        checkpoints.telling_of_a_full_disk(),
        ExitStack() as opened,
    ):
        with Interrupts() as interrupts:  # only here: a report has nothing to save, so there a signal ends the program
            with processes.together():
                train_step = without_refused_kernels(lambda: replicas.train_step(setup.trainer, task))
                batches = opened.enter_context(closing(replicas.batches(task)))
                state, step, progress, remarks = restore_or_start(directory, setup, checkpoints, batches)
                recorder = opened.enter_context(closing(Recorder(directory, setup, step, progress)))
                recorder.say(*report.header(setup, state), *remarks)
                meter = Meter(setup, recorder, checkpoints, progress)
                evaluations = Evaluations(directory, setup, recorder, checkpoints, progress)
                workdir.keep(directory, resolved, finished=step == timetable.total or evaluations.exhausted)
            evaluations.catch_up(step, state)
            while step < timetable.total and not evaluations.exhausted:
                batch = next(batches)
                meter.expect(batch)
                state, reported = train_step(state, replicas.to_devices(batch, stacked=True))
                step += 1
                meter.add(step, reported, batch["index"])  # reads the step before while this one is computed
                stopping = interrupts.stop_after(step)
                if stopping or timetable.pauses(step):
                    meter.log(step)
                    improved = evaluations.validate(step, state)
                    if evaluations.exhausted:
                        meter.log_rest(step)
                    if improved or stopping or evaluations.exhausted or timetable.saves(step):
                        kept = recorder.progress() | meter.progress() | evaluations.progress()
                        checkpoints.save(step, state, batches, kept, evaluations.best)
                    recorder.clock.skip()
                if stopping:
                    break
            recorder.finish()
            checkpoints.wait()  # while signals are still handled, since a half-written checkpoint would be lost
        if step < timetable.total and not evaluations.exhausted:
            recorder.say(f"Stopped after step {step} and saved.")
            return None
        return report.write(directory, setup, recorder, step, evaluations.test(step, state))


def restore_or_start(
    directory: Path, setup: Setup, checkpoints: Checkpoints, batches: BatchIterator
) -> tuple[TrainState, int, dict[str, Any], list[str]]:
    """Returns state, step, progress and remarks, from the newest checkpoint or for a run that starts.

    Raises:
      UsageError: the run has taken more steps than the timetable has, its checkpoint is of an older version, or it has
        finished and its checkpoints are gone.
    """
    restored = checkpoints.restore(setup.replicas.abstract(setup.shapes), batches)
    if not restored:
        lost = set_aside(directory) if processes.is_first() else []
        state, remark = setup.replicas.start(setup.trainer, setup.task, setup.initial)
        return state, 0, {}, [*filter(None, [remark]), *lost]
    state, progress = restored
    step = int(state.step.max())  # all replicas share it
    if step > setup.timetable.total:
        raise UsageError(
            f"{directory} has been trained for {step} steps, but train.length is {setup.timetable.total} steps; give "
            "as many, or another --workdir."
        )
    if not isinstance(progress["best"], list):  # before replicas, it was the best of one
        raise UsageError(f"The checkpoints in {directory} are of an older version; choose another --workdir.")
    return state, step, progress, [f"Continuing after step {step} of {directory}"]
