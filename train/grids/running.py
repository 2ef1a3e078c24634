"""The runs of a grid, trained together where they can be, with a line for each that has ended."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from train.grids import pool, together, tuning
from train.run.progress import duration_text, numbers_text
from train.run.workdir import read_result

Runs = Mapping[Path, Sequence[str]]  # the flags of each run by its work directory
Ended = Callable[[Path], None]  # is given the work directory


def run_all(todo: Runs, jobs: int, most: int, directory: Path, ended_one: Ended) -> dict[Path, str]:
    """Trains the runs that are left, `jobs` processes at a time (0 is one for each CPU), each of `most` runs at most.

    It says how each ended, and how long the others will take.
    """
    together.take_apart_finished(directory)
    left = {path: flags for path, flags in todo.items() if not pool.is_finished(path)}
    joint = together.joined(left, most, directory)
    alone = {path: together.Joint(flags, (path,)) for path, flags in todo.items() if path not in left}
    programs, outcomes = alone | joint, dict.fromkeys(todo, pool.STOPPED)
    ended: list[Path] = []
    jobs = max(1, min(len(pool.shares(jobs)), len(joint)))
    several = f" in {len(programs)} program{'s' * (len(programs) > 1)}" if len(programs) < len(todo) else ""
    first = pool.log_of(next(iter(programs)))
    print(f"Runs: {len(todo)}{several}, {jobs} at a time; each prints to a file such as {first}", flush=True)

    def say(place: Path, outcome: str, left: float) -> None:
        members = programs[place].members
        apart = len(members) > 1 and outcome == pool.FINISHED
        diverged = together.take_apart(place, members) if apart else []
        rest = f"; {duration_text(left)} left" if left > 0 else ""
        for path in members:
            outcomes[path] = pool.DIVERGED if path in diverged else outcome
            ended.append(path)
            ended_one(path)
            line = f"[{len(ended)}/{len(todo)}] {path.relative_to(directory)}: {_result(path, place, outcomes[path])}"
            print(f"{line}{rest}", flush=True)

    for place, program in joint.items():
        if len(program.members) > 1:
            together.begin(place, program, directory)
    pool.run_all({place: pool.command(program.flags, place) for place, program in programs.items()}, jobs, say)
    return outcomes


def _result(path: Path, place: Path, outcome: str) -> str:
    if outcome in (pool.FAILED, pool.DIVERGED):
        lines = pool.log_of(place).read_text(encoding="utf-8", errors="replace").splitlines()
        return f"failed, see {pool.log_of(place)}: {lines[-1] if lines else 'it printed nothing'}"
    if outcome == pool.STOPPED:
        return "stopped and saved"
    result = read_result(path)
    best = result.get("mean", result)["best"]  # `mean` is of seeds that were trained together
    return numbers_text(best["validation" if tuning.FOLDER in path.parts else "test"])


def sum_up(outcomes: Mapping[Path, str], then: str) -> int:
    """Says how many runs finished, how many failed, and what to do then; gives the exit code."""
    ended = list(outcomes.values())
    finished, failed = ended.count(pool.FINISHED), ended.count(pool.FAILED) + ended.count(pool.DIVERGED)
    print(f"{finished} of {len(outcomes)} runs have finished, {failed} failed.")
    if finished < len(outcomes):
        print("The same command continues; what has finished is not trained again.")
    if finished and then:
        print(then)
    return int(failed > 0)
