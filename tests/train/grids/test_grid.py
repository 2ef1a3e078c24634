"""The request for a sweep: its values, its names, and which sweep extends which."""

import contextlib
import dataclasses

import pytest

from attention import UsageError
from train.grids import grid
from train.grids.grid import Sweep


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1,2,4", ["1", "2", "4"]),
        ("cycle(neural(dim=2,hidden=4)*3|super),a*2|b", ["cycle(neural(dim=2,hidden=4)*3|super)", "a*2|b"]),
        ("'16,24,32', ''", ["16,24,32", ""]),
        ('neural(query="a,)b"),x', ['neural(query="a,)b")', "x"]),
        ("'a'|'b'", ["'a'|'b'"]),
        ("'a,b)', (')',2)", ["a,b)", "(')',2)"]),
    ],
)
def test_commas_in_brackets_and_quotes_do_not_split(text, values):
    assert grid.split(text) == values


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["model.attention="], "--over model.attention= has no values; write --over model.attention=VALUE,VALUE"),
        (["model.heads=1,,2"], "'1,,2' has an empty value; write '' for one that is meant"),
        (["model.attention=neural(dim=2"], r"'neural\(dim=2' has no closing \)"),
        (["optimizer.learning_rate=1e-3,2e-3,.001"], "has '1e-3' and '.001', which are equal; give every value once"),
        (["model.attention=cycle(a*2|b),cycle(a|a|b)"], "which are equal; give every value once"),
        (["data.source=file:a/b,file:a-b"], "whose folders would both be called file-a-b; give them to two sweeps"),
        (["model.heads=1", "model.heads=2"], "model.heads is given twice"),
        (["model.depth=1,2"], "model.depth is given twice; give it once, as --over or as --config.model.depth"),
        (["seed=1,2"], "--over seed cannot be: --seeds decides it"),
        (["model.width=8,16"], "--over model.width cannot be: --equal=parameters decides it"),
        ([], "--equal=parameters needs an --over, whose first value is what the others are matched with"),
    ],
)
def test_mistakes_in_over_are_one_sentence(texts, message):
    with pytest.raises(UsageError, match=message):
        grid.over(texts, {"model.depth": "1"}, "parameters")


SWEEP = Sweep(
    "configs/a.py", {"model.depth": "1", "data.data_dir": "x"}, {"model.attention": ["a(b=1,c='2')", "b"]}, [[0]], ""
)


def test_cells_are_every_combination_and_have_names_of_their_own():
    sweep = dataclasses.replace(SWEEP, over={**SWEEP.over, "model.heads": ["1", "2"], "argument": ["x", "y"]})
    assert len(sweep.cells) == len({cell.name for cell in sweep.cells.values()}) == 8
    cell = sweep.cells["a(b=1,c='2')", "2", "y"]
    assert cell.name == "attention=a-b=1-c=-2--,heads=2,argument=y"
    assert cell.spec == "configs/a.py:y"
    assert cell.overrides == {**sweep.overrides, "model.attention": "a(b=1,c='2')", "model.heads": "2"}
    assert sweep.baseline(("b", "2", "y")) == ("a(b=1,c='2')", "2", "y")
    (alone,) = dataclasses.replace(SWEEP, over={}).cells.values()
    assert (alone.name, alone.spec) == ("a", "configs/a.py")


def test_long_names_are_cut_and_stay_apart():
    values = [f"{'x' * 300}{end}" for end in "ab"]
    names = [cell.name for cell in dataclasses.replace(SWEEP, over={"model.attention": values}).cells.values()]
    assert len(set(names)) == 2
    assert max(map(len, names)) < 255


MORE = {"over": {"model.attention": ["b", "c", "a(b=1,c='2')"]}}
MATCHED = {"equal": "flops"}


@pytest.mark.parametrize(
    ("before", "now", "differs"),
    [
        ({}, {}, ""),
        ({}, MORE, ""),
        ({}, {"overrides": {"model.depth": "1", "data.data_dir": "y"}}, ""),
        (MATCHED, MATCHED, ""),
        ({}, {"overrides": {"model.depth": "2"}}, "--config.model.depth;"),
        ({}, MATCHED, "equal;"),
        ({}, {"over": {"model.attention": ["b", "c"]}}, "--over model.attention;"),
        ({}, {"over": {"model.heads": ["1"]}}, "--over;"),
        (MATCHED, MATCHED | MORE, "its baseline, the first value of the first --over;"),
    ],
)
def test_more_extends_a_sweep_and_another_is_named_by_what_differs(tmp_path, before, now, differs):
    refused = pytest.raises(UsageError, match=f"holds another sweep, which differs in {differs}")
    with refused if differs else contextlib.nullcontext():
        grid.check_extends(dataclasses.replace(SWEEP, **before).plain, dataclasses.replace(SWEEP, **now), tmp_path)


def test_seeds_are_added_to_those_of_before(tmp_path):
    assert grid.seeds([], 3, 2, tmp_path) == [[3], [4]]
    assert grid.seeds([[3, 4]], 3, 4, tmp_path) == [[3, 4], [5], [6]]
    assert grid.seeds([[3], [4]], 3, 3, tmp_path) == [[3], [4], [5]]
    assert grid.seeds([[3, 4]], 3, 2, tmp_path) == [[3, 4]]
    for first, count in ((3, 1), (4, 5)):
        with pytest.raises(UsageError, match=r"holds a sweep of the seeds 3 to 4, which .* do not extend"):
            grid.seeds([[3, 4]], first, count, tmp_path)


def test_what_is_written_is_read_and_anything_else_is_refused(tmp_path):
    (tmp_path / "sweep.json.tmp").write_text("{")  # by a process that was killed before it had written anything else
    assert grid.read(tmp_path) is None
    record = SWEEP.plain | {"cells": {}}
    grid.write(tmp_path / "sweep", record)
    assert grid.read(tmp_path / "sweep") == record
    with pytest.raises(UsageError, match=r"is not empty and holds no sweep\.json; choose another --workdir"):
        grid.read(tmp_path)
    for text, message in (("{", "is damaged"), ('{"over": {}}', "is no record of a sweep")):
        (tmp_path / "sweep.json").write_text(text)
        with pytest.raises(UsageError, match=rf"sweep\.json {message}.*; choose another --workdir"):
            grid.read(tmp_path)
    with pytest.raises(UsageError, match=r"below cannot be written \(Not a directory\); choose another --workdir"):
        grid.write(tmp_path / "sweep.json" / "below", {})


def test_millions_are_refused_before_they_are_made():
    values = ",".join(map(str, range(1, 400)))
    with pytest.raises(UsageError, match="These --over make 63521199 settings, and at most 65536 are made"):
        grid.over([f"model.{field}={values}" for field in ("depth", "width", "mlp")], {}, "")
    with pytest.raises(UsageError, match="has 2000000 characters, and at most 20000 are read"):
        grid.split("1," * 10**6)


TUNED = SWEEP.plain | {
    "tune": {"field": "optimizer.learning_rate", "length": "1/3", "seeds": 1, "metric": "loss", "rule": "The least."},
    "cells": {"a": {"chosen": {"optimizer.learning_rate": "0.1"}, "tried": {"0.1": [0.5, None]}}},
}


def test_what_is_no_record_of_a_sweep_is_known():
    assert grid.is_record(TUNED)
    for name in ("over", "cells"):  # of what is tuned
        assert not grid.is_record({key: value for key, value in TUNED.items() if key != name})
    for over in (None, {"model.attention": "super"}):
        assert not grid.is_record(TUNED | {"over": over})
    for cell in ({}, {"chosen": {}, "tried": {"x": [0.5]}}):
        assert not grid.is_record(TUNED | {"cells": {"a": cell}})
