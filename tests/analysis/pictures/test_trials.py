"""Pictures of a table of trials show what it holds."""

import numpy as np

from analysis.pictures import __main__ as pictures
from analysis.pictures import trials
from tests.analysis.tried import row
from train.grids.trial_table import TrialTable

RETAINED = 100 * np.mean([0.2, 1 / 64, 0.22, 0.21, 0.19])


def test_mechanisms_are_in_the_order_of_how_far_they_came_above_chance(tried):
    assert trials.ordered(tried) == ["delta", "dot_product", "linear", "retention", "super"]
    assert trials.above_chance(0.75, 0.5) == 0.5
    assert trials.above_chance(0.4, 0.5) == 0


def test_the_frontier_has_a_mark_for_each_mechanism_and_width(tried):
    """Recall is at the greatest size, drawn against the cache's bytes."""
    narrow = row("stacked_narrow", "retention", [0.1] * 5, 128) | {"cache_bytes_at_128": 1024}
    wide = TrialTable(tried.trials | {"stacked_narrow": tried.trials["stacked"]}, [*tried.rows, narrow], tried.made)
    (axes,) = trials.frontier(wide, ["retention"]).axes
    lines = {line.get_label(): line.get_xydata() for line in axes.lines if not line.get_label().startswith("_")}
    assert lines.keys() == {"dot_product", "linear", "delta", "retention", "chance"}
    np.testing.assert_allclose(lines["dot_product"], [[64, 99.9]])
    np.testing.assert_allclose(lines["retention"], [[1, 10], [4, RETAINED]])


def test_the_program_draws_them(tried, tmp_path):
    tried.write(tmp_path / "trials.json")
    for kind in ("map", "frontier"):
        flags = [f"--kind={kind}", f"--out={tmp_path}/{kind}.svg"]
        assert pictures.main(["trials", f"{tmp_path}/trials.json", *flags]) == 0
        assert (tmp_path / f"{kind}.svg").is_file()
