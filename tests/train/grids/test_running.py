"""Runs are grouped into programs of seeds and rates, each run in one of them."""

from pathlib import Path

import pytest

from train.grids.running import group_runs

SWEEP = Path("sweep")
BOTH = (["seed=0", "train.rates=(0.1, 0.2)", "train.replicas=2"], ["0.1/seed0", "0.1/seed1", "0.2/seed0", "0.2/seed1"])
COMMON = ("--config=configs/vit_digits.py", "--config.model.width=16")


def run(seed, rate="", *more):
    own = [f"--config.optimizer.learning_rate={rate}"] if rate else []
    path = SWEEP / "-".join(filter(None, (rate, *(one.rpartition("=")[2] for one in more)))) / f"seed{seed}"
    return path, [*COMMON, *more, *own, f"--config.seed={seed}"]


def programs(runs, most):
    """Each program's own flags, and the names of its members."""
    groups = group_runs(dict(runs), most, SWEEP)
    assert sorted(member for one in groups.values() for member in one.members) == sorted(dict(runs))
    flags = [[flag.removeprefix("--config.") for flag in one.flags if flag not in COMMON] for one in groups.values()]
    return [
        (own, [str(member.relative_to(SWEEP)) for member in one.members])
        for own, one in zip(flags, groups.values(), strict=True)
    ]


@pytest.mark.parametrize(
    ("runs", "most", "found"),
    [
        ([run(3), run(4), run(6)], 9, [(["seed=3", "train.replicas=2"], ["seed3", "seed4"]), (["seed=6"], ["seed6"])]),
        (
            [run(seed, rate) for rate in ("0.1", "0.2", "0.4") for seed in (0, 1)],
            4,
            [BOTH, (["seed=0", "optimizer.learning_rate=0.4", "train.replicas=2"], ["0.4/seed0", "0.4/seed1"])],
        ),
        (
            [run(0, "0.1"), run(0, "0.2"), run(1, "0.2")],
            9,
            [
                (["seed=0", "optimizer.learning_rate=0.1"], ["0.1/seed0"]),
                (["seed=0", "optimizer.learning_rate=0.2", "train.replicas=2"], ["0.2/seed0", "0.2/seed1"]),
            ],
        ),
        (
            [run(0, "", "--config.model.depth=1"), run(0, "", "--config.model.depth=2")],
            9,
            [(["model.depth=1", "seed=0"], ["1/seed0"]), (["model.depth=2", "seed=0"], ["2/seed0"])],
        ),
    ],
)
def test_runs_that_differ_in_seed_and_rate_alone_are_together(runs, most, found):
    assert programs(runs, most) == found


def test_a_program_of_one_run_trains_in_its_folder_and_another_beside_them():
    together, alone = group_runs(dict([run(3), run(4), run(7)]), 9, SWEEP)
    assert together.parent == SWEEP / "together"
    assert together.name.startswith("seed3-of-2-")
    assert alone == SWEEP / "seed7"


def test_programs_of_other_rates_have_other_folders_and_the_same_has_the_same():
    """Otherwise a sweep that continues with other rates would find another config in its folder."""
    made = [[run(seed, rate) for rate in rates for seed in (0, 1)] for rates in (("0.1", "0.2"), ("0.1", "0.4"))]
    first, other, again = ([*group_runs(dict(runs), 4, SWEEP)] for runs in (*made, made[0]))
    assert first == again
    assert not {*first} & {*other}
