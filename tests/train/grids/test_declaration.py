"""What a declaration must say, and the sentence about one that does not."""

import json

import pytest

from attention import UsageError
from train.grids import declaration

COMPARISON = {"name": "heads", "settings": ["heads=4"], "baselines": ["heads=1"], "claim": "better", "effect": 0.01}
DECLARED = {"question": "Do heads help?", "metric": "accuracy", "margin": 0.005, "family": [COMPARISON]}


def test_what_is_written_is_read(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(DECLARED | {"detects": 0.002}))
    made = declaration.read(tmp_path / "a.json")
    assert (made.question, made.metric, made.margin, made.detects) == ("Do heads help?", "accuracy", 0.005, 0.002)
    assert made.family[0] == declaration.Comparison("heads", ["heads=4"], ["heads=1"], "better", 0.01)
    made.check(["heads=1", "heads=4"])
    with pytest.raises(UsageError, match="Unknown setting of the comparison 'heads' 'heads=1'"):
        made.check(["heads=2", "heads=4"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metric": ""}, "study.json: metric must be filled in, but it is ''"),
        ({"family": [COMPARISON | {"baselines": ["a", "b"]}]}, "'heads' needs as many baselines as settings"),
        ({"family": [COMPARISON | {"claim": "as much", "effect": 0}]}, "'heads' claims 'as much' but no amount"),
        ({"family": [COMPARISON, COMPARISON | {"name": "b"}]}, "has the comparison 'heads' twice; declare"),
        ({"family": [COMPARISON, COMPARISON | {"settings": ["heads=8"]}]}, "has the comparison 'heads' twice"),
    ],
)
def test_mistakes_are_one_sentence(changes, message):
    with pytest.raises(UsageError, match=message):
        declaration.parse(DECLARED | changes, "study.json")


def test_a_file_that_is_none(tmp_path):
    (tmp_path / "a.json").write_text("{")
    for name in ("a.json", "b.json"):
        with pytest.raises(UsageError, match=f"{name} .* docs/comparing.md says what"):
            declaration.read(tmp_path / name)
