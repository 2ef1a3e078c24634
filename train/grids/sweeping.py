"""A sweep from its flags to its runs: what is asked for, checked, chosen and trained."""

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

LISTED = 12  # settings that are named before they are checked


def asked(flags: argparse.Namespace) -> grid.Sweep:
    """Reads which sweep the flags ask for, without seeds; raises a UsageError where they have a mistake."""
    overrides = flags.overrides
    over = grid.over(flags.over, overrides, flags.equal)
    also = grid.also(flags.also, over)
    if also and flags.equal:
        raise UsageError("--also cannot be beside --equal, which matches settings of the grid; leave one out.")
    sweep = grid.Sweep(flags.config, overrides, over, [], flags.equal, also)
    cells = list(sweep.cells.values())
    if flags.tune:
        taken = {*overrides, *over, *grid.decided(""), *(field for setting in also for field in setting)}
        field, _, values = flags.tune.partition("=")
        values, beyond = grid.split(values) if values else [], int(flags.tune_beyond)
        tune = tuning.read(field, values, flags.tune_length, flags.tune_seeds, beyond, cells[0], taken)
        tune = dataclasses.replace(tune, apart=flags.tune_apart)
        sweep = dataclasses.replace(sweep, tune=tune)
    if flags.declare:
        declared = declaration.read(flags.declare)
        declared.check([cell.name for cell in cells])
        sweep = dataclasses.replace(sweep, declaration=declared)
    return sweep


@dataclasses.dataclass
class Plan:
    """A checked sweep in its folder, with what was chosen and tried so far."""

    sweep: grid.Sweep  # what was asked for
    prepared: matching.Prepared  # what its settings need
    chosen: dict[str, dict[str, str]]  # by setting, the values of fields that were matched or tuned
    tried: tuning.Tried  # by setting and value, how its trials did
    directory: Path  # the folder
    command: str  # what made it

    @classmethod
    def of(cls, flags: argparse.Namespace, sweep: grid.Sweep, before: Mapping[str, Any] | None) -> "Plan":
        """Checks the settings and matches those that are new; what was chosen before stays."""
        if before:
            grid.check_extends(before, sweep, flags.workdir)
        kept = before["cells"] if before else {}
        known = {name: cell["chosen"] for name, cell in kept.items()}
        requests = {values: cell.but(known.get(cell.name, {})) for values, cell in sweep.cells.items()}
        baselines = [
            requests[sweep.baseline(values) if flags.equal and request.name not in known else values]
            for values, request in requests.items()
        ]
        prepared = matching.apart(matching.prepare, [*requests.values()], baselines, flags.equal, flags.replicas)
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
        """Writes the request, the trials and the choices to `sweep.json`."""
        equal, sizes, tried = self.sweep.equal, self.prepared.sizes, self.tried
        cells = {name: {"chosen": chosen} for name, chosen in self.chosen.items()}
        for name, cell in cells.items():
            cell |= ({equal: sizes[name]} if equal else {}) | ({"tried": tried[name]} if name in tried else {})
        grid.write(self.directory, {"command": self.command} | self.sweep.plain | {"cells": cells})

    def matched(self) -> list[str]:
        """Writes a line for each setting that was matched with its baseline."""
        cells, sizes, equal = self.sweep.cells, self.prepared.sizes, self.sweep.equal
        lines = []
        for values, cell in cells.items() if equal else ():
            if chosen := self.chosen[cell.name]:
                choice = ", ".join(f"{field} {text}" for field, text in chosen.items())
                size, share = sizes[cell.name], sizes[cell.name] / sizes[cells[self.sweep.baseline(values)].name] - 1
                lines.append(f"{cell.name}: {choice}: {size:,} {equal}, {share:+.2%} of the baseline's")
        return lines

    def trials(self) -> tuning.Trials:
        """Plans what is to be tried next for settings that have no value yet."""
        tune = self.sweep.tune
        if not tune:
            return {}
        waiting = [setting for setting in self.settings if tune.field not in self.chosen[setting.name]]
        return tune.trials(waiting, self.tried, self.prepared.seed, self.directory)

    def tune(self) -> None:
        """Chooses the best value for each setting that has none yet."""
        tune = self.sweep.tune
        for name, chosen in self.chosen.items() if tune else ():
            if tune.field not in chosen:
                tuning.check_finite(name, self.tried[name])
                chosen[tune.field] = tune.best(self.tried[name])

    def runs(self) -> dict[Path, list[str]]:
        """Lists the runs: the first seeds of all settings, then the next."""
        found = {}
        for seeds in self.sweep.seeds:
            own = {"seed": str(seeds[0])} | ({"train.replicas": str(len(seeds))} if len(seeds) > 1 else {})
            for setting in self.settings:
                found[self.directory / setting.name / grid.run_name(seeds)] = setting.but(own).flags
        return found


def _then(directory: Path) -> str:
    return f"python -m analysis.report {directory} makes tables of what has finished."


def _give(todo: Runs, flags: argparse.Namespace) -> int:
    """Prints or submits the runs that are left; gives the exit code."""
    left = {path: run_flags for path, run_flags in todo.items() if not pool.is_finished(path)}
    if flags.print:
        for path, run_flags in left.items():
            print(shlex.join(["python", "-m", "train.main", *run_flags, f"--workdir={path}"]))
    else:
        _submit([pool.command(run_flags, path) for path, run_flags in left.items()], flags.workdir, flags.slurm)
    return 0


def _submit(commands: Sequence[Sequence[str]], directory: Path, options: str) -> None:
    """Submits commands as one array of SLURM jobs, whose output goes to `slurm/` in the sweep's folder."""
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


def run(flags: argparse.Namespace, ended: Ended = lambda path: None) -> int:
    """Plans the sweep, then trains, prints or submits the runs that are left; `ended` is called with each that ended.

    The exit code is 0 for done or saved, 1 where a run failed. Ctrl-C is heard while runs train. Mistakes in the
    arguments are found before anything is trained.
    """
    if "train.replicas" in flags.overrides:
        raise UsageError("--config.train.replicas cannot be: --replicas decides it.")
    before, sweep = grid.read(flags.workdir), asked(flags)
    prints = flags.print or flags.slurm is not None
    if not prints:
        names = [cell.name for cell in sweep.cells.values()]
        more = [f"and {len(names) - LISTED} more"] if len(names) > LISTED else []
        print(f"Checking the settings (seeds of each: {flags.seeds}):", *names[:LISTED], *more, sep="\n  ", flush=True)
    plan = Plan.of(flags, sweep, before)
    plan.write()
    for line in () if flags.print else plan.matched():
        print(line)
    jobs, most = flags.jobs or (0 if plan.prepared.platform == "cpu" else 1), plan.prepared.together
    while trials := plan.trials():
        todo = {path: run_flags for paths in trials.values() for path, run_flags in paths.items()}
        outcomes = {} if prints else run_all(todo, jobs, most, flags.workdir, ended)
        plan.tried = plan.sweep.tune.scored(plan.tried, trials, outcomes)
        plan.write()
        if any(value not in plan.tried.get(name, {}) for name, value in trials):
            return _give(todo, flags) if prints else sum_up(outcomes, _then(flags.workdir))
    plan.tune()
    plan.write()
    todo = plan.runs()
    if plan.sweep.tune:
        plan.sweep.tune.reuse(plan.chosen, todo)
    if prints:
        return _give(todo, flags)
    return sum_up(run_all(todo, jobs, most, flags.workdir, ended), _then(flags.workdir))
