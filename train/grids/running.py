"""The runs of a grid: those that differ in seed and learning rate alone are trained in one program and taken apart."""

import contextlib
import dataclasses
import functools
import itertools
import json
import operator
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from models.files import read_json
from train.cli import OVERRIDE
from train.cli.files import read_record, write_json, write_text
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

FOLDER = "together"  # of a sweep; what is in it is gone when its runs are in their own folders
MEMBERS = "members.json"
SEED, RATE = "seed", "optimizer.learning_rate"
Flags = Sequence[str]  # of `train.main`
Runs = Mapping[Path, Flags]  # by work directory
Ended = Callable[[Path], None]  # is given the work directory


@dataclasses.dataclass(frozen=True)
class Joint:
    """Runs of one program."""

    flags: Flags
    members: tuple[Path, ...]  # their own work directories, in the order of the replicas


def joined(todo: Runs, most: int, directory: Path) -> dict[Path, Joint]:
    """Groups runs into programs of at most `most` replicas, by the folder in which each program trains.

    One that is alone in its program trains in its own work directory.
    """
    alike: dict[tuple[str, ...], dict[str, dict[int, Path]]] = {}
    for path, flags in todo.items():
        fields = dict(flag.split("=", 1) for flag in flags)
        seed, rate = int(fields.pop(f"{OVERRIDE}{SEED}")), fields.pop(f"{OVERRIDE}{RATE}", "")
        rest = tuple(f"{name}={text}" for name, text in fields.items())
        alike.setdefault(rest, {}).setdefault(rate, {})[seed] = path
    joint = {}
    for rest, by_rate in alike.items():
        for rates, seeds in _blocks(by_rate, most):
            members = tuple(by_rate[rate][seed] for rate in rates for seed in seeds)
            own = [f"{OVERRIDE}train.rates=({', '.join(rates)})"] if len(rates) > 1 else []
            own += [f"{OVERRIDE}{RATE}={rate}" for rate in rates if rate and len(rates) == 1]
            own += [f"{OVERRIDE}train.replicas={len(seeds)}"] if len(seeds) > 1 else []
            flags = (*rest, f"{OVERRIDE}{SEED}={seeds[0]}", *own)
            place = _place(flags, members, directory) if len(members) > 1 else members[0]
            joint[place] = Joint(flags, members)
    return joint


def _place(flags: Flags, members: Sequence[Path], directory: Path) -> Path:
    """Names a program's folder by all that it trains, so that another program is never taken for it."""
    names = [str(member.relative_to(directory)) for member in members]
    digest = zlib.crc32(json.dumps([flags, names]).encode())
    return directory / FOLDER / f"{names[0].replace('/', '-')}-of-{len(members)}-{digest:08x}"


def _blocks(by_rate: Mapping[str, Mapping[int, Path]], most: int) -> Iterator[tuple[tuple[str, ...], range]]:
    """Yields rates and neighbouring seeds, of which all pairs are wanted, so that each pair is in one block."""
    of_seeds: dict[range, list[str]] = {}
    for rate, seeds in by_rate.items():
        for _, group in itertools.groupby(enumerate(sorted(seeds)), lambda pair: pair[1] - pair[0]):
            block = [seed for _, seed in group]
            for first in range(block[0], block[-1] + 1, most):
                of_seeds.setdefault(range(first, min(first + most, block[-1] + 1)), []).append(rate)
    for seeds, rates in of_seeds.items():
        at_once = max(1, most // len(seeds)) if "" not in rates else 1
        for start in range(0, len(rates), at_once):
            yield tuple(rates[start : start + at_once]), seeds


def take_apart(place: Path, members: Sequence[Path]) -> list[Path]:
    """Moves each replica of a finished run to its own work directory, as if it had been trained alone.

    Seconds are shared out evenly. The best and the last parameters can be evaluated; the state to go on with is gone.
    Replicas that diverged, which have a record and no result, are returned.
    """
    config, record, found, diverged = read_config(place), read_record(place), read_results(place), []
    examples = dict(np.load(place / EXAMPLES)) if (place / EXAMPLES).is_file() else {}
    source = Checkpoints(place, keep=1)

    @functools.lru_cache(maxsize=2)  # the last step is every replica's, and many share a best one
    def load(step: int) -> dict[str, Params]:
        return source.load_evaluated(step) if step in source.steps() else {}

    for replica, (member, result) in enumerate(zip(members, found, strict=True)):
        if pool.is_finished(member):
            continue
        member.mkdir(parents=True, exist_ok=True)
        write_json(member / "config.json", _config_of(config, result))
        for path in place.iterdir():
            if path.is_file() and path.suffix == ".json" and path.name not in ("config.json", "result.json"):
                shutil.copyfile(path, member / path.name)
        lines = [_shared(line, len(members)) for line in results.lines_of_replica(record, replica)]
        write_text(member / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
        with contextlib.closing(TensorBoard(member, 0)) as board:
            for line in lines:
                board.write(line)
        draw_curves(lines, member / "curves.png")
        if result.get("ended", {}).get("why") == DIVERGED:
            diverged.append(member)
            continue
        wanted = {result["best_step"], result["steps"]}
        with Checkpoints(member, keep=1) as target:
            target.clear()
            for step in wanted:
                if of_all := load(step):
                    own = jax.tree.map(operator.itemgetter(replica), of_all)
                    target.save(step, own, progress=None, best=wanted)
        if examples:
            own = {n: array if n == "index" else array[replica : replica + 1] for n, array in examples.items()}
            np.savez_compressed(member / EXAMPLES, **own)
        without = {n: v for n, v in result.items() if n not in ("replica", "seed", "learning_rate", "mean", "std")}
        write_json(member / "result.json", _shared(without, len(members)) | {"together": len(members)})  # last
    shutil.rmtree(place)
    _members(place).unlink()
    return diverged


def _members(place: Path) -> Path:
    return place.with_name(f"{place.name}.{MEMBERS}")


def _config_of(config: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    """Makes the config of one replica's run."""
    optimizer = config["optimizer"]
    if "learning_rate" in result:
        optimizer = optimizer | {"learning_rate": result["learning_rate"]}
    alone = config["train"] | {"replicas": 1, "rates": ()}
    return {**config, "seed": result["seed"], "optimizer": optimizer, "train": alone}


def _shared(line: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Shares out what is counted of all runs of a program together, which the seconds of an epoch are not."""

    def is_of_all(name: str) -> bool:
        return name in ("seconds", "wall_seconds") or name.endswith("_per_second")

    return {n: value / count if is_of_all(n) else value for n, value in line.items() if n != "replica"}


def run_all(todo: Runs, jobs: int, most: int, directory: Path, ended_one: Ended) -> dict[Path, str]:
    """Trains the runs that are left, `jobs` processes at a time (0 is one for each CPU), each of `most` runs at most.

    It says how each ended, and how long the others will take.
    """
    for path in sorted((directory / FOLDER).glob(f"*.{MEMBERS}")):
        place = path.with_name(path.name.removesuffix(f".{MEMBERS}"))
        if pool.is_finished(place):
            take_apart(place, [directory / member for member in read_json(path)])
    left = {path: flags for path, flags in todo.items() if not pool.is_finished(path)}
    joint = joined(left, most, directory)
    alone = {path: Joint(flags, (path,)) for path, flags in todo.items() if path not in left}
    programs, outcomes = alone | joint, dict.fromkeys(todo, pool.STOPPED)
    ended, board = list[Path](), Board(todo, directory)
    jobs = max(1, min(len(pool.shares(jobs)), len(joint)))
    several = f" in {counted(len(programs), 'program')}" if len(programs) < len(todo) else ""
    first = pool.log_of(next(iter(programs)))
    print(f"Runs: {len(todo)}{several}, {jobs} at a time; each prints to a file such as {first}", flush=True)

    def say(place: Path, outcome: str, left: float) -> None:
        members = programs[place].members
        apart = len(members) > 1 and outcome == pool.FINISHED
        diverged = take_apart(place, members) if apart else []
        rest = f"; {duration_text(left)} left" if left > 0 else ""
        with board.below():
            for path in members:
                outcomes[path] = pool.DIVERGED if path in diverged else outcome
                ended.append(path)
                ended_one(path)
                if outcomes[path] == pool.FINISHED:
                    board.add(path, *next(iter(_measured(path).items())))
                said = f"{path.relative_to(directory)}: {_result(path, place, outcomes[path])}"
                print(f"[{len(ended)}/{len(todo)}] {said}{rest}", flush=True)

    for place, program in joint.items():
        if len(program.members) > 1:  # so that what has finished can always be taken apart
            place.parent.mkdir(parents=True, exist_ok=True)
            write_json(_members(place), [str(member.relative_to(directory)) for member in program.members])
    pool.run_all({place: pool.command(program.flags, place) for place, program in programs.items()}, jobs, say)
    return outcomes


def _result(path: Path, place: Path, outcome: str) -> str:
    if outcome in (pool.FAILED, pool.DIVERGED):
        lines = pool.log_of(place).read_text(encoding="utf-8", errors="replace").splitlines()
        return f"failed, see {pool.log_of(place)}: {lines[-1] if lines else 'it printed nothing'}"
    if outcome == pool.STOPPED:
        return "stopped and saved"
    return numbers_text(_measured(path))


def _measured(path: Path) -> Mapping[str, float]:
    """Reads the metrics that a finished run is trained for: of the test, or where rates are tried of validation."""
    result = read_result(path)
    best = result.get("mean", result)["best"]  # `mean` is of seeds that were trained together
    return best["validation" if tuning.FOLDER in path.parts else "test"]


def sum_up(outcomes: Mapping[Path, str], then: str) -> int:
    """Says how many runs finished, how many failed, and what to do then; gives the exit code."""
    ended = list(outcomes.values())
    finished, failed = ended.count(pool.FINISHED), ended.count(pool.FAILED) + ended.count(pool.DIVERGED)
    have = "has" if len(outcomes) == 1 else "have"
    print(f"{finished} of {counted(len(outcomes), 'run')} {have} finished, {failed} failed.")
    if finished < len(outcomes):
        print("The same command continues; what has finished is not trained again.")
    if finished and then:
        print(then)
    return int(failed > 0)
