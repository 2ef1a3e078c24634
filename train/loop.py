"""The whole training program, in order: devices and mesh, task, state, steps, report."""

from pathlib import Path
from typing import Any

import jax

from attention.errors import UsageError
from train.config.schema import Config
from train.mesh import feeds, processes
from train.run import workdir
from train.run.checkpoints import Checkpoints
from train.run.training import TrainingRun
from train.setup import Setup
from train.start import Initial
from train.state import TrainState


def train_and_evaluate(config: Config, resolved: dict[str, Any], directory: Path) -> dict[str, Any] | None:
    """Trains until the run is done or interrupted; continues the run in the work directory, if there is one.

    Args:
      config: The validated config.
      resolved: The config as plain values, written to `config.json`.
      directory: The work directory.

    Returns:
      The content of `result.json`, or None if the run was interrupted.
    """
    with processes.together():
        setup = Setup.of(config)
        setup.check_memory()
        kept = Checkpoints(directory, config.train.keep)
        initial = None if kept.numbered() else Initial.of(setup)
        files = setup.task.files()
    processes.check_same(resolved, files)
    with (
        workdir.claimed(directory, resolved, files),
        jax.set_mesh(setup.replicas.mesh),
        kept,
        processes.ending_alone(),
        kept.explaining_a_full_disk(),
        TrainingRun(setup, directory, resolved, kept) as run,
    ):
        with run.hearing_signals():
            with processes.together():
                state = run.start(lambda: setup.fresh(initial or Initial.of(setup)))
                run.catch_up(state)
            state = train(setup, run, state)
            finished = run.end()
        return run.finish(state) if finished else None


def train(setup: Setup, run: TrainingRun, state: TrainState) -> TrainState:
    """Takes steps until the run ends or is stopped, in calls that end at the timetable's edges."""
    with feeds.of(setup.replicas, setup.task.sources["train"], run.feed) as feed:
        run.feed, program = feed.name, setup.program(feed, run.not_counted)
        run.recorder.say(*feed.remarks)
        while run.goes_on:
            try:
                rows, index = feed.take(run.step, min(run.count, feed.most))
            except UsageError:  # the data can no longer be read, but the state is good
                if run.step:
                    run.save(state)
                raise
            state, reported = program(state, rows, len(index))
            run.took(reported, index)
            state = run.pause(state)
    return state
