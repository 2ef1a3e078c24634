"""Plant the defects of tests/mutants.toml one at a time in a copy of the checkout, and see that their tests fail.

python -m tests.mutants
python -m tests.mutants --only rotary_sign window_one_too_wide
python -m tests.mutants --start smoothing_adds --seconds 300
"""

import argparse
import collections
import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
LIST = Path(__file__).with_suffix(".toml")
KILLED, SURVIVED, STALE = "killed", "SURVIVED", "stale"
FAILED = 1  # pytest's exit code where tests ran and some failed; others are no verdict on a mutant


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A defect of the product: `new` for `old`, which the file has once; `tests` are to fail, as pytest takes them."""

    name: str
    file: str
    old: str
    new: str
    breaks: str
    tests: Sequence[str]

    def planted(self, text: str) -> str:
        """Replaces the old text; raises a ValueError unless it stands there once."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.file} has the old text of {self.name} {text.count(self.old)} times, not once.")
        return text.replace(self.old, self.new)


def mutants() -> list[Mutant]:
    return [Mutant(name, **fields) for name, fields in tomllib.loads(LIST.read_text()).items()]


def copied(to: Path) -> Path:
    """Copies what git tracks, and what is new, to a folder."""
    listed = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in filter(None, subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split("\0")):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)
    return to


def run(tests: Sequence[str], copy: Path, seconds: float) -> tuple[int | None, str]:
    """Runs tests in the copy until one fails; returns pytest's exit code, None where time was up, and what it said."""
    cache = {"JAX_COMPILATION_CACHE_DIR": f"{copy}.compiled", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    # Bytecode is told apart by a file's size and second, which a mutant may share with what it replaces.
    environment = os.environ | cache | {"PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not long", *tests]
    try:
        done = subprocess.run(command, cwd=copy, env=environment, timeout=seconds, capture_output=True, text=True)
    except subprocess.TimeoutExpired:
        return None, ""
    return done.returncode, done.stdout + done.stderr


def judged(mutant: Mutant, copy: Path, seconds: float) -> str:
    """Says whether the tests kill a mutant; one that makes them run on for ever counts as killed."""
    path = copy / mutant.file
    try:
        before = path.read_text()
        path.write_text(mutant.planted(before))
    except (OSError, ValueError):
        return STALE
    try:
        code, _ = run(mutant.tests, copy, seconds)
    finally:
        path.write_text(before)
    return KILLED if code in (FAILED, None) else SURVIVED if code == 0 else f"{STALE} (pytest ends with {code})"


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--only", nargs="+", default=(), metavar="NAME", help="the mutants to plant; all by default")
    flags.add_argument("--start", default="", metavar="NAME", help="the first of the list to plant, to go on from it")
    flags.add_argument("--seconds", type=float, default=300, help="how long the tests of a mutant may take")
    return flags


def chosen(only: Sequence[str], start: str) -> list[Mutant]:
    """Takes the mutants that the flags name; raises SystemExit for a name that is not in the list."""
    listed = {mutant.name: mutant for mutant in mutants()}
    if unknown := {*only, *filter(None, [start])} - {*listed}:
        raise SystemExit(f"{LIST.name} has no {', '.join(sorted(unknown))}.")
    names = list(listed)
    names = names[names.index(start) if start else 0 :]
    return [listed[name] for name in names if not only or name in only]


def main() -> int:
    """Plants the chosen mutants; returns 0 where all are killed."""
    flags = parser().parse_args()
    planted, verdicts = chosen(flags.only, flags.start), {}
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = copied(Path(folder) / "checkout")
        tests = sorted({test for mutant in planted for test in mutant.tests})
        code, said = run(tests, copy, len(planted) * flags.seconds)
        if code != 0:
            raise SystemExit(f"{said[-3000:]}\nWithout a mutant the tests end with {code}, not 0.")
        for number, mutant in enumerate(planted, 1):
            begun = time.monotonic()
            verdicts[mutant.name] = judged(mutant, copy, flags.seconds)
            took = time.monotonic() - begun
            print(f"{number}/{len(planted)} {mutant.name}: {verdicts[mutant.name]}, {took:.0f} s", flush=True)
    for mutant in planted:
        if verdicts[mutant.name] != KILLED:
            print(f"{verdicts[mutant.name]:10} {mutant.name} ({mutant.file}): {mutant.breaks}")
    print(", ".join(f"{count} {verdict}" for verdict, count in collections.Counter(verdicts.values()).items()))
    return int(any(verdict != KILLED for verdict in verdicts.values()))


if __name__ == "__main__":
    sys.exit(main())
