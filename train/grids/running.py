"""The runs of a grid: those that differ only in seed and learning rate are trained in one program, then taken apart."""

import contextlib
import dataclasses
import functools
import itertools
import json
import operator
import shutil
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from models.files import read_json
from train.cli import OVERRIDE
from train.cli.files import TEMPORARY, read_record, write_json, write_text
from train.cli.terminal import counted
from train.grids import pool, tuning
from train.grids.board import Board
from train.run import results
from train.run.checkpoints import Checkpoints
from train.run.evaluations import EXAMPLES
from train.run.progress import DIVERGED, duration_text, numbers_text
from train.run.recorder import TensorBoard
from train.run.report import draw_curves
from train.run.workdir import read_config, read_result, read_results
from train.state import Params

FOLDER = "together"  # within a sweep: programs of several runs, until the runs are in their own folders
MEMBERS = "members.json"
SEED, RATE = "seed", "optimizer.learning_rate"
JOINT = ("replica", "seed", "learning_rate", "mean", "std")  # entries of a result that only runs trained together have
Flags = Sequence[str]  # of `train.main`
Runs = Mapping[Path, Flags]  # by work directory
Ended = Callable[[Sequence[Path]], None]  # called with the work directories of a program that has ended


@dataclasses.dataclass(frozen=True)
class RunGroup:
    """The runs of one program."""

    flags: Flags
    members: tuple[Path, ...]  # their own work directories, in the order of the replicas


def group_runs(todo: Runs, most: int, directory: Path) -> dict[Path, RunGroup]:
    """Groups runs into programs of at most `most` replicas, by the folder in which each program trains.

    A run that is alone in its program trains in its own work directory.
    """
    alike: dict[tuple[str, ...], dict[str, dict[int, Path]]] = {}
    for path, flags in todo.items():
        fields = dict(flag.split("=", 1) for flag in flags)
        seed, rate = int(fields.pop(f"{OVERRIDE}{SEED}")), fields.pop(f"{OVERRIDE}{RATE}", "")
        rest = tuple(f"{name}={text}" for name, text in fields.items())
        alike.setdefault(rest, {}).setdefault(rate, {})[seed] = path
    groups = {}
    for rest, by_rate in alike.items():
        for rates, seeds in _blocks(by_rate, most):
            members = tuple(by_rate[rate][seed] for rate in rates for seed in seeds)
            own = [f"{OVERRIDE}train.rates=({', '.join(rates)})"] if len(rates) > 1 else []
            own += [f"{OVERRIDE}{RATE}={rate}" for rate in rates if rate and len(rates) == 1]
            own += [f"{OVERRIDE}train.replicas={len(seeds)}"] if len(seeds) > 1 else []
            flags = (*rest, f"{OVERRIDE}{SEED}={seeds[0]}", *own)
            place = _place(flags, members, directory) if len(members) > 1 else members[0]
            groups[place] = RunGroup(flags, members)
    return groups


def _place(flags: Flags, members: Sequence[Path], directory: Path) -> Path:
    """Names a program's folder by everything that it trains, so that no other program has the same folder."""
    names = [str(member.relative_to(directory)) for member in members]
    digest = zlib.crc32(json.dumps([flags, names]).encode())
    return directory / FOLDER / f"{names[0].replace('/', '-')}-of-{len(members)}-{digest:08x}"


def _blocks(by_rate: Mapping[str, Mapping[int, Path]], most: int) -> Iterator[tuple[tuple[str, ...], range]]:
    """Divides pairs of rates and seeds into blocks of rates and successive seeds, in which every pair is wanted."""
    rates_of: dict[range, list[str]] = {}
    for rate, seeds in by_rate.items():
        for _, group in itertools.groupby(enumerate(sorted(seeds)), lambda pair: pair[1] - pair[0]):
            block = [seed for _, seed in group]
            for first in range(block[0], block[-1] + 1, most):
                rates_of.setdefault(range(first, min(first + most, block[-1] + 1)), []).append(rate)
    for seeds, rates in rates_of.items():
        at_once = max(1, most // len(seeds)) if "" not in rates else 1  # '' is the config's own rate
        for start in range(0, len(rates), at_once):
            yield tuple(rates[start : start + at_once]), seeds


def take_apart(place: Path, members: Sequence[Path]) -> list[Path]:
    """Moves each replica of a finished program to its own work directory, as a run of its own.

    Seconds are divided evenly. The best and the last parameters are kept for evaluation, but not the state from which a
    training continues. Returns the replicas that diverged, which have a record and no result.
    """
    config, record, diverged = read_config(place), read_record(place), []
    examples = dict(np.load(place / EXAMPLES)) if (place / EXAMPLES).is_file() else {}
    source = Checkpoints(place, keep=1)

    @functools.lru_cache(maxsize=2)  # all replicas have the same last step, and many the same best one
    def load(step: int) -> dict[str, Params]:
        return source.load_evaluated(step) if step in source.steps() else {}

    for replica, (member, result) in enumerate(zip(members, read_results(place), strict=True)):
        if pool.is_finished(member):
            continue
        member.mkdir(parents=True, exist_ok=True)
        rate = {"learning_rate": result["learning_rate"]} if "learning_rate" in result else {}
        sections = {"optimizer": config["optimizer"] | rate, "train": config["train"] | {"replicas": 1, "rates": ()}}
        write_json(member / "config.json", config | {"seed": result["seed"]} | sections)
        for path in place.iterdir():
            if path.is_file() and path.suffix == ".json" and path.name not in ("config.json", "result.json"):
                shutil.copyfile(path, member / path.name)
        lines = [_divided(line, len(members)) for line in results.lines_of_replica(record, replica)]
        write_text(member / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
        with contextlib.closing(TensorBoard(member, 0)) as board:
            for line in lines:
                board.write(line)
        draw_curves(lines, member / "curves.png")
        if result.get("ended", {}).get("why") == DIVERGED:
            diverged.append(member)
            continue
        steps = {result["best_step"], result["steps"]}
        with Checkpoints(member, keep=1) as target:
            target.clear()
            for step in steps:
                if params := load(step):
                    own = jax.tree.map(operator.itemgetter(replica), params)
                    target.save(step, own, progress=None, best=steps)
        if examples:
            own = {n: array if n == "index" else array[replica : replica + 1] for n, array in examples.items()}
            np.savez_compressed(member / EXAMPLES, **own)
        own = {name: value for name, value in result.items() if name not in JOINT}
        write_json(member / "result.json", _divided(own, len(members)) | {"together": len(members)})  # written last
    with pool.log_of(place).open("a", encoding="utf-8") as log:
        log.write(f"The runs have been moved to folders of their own, the first of which is {members[0]}.\n")
    _remove(place.rename(place.with_name(place.name + TEMPORARY)))  # at once, so that what is left is known as such
    return diverged


def _remove(gone: Path) -> None:
    """Removes the renamed folder of a program whose runs have their own, and the list of these; another may as well."""
    _members_file(gone.with_name(gone.name.removesuffix(TEMPORARY))).unlink(missing_ok=True)
    shutil.rmtree(gone, ignore_errors=True)


def _members_file(place: Path) -> Path:
    return place.with_name(f"{place.name}.{MEMBERS}")


def _divided(line: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Divides seconds and throughput, which are measured for a whole program, by the number of its runs.

    The seconds of an epoch are already those of one run.
    """

    def is_whole(name: str) -> bool:
        return name in ("seconds", "wall_seconds") or name.endswith("_per_second")

    return {name: value / count if is_whole(name) else value for name, value in line.items() if name != "replica"}


def run_all(todo: Runs, jobs: int, most: int, directory: Path, ended_together: Ended) -> dict[Path, str]:
    """Trains the runs that have not finished, and prints how each ended and how long the others will take.

    There are `jobs` programs at a time (0 is one for each CPU), each of at most `most` runs.
    """
    for gone in filter(Path.is_dir, (directory / FOLDER).glob(f"*{TEMPORARY}")):  # a killed sweep has left it
        _remove(gone)
    for path in sorted((directory / FOLDER).glob(f"*.{MEMBERS}")):
        place = path.with_name(path.name.removesuffix(f".{MEMBERS}"))
        if pool.is_finished(place):
            members = read_json(path, f"remove it and {place}, whose runs are then trained again")["members"]
            take_apart(place, [directory / member for member in members])
    left = {path: flags for path, flags in todo.items() if not pool.is_finished(path)}
    groups = group_runs(left, most, directory)
    finished = tuple(path for path in todo if path not in left)
    programs = {path: RunGroup((), finished) for path in finished[:1]} | groups
    outcomes, ended, board = dict.fromkeys(todo, pool.STOPPED), list[Path](), Board(todo, directory)
    jobs = max(1, min(len(pool.shares(jobs)), len(groups)))
    several = f" in {counted(len(groups), 'program')}" if len(groups) < len(left) else ""
    first = pool.log_of(next(iter(programs)))
    print(f"Runs: {len(todo)}{several}, {jobs} at a time; each prints to a file such as {first}", flush=True)

    def say(place: Path, outcome: str, left: float) -> None:
        members = programs[place].members
        diverged = take_apart(place, members) if place not in members and outcome == pool.FINISHED else []
        rest = f"; {duration_text(left)} left" if left > 0 else ""
        with board.below():
            outcomes.update({path: pool.DIVERGED if path in diverged else outcome for path in members})
            ended_together(members)
            for path in members:
                ended.append(path)
                if outcomes[path] == pool.FINISHED:
                    board.add(path, *next(iter(_measured(path).items())))
                said = f"{path.relative_to(directory)}: {_result(path, place, outcomes[path])}"
                print(f"[{len(ended)}/{len(todo)}] {said}{rest}", flush=True)

    for place, group in groups.items():
        if len(group.members) > 1:  # written first, so that a finished program can always be taken apart
            place.parent.mkdir(parents=True, exist_ok=True)
            names = [str(member.relative_to(directory)) for member in group.members]
            write_json(_members_file(place), {"members": names})

    def watch(running: Collection[Path]) -> None:
        board.watch({_several(programs[place].members, directory): pool.log_of(place) for place in running})

    pool.run_all({place: pool.command(group.flags, place) for place, group in programs.items()}, jobs, say, watch)
    return outcomes


def _several(members: Sequence[Path], directory: Path) -> str:
    """Names a program by its first run."""
    more = f" and {counted(len(members) - 1, 'more run')}" if len(members) > 1 else ""
    return f"{members[0].relative_to(directory)}{more}"


def _result(path: Path, place: Path, outcome: str) -> str:
    if outcome in (pool.FAILED, pool.DIVERGED):
        lines = pool.log_of(place).read_text(encoding="utf-8", errors="replace").splitlines()
        return f"failed, see {pool.log_of(place)}: {lines[-1] if lines else 'it printed nothing'}"
    if outcome == pool.STOPPED:
        return "stopped and saved"
    return numbers_text(_measured(path))


def _measured(path: Path) -> Mapping[str, float]:
    """Reads a finished run's metrics: on test data, or on validation data where the run tunes something."""
    result = read_result(path)
    best = result.get("mean", result)["best"]  # `mean` is that over seeds that were trained together
    return best["validation" if tuning.FOLDER in path.parts else "test"]


def sum_up(outcomes: Mapping[Path, str], then: str) -> int:
    """Prints how many runs finished, how many failed, and what to do next; returns the exit code."""
    ended = list(outcomes.values())
    finished, failed = ended.count(pool.FINISHED), ended.count(pool.FAILED) + ended.count(pool.DIVERGED)
    have = "has" if len(outcomes) == 1 else "have"
    print(f"{finished} of {counted(len(outcomes), 'run')} {have} finished, {failed} failed.")
    if finished < len(outcomes):
        print("The same command continues; what has finished is not trained again.")
    if finished and then:
        print(then)
    return int(failed > 0)
