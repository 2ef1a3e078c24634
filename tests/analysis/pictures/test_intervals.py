"""What is drawn of a comparison are the seeds, their means and the intervals by hand; what is read is test data."""

import json
import math

import numpy as np
import pytest

from analysis.metrics import METRICS
from analysis.pictures import intervals
from analysis.report import main
from attention.errors import UsageError

VALUES = {"worse": [0.90, 0.92, 0.94], "better": [0.95, 0.96, 0.97], "alone": [0.93], "none": [math.nan] * 3}
T_OF_TWO = 4.302652729911275  # Student's t, two degrees of freedom, 97.5 %


def lines(axes, place):
    """Lists the markers and x of all lines in a row."""
    drawn = [line for line in axes.lines if len(set(line.get_ydata())) == 1 and line.get_ydata()[0] == place]
    return [(line.get_marker(), np.asarray(line.get_xdata())) for line in drawn]


def test_rows_are_sorted_and_have_seeds_mean_and_interval():
    (axes,) = intervals.figure(VALUES, METRICS["accuracy"]).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["better", "alone", "worse"]
    bar, seeds, mean = lines(axes, 2)
    half = T_OF_TWO * 2.0 / math.sqrt(3)
    np.testing.assert_allclose(bar[1], [92 - half, 92 + half])
    np.testing.assert_allclose(seeds[1], [90, 92, 94])
    np.testing.assert_allclose(mean[1], [92])
    assert [marker for marker, _ in lines(axes, 1)] == ["o", "|"]  # one seed has no interval


def test_the_lower_loss_is_on_top_and_the_baseline_is_drawn_through():
    (axes,) = intervals.figure(VALUES, METRICS["loss"], {"better"}).axes
    assert axes.get_yticklabels()[0].get_text() == "worse"
    through = [line for line in axes.lines if list(line.get_ydata()) == [0, 1]]
    assert [line.get_xdata()[0] for line in through] == pytest.approx([0.96])


def test_a_file_of_results_is_read(tmp_path):
    runs = {"super": [{"best": {"test": {"accuracy": 0.5}, "train": {"accuracy": 0.9}}}]}
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"runs": runs}))
    assert intervals.read([path], "accuracy") == {"super": [0.5]}
    with pytest.raises(UsageError, match="has the metric loss"):
        intervals.read([path], "loss")


def test_folders_are_read_as_reports_do_and_reports_draw_it(tmp_path, write_run):
    for seed, accuracy in enumerate([0.5, 0.6]):
        write_run(tmp_path / f"{seed}", seed, accuracy, model__attention="super")
    assert list(intervals.read([tmp_path], "accuracy").values()) == [[0.5, 0.6]]
    assert main([str(tmp_path), f"--out={tmp_path / 'out'}"]) == 0
    assert {"comparison.png", "comparison.svg"} <= {path.name for path in (tmp_path / "out").iterdir()}
