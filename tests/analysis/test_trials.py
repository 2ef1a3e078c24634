"""What is said of a table of trials: means, shares of seeds, and what can be claimed."""

import dataclasses

import numpy as np
import pytest

from analysis import trials, verdicts
from tests.analysis.tried import row
from train.grids.declaration import Comparison
from train.grids.trial_table import TrialTable


def test_what_can_be_claimed_is_said_by_rule(tried):
    said = [trials.sentence("delta", "dot_product", *found) for found in trials.judge(tried, "delta", "dot_product")]
    assert said[0].startswith("delta is worse than dot_product in stacked at size 128: -29.50 ± ")
    assert "undecided" in said[1]  # three of five seeds follow parity
    assert "would be found" in said[1]
    (equal,) = [sentence for sentence in _sentences(tried, "linear") if "parity" in sentence]
    assert "linear and dot_product are equal within 5.00 points in parity" in equal
    assert list(_sentences(tried, "super")) == []


@pytest.mark.parametrize(("seeds", "said"), [(5, "all seeds differ alike, by +10.00"), (1, "one seed decides nothing")])
def test_differences_without_a_spread_prove_nothing(tried, seeds, said):
    rows = [row("parity", "linear", [0.5] * seeds, 128), row("parity", "dot_product", [0.4] * seeds, 128)]
    (sentence,) = _sentences(dataclasses.replace(tried, rows=rows), "linear")
    assert said in sentence


def test_what_was_not_tuned_or_trained_to_the_end_is_told(tried):
    cell = trials.find(tried, "stacked", "linear")
    assert not trials.is_at_edge(tried, cell)
    assert trials.is_at_edge(tried, cell | {"rate": "1e-2"})
    still = {"steps": [250, 500, 1000, 1250], "curves": [[0.1, 0.2, 0.5, 0.52], [0.1, 0.2, 0.5, 0.5]]}
    assert trials.is_rising(still)  # from 0.5 at 1,000, four fifths of the training, to 0.51
    assert not trials.is_rising(still | {"curves": [[0.1, 0.2, 0.5, 0.505]]})
    assert not trials.is_rising({"steps": [10], "curves": [[0.5]]})


def test_what_would_be_found_lies_beyond_the_margin(tried):
    """A mean difference of this size is called better in 80 % of draws with the same spread."""
    generator = np.random.default_rng(0)
    spread = np.array([-0.02, -0.01, 0.0, 0.01, 0.02])
    declared = trials.declared([Comparison("one", ["a"], ["b"])])
    (verdict,) = verdicts.judge_differences([spread], declared)
    least = float(trials.finds(verdict).removesuffix(" points")) / 100
    draws = least + generator.normal(0, spread.std(ddof=1), (200, 5))
    said = [verdicts.judge_differences([draw], declared)[0].words for draw in draws]
    assert np.mean([words == verdicts.BETTER for words in said]) == pytest.approx(0.8, abs=0.09)


def test_kept_tables_stand_beside_where_their_settings_are_the_same(tried, tmp_path):
    ours = dataclasses.replace(tried, rows=[row("stacked", "delta", [0.9] * 5, 128)])
    ours.write(tmp_path / "ours.json")
    tried.write(tmp_path / "kept.json")
    joined, remarks = trials.read([tmp_path / "ours.json", tmp_path / "kept.json"])
    assert [cell["spec"] for cell in joined.rows] == ["delta", "dot_product", "linear", "retention", "super"]
    assert joined.rows[0]["accuracy_at_128"] == [0.9] * 5
    assert not remarks
    other = tried.trials["stacked"]["settings"] | {"train.length": "9 steps"}
    changed = {"stacked": tried.trials["stacked"] | {"settings": other}}
    TrialTable(changed, tried.rows[:1], [tried.made[0] | {"git": "another"}]).write(tmp_path / "kept.json")
    joined, (remark,) = trials.read([tmp_path / "ours.json", tmp_path / "kept.json"])
    assert [cell["spec"] for cell in joined.rows] == ["delta"]
    assert joined.made == ours.made, "the makers of rows that were left out are not named"
    assert "stacked of kept.json was left out" in remark


def _sentences(found, spec):
    return [trials.sentence(spec, "dot_product", *one) for one in trials.judge(found, spec)]
