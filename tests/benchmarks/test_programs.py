"""Benchmarks that no other test runs, each in its shortest form."""

import pytest

SHORTEST = (
    "compiling --rounds=1 --vocabulary=500 --batch=2 --context=64",
    "endurance --rounds=1 --seconds=0.5",
    "profile_step --steps=1",
    "replicas --configs configs/vit_digits.py --replicas=2 --rounds=1 --steps=0",
    "startup --rounds=1",
)


@pytest.mark.long
@pytest.mark.parametrize("command", SHORTEST)
def test_it_measures_and_ends_with_a_table(command, run_python):
    name, *flags = command.split()
    assert run_python("-m", f"benchmarks.{name}", *flags).stdout.splitlines()[-1].startswith("| ")
