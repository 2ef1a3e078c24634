"""Declarations alone say what a config's fields are."""

import dataclasses
import math
import re

import pytest

from attention.errors import UsageError
from attention.types import Names
from models.fields import BOOKKEEPING, HARDWARE, SETTING
from train import loading
from train.loading.leaves import CHANGEABLE, LEAVES, NOT_SETTINGS, SECTIONS, completed, leaves_of


@pytest.mark.parametrize("cls", SECTIONS.values())
def test_every_field_is_declared_and_its_default_is_valid(cls):
    leaves = leaves_of(cls)
    sections = {f"{other.PATH}".rstrip(".") for other in SECTIONS.values()}
    assert {cls.PATH + field.name for field in dataclasses.fields(cls)} - sections == set(leaves)
    for path, leaf in leaves.items():
        assert leaf.help.endswith("."), path
        assert leaf.role in (SETTING, BOOKKEEPING, HARDWARE), path
        leaf.valid.check(getattr(cls, path.removeprefix(cls.PATH)), path)


WRONG = {
    bool: [1, "True"],
    int: [True, 2.5, "2", None, 2**40, -(2**40)],
    float: [True, "1", None, math.nan, math.inf, 10**400],
    str: [1, None, ("a",)],
    tuple: [[], 1, "a"],
}


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("cls", SECTIONS.values())
def test_every_field_refuses_what_its_type_does(cls):
    """Another test compares the bounds and names in docs/configs.md with the declarations."""
    for path, leaf in leaves_of(cls).items():
        name, bounds = path.removeprefix(cls.PATH), leaf.valid.range
        beyond = {"at least 0": -1, "at least 1": -3, "above 0": -0.5, "at most": 2**30, "below": 2**33}
        wrong = WRONG[leaf.valid.kind] + [value for words, value in beyond.items() if words in bounds]
        for value in [*wrong, *(["nothing"] if leaf.valid.note(Names) else [])]:
            with pytest.raises(UsageError, match=rf"^(Unknown )?{re.escape(path)} (must be|'nothing')"):
                cls(**{name: value})


def test_dataclasses_that_share_a_field_agree_on_its_role():
    for cls in SECTIONS.values():
        for path, leaf in leaves_of(cls).items():
            for trait in ("role", "changeable", "tells_apart", "sweep", "size_of"):
                assert getattr(leaf, trait) == getattr(LEAVES[path], trait), (cls, path, trait)


def test_what_is_checked_against_the_data_may_change_and_what_seeds_decide_may_not():
    assert {"data.classes", "data.vocabulary", "train.length", "model.implementation", "mesh.data"} <= CHANGEABLE
    assert not CHANGEABLE & {"seed", "train.replicas", "model.width", "data.batch_size", "optimizer.learning_rate"}
    assert {"seed", "train.replicas", "mesh.data", "data.cache_dir", "train.keep"} <= NOT_SETTINGS
    assert not NOT_SETTINGS & {"train.length", "model.implementation", "data.vocabulary"}


def test_a_stored_config_gets_the_fields_that_came_later():
    plain = loading.load("configs/vit_digits.py").to_dict() | {"seed": 5}
    stored = plain | {"data": {n: v for n, v in plain["data"].items() if n not in ("cache_dir", "revision")}}
    stored["train"] = plain["train"] | {"ema": 0.5}
    assert completed(stored) == plain | {"train": stored["train"]}
    assert completed({"task": ["no"], "model": 3}) == {"task": ("no",), "model": 3}
