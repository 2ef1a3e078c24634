"""A sweep from the command line to its runs: it is checked, matched, tuned and trained."""

import argparse
import dataclasses
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attention.errors import UsageError
from train.cli.terminal import counted
from train.grids import declaration, grid, matching, pool, tuning
from train.grids.running import Ended, Runs, run_all, sum_up
from train.loading import literal

LISTED = 12  # the most settings that are named while they are checked


def asked(flags: argparse.Namespace) -> grid.Sweep:
    """Reads the sweep that the flags ask for, without seeds; raises a UsageError where they have a mistake."""
    overrides = flags.overrides
    over = grid.over(flags.over, overrides, flags.equal)
    also = grid.also(flags.also, over)
    if also and flags.equal:
        raise UsageError("--also cannot be combined with --equal, which matches settings of the grid; leave one out.")
    sweep = grid.Sweep(flags.config, overrides, over, [], flags.equal, also)
    cells = list(sweep.cells.values())
    if flags.tune:
        taken = {*overrides, *over, *grid.decided(""), *(field for setting in also for field in setting)}
        values = flags.tune.partition("=")[2]
        tune = tuning.read(flags, grid.split(values) if values else [], cells[0], taken)
        sweep = dataclasses.replace(sweep, tune=tune)
    if flags.declare:
        declared = declaration.read(flags.declare)
        declared.check([cell.name for cell in cells])
        sweep = dataclasses.replace(sweep, declaration=declared)
    return sweep


@dataclasses.dataclass
class Plan:
    """A checked sweep with what has been chosen and tried so far."""

    sweep: grid.Sweep
    prepared: matching.Prepared
    chosen: dict[str, dict[str, str]]  # by setting, the values of fields that were matched or tuned
    tried: tuning.Tried  # the scores of trials
    directory: Path  # the sweep's folder
    command: str  # the command line

    @classmethod
    def of(cls, flags: argparse.Namespace, sweep: grid.Sweep, before: Mapping[str, Any] | None) -> "Plan":
        """Checks the settings and matches new ones; what was chosen `before` stays."""
        if before:
            grid.check_extends(before, sweep, flags.workdir)
        kept = before["cells"] if before else {}
        known = {name: cell["chosen"] for name, cell in kept.items()}
        requests = {values: cell.but(known.get(cell.name, {})) for values, cell in sweep.cells.items()}
        baselines = [
            requests[sweep.baseline(values) if flags.equal and request.name not in known else values]
            for values, request in requests.items()
        ]
        arguments = [*requests.values()], baselines, flags.equal, flags.replicas
        prepared = matching.in_new_process(matching.prepare, *arguments)
        seeds = grid.seeds(before["seeds"] if before else [], prepared.seed, flags.seeds, flags.workdir)
        chosen = {name: {**known.get(name, {}), **new} for name, new in prepared.chosen.items()}
        tried = {name: cell["tried"] for name, cell in kept.items() if "tried" in cell}
        command = shlex.join(["python", "-m", "train.sweep", *flags.arguments])
        return cls(dataclasses.replace(sweep, seeds=seeds), prepared, chosen, tried, flags.workdir, command)

    @property
    def settings(self) -> list[matching.Request]:
        """The settings with what was chosen for them."""
        return [cell.but(self.chosen[cell.name]) for cell in self.sweep.cells.values()]

    def write(self) -> None:
        """Writes the sweep, the scores and the choices to `sweep.json`."""
        equal, sizes, tried = self.sweep.equal, self.prepared.sizes, self.tried
        cells = {name: {"chosen": chosen} for name, chosen in self.chosen.items()}
        for name, cell in cells.items():
            cell |= ({equal: sizes[name]} if equal else {}) | ({"tried": tried[name]} if name in tried else {})
        grid.write(self.directory, {"command": self.command} | self.sweep.plain | {"cells": cells})

    def matched(self) -> list[str]:
        """Describes in a line each setting that was matched with its baseline."""
        cells, sizes, equal = self.sweep.cells, self.prepared.sizes, self.sweep.equal
        lines = []
        for values, cell in cells.items() if equal else ():
            if chosen := self.chosen[cell.name]:
                choice = ", ".join(f"{field} {text}" for field, text in chosen.items())
                size, share = sizes[cell.name], sizes[cell.name] / sizes[cells[self.sweep.baseline(values)].name] - 1
                lines.append(f"{cell.name}: {choice}: {size:,} {equal}, {share:+.2%} of the baseline's")
        return lines

    def trials(self) -> tuning.Trials:
        """Plans the next trials of settings that have no tuned value yet."""
        tune = self.sweep.tune
        if not tune:
            return {}
        waiting = [setting for setting in self.settings if tune.field not in self.chosen[setting.name]]
        return tune.trials(waiting, self.tried, self.prepared.seed, self.directory)

    def tune(self) -> None:
        """Chooses the best value for each setting that has no tuned value yet."""
        tune = self.sweep.tune
        for name, chosen in self.chosen.items() if tune else ():
            if tune.field not in chosen:
                tuning.check_finite(name, self.tried[name])
                chosen[tune.field] = tune.best(self.tried[name])

    def runs(self) -> dict[Path, list[str]]:
        """Lists the runs: the first seeds of all settings, then the second ones, and so on."""
        runs = {}
        for seeds in self.sweep.seeds:
            own = {"seed": str(seeds[0])} | ({"train.replicas": str(len(seeds))} if len(seeds) > 1 else {})
            for setting in self.settings:
                runs[self.directory / setting.name / grid.run_name(seeds)] = setting.but(own).flags
        return runs


def _give(todo: Runs, flags: argparse.Namespace) -> int:
    """Prints or submits the runs that have not finished; returns the exit code."""
    left = {path: run_flags for path, run_flags in todo.items() if not pool.is_finished(path)}
    if flags.print:
        for path, run_flags in left.items():
            print(shlex.join(["python", "-m", "train.main", *run_flags, f"--workdir={path}"]))
    else:
        _submit([pool.command(run_flags, path) for path, run_flags in left.items()], flags.workdir, flags.slurm)
    return 0


def _submit(commands: Sequence[Sequence[str]], directory: Path, options: str) -> None:
    """Submits commands as one array of SLURM jobs, which print to `slurm/` in the sweep's folder."""
    try:
        import submitit
    except ImportError as error:
        raise UsageError(
            "--slurm needs submitit, which is not installed: pip install submitit, or use --print."
        ) from error
    pairs = [option.partition("=") for option in (grid.split(options) if options else ())]
    executor = submitit.AutoExecutor(folder=directory / "slurm")
    try:
        executor.update_parameters(**{name: literal(value) for name, _, value in pairs})
    except (TypeError, NameError, ValueError) as error:
        raise UsageError(f"--slurm={options} is not what submitit takes: {error}.") from error
    jobs = executor.map_array(subprocess.check_call, commands) if commands else []
    print(f"Submitted {counted(len(jobs), 'job')}{f', {jobs[0].job_id} the first' if jobs else ''}.")


def run(flags: argparse.Namespace, ended: Ended = lambda paths: None) -> int:
    """Plans the sweep, then trains, prints or submits the runs that have not finished.

    Mistakes in the flags are found before anything is trained. `ended` is called with the runs that have ended
    together. The exit code is 0 where all runs finished or were saved, and 1 where one failed.
    """
    if "train.replicas" in flags.overrides:
        raise UsageError("--config.train.replicas cannot be: --replicas decides it.")
    before, sweep = grid.read(flags.workdir), asked(flags)
    prints = flags.print or flags.slurm is not None
    then = f"python -m analysis.report {flags.workdir} makes tables of what has finished."
    if not prints:
        names = [cell.name for cell in sweep.cells.values()]
        more = [f"and {len(names) - LISTED} more"] if len(names) > LISTED else []
        print(f"Checking the settings (seeds of each: {flags.seeds}):", *names[:LISTED], *more, sep="\n  ", flush=True)
    plan = Plan.of(flags, sweep, before)
    plan.write()
    for line in () if flags.print else plan.matched():
        print(line)
    jobs, most = flags.jobs or plan.prepared.jobs, plan.prepared.together
    while trials := plan.trials():
        todo = {path: run_flags for paths in trials.values() for path, run_flags in paths.items()}
        outcomes = {} if prints else run_all(todo, jobs, most, flags.workdir, ended)
        plan.tried = plan.sweep.tune.scored(plan.tried, trials, outcomes)
        plan.write()
        if any(value not in plan.tried.get(name, {}) for name, value in trials):
            return _give(todo, flags) if prints else sum_up(outcomes, then)
    plan.tune()
    plan.write()
    todo = plan.runs()
    if plan.sweep.tune:
        plan.sweep.tune.reuse(plan.chosen, todo)
    if prints:
        return _give(todo, flags)
    return sum_up(run_all(todo, jobs, most, flags.workdir, ended), then)
