"""Bands are means and standard deviations over seeds, wherever their points are."""

import json
import statistics

import numpy as np
import pytest

from analysis.pictures import curves
from attention import UsageError


def line(step, value, split="validation", **more):
    return {"step": step, "split": split, "accuracy": value, "seconds": 0.5 * step, "examples_per_second": 9.0} | more


def run(values, split="validation", every=10):
    return [line(every * (n + 1), value, split) for n, value in enumerate(values)]


SEEDS = [run([0.1, 0.5, 0.7]), run([0.3, 0.4, 0.9]), run([0.2, 0.3, 0.8])]


def test_curves_with_other_points_are_interpolated_where_all_reach():
    """The mean of straight lines through the origin is the line of the mean slope."""
    points, slopes = (np.array([0.0, 1.0, 4.0]), np.array([0.5, 2.0, 3.0, 9.0])), (2.0, 4.0)
    found = curves.band([np.stack([x, x, slope * x]) for x, slope in zip(points, slopes, strict=True)])
    x = np.array([0.5, 1, 2, 3, 4])
    np.testing.assert_allclose(found, [x, 3 * x, statistics.stdev(slopes) * x])


def test_seeds_whose_seconds_do_not_overlap_are_drawn_at_their_mean_seconds():
    """The second seed begins at 50 seconds, after the first has ended at 15."""
    slower = [entry | {"seconds": 10 * entry["seconds"]} for entry in SEEDS[1]]
    figure = curves.figure({"super": [SEEDS[0], slower], "neural": SEEDS}, axes=("seconds",))
    points = drawn_at(figure.axes[0])[0]
    assert len(points) == 2
    np.testing.assert_allclose(points[0], [[27.5, 0.2], [55, 0.45], [82.5, 0.8]])


def drawn_at(axes):
    """Lists x and y of each line, and the outline of each band."""
    return [artist.get_xydata() for artist in axes.lines], [band.get_paths()[0].vertices for band in axes.collections]


def test_what_is_drawn_is_the_band_against_steps_epochs_and_seconds():
    figure = curves.figure({"super": SEEDS}, axes=("step", "epoch", "seconds"), epoch=20.0)
    values = np.array([[entry["accuracy"] for entry in seed] for seed in SEEDS])
    for axes, x in zip(figure.axes, ([10, 20, 30], [0.5, 1, 1.5], [5, 10, 15]), strict=True):
        (points,), (outline,) = drawn_at(axes)
        np.testing.assert_allclose(points, np.stack([x, values.mean(0)], axis=1))
        low, high = values.mean(0) - values.std(0, ddof=1), values.mean(0) + values.std(0, ddof=1)
        np.testing.assert_allclose([outline[:, 1].min(), outline[:, 1].max()], [low.min(), high.max()])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metrics": ["acuracy"]}, "Unknown metric .* Did you mean 'accuracy'"),
        ({"axes": ["epoch"], "epoch": float("nan")}, "needs the number of steps in an epoch"),
        ({"groups": {"super": [run([0.1], "train")]}}, "nothing to draw"),
        ({"groups": {"super": [SEEDS[0], [line(110, 0.5)]]}}, "one begins at step 110, another ends at 30"),
    ],
)
def test_wrong_choices(options, message):
    with pytest.raises(UsageError, match=message):
        curves.figure(**{"groups": {"super": SEEDS}} | options)


def test_runs_are_grouped_by_their_label_or_their_attention(tmp_path):
    for name, attention, seed in (("a", "super", 0), ("b=1", "super", 1), ("c", "neural", 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"model": {"attention": attention}}))
        (tmp_path / name / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in SEEDS[seed]))
    groups = curves.read([f"{tmp_path}/a", f"{tmp_path}/b=1", f"d=2={tmp_path}/c", f"d=2={tmp_path}/b=1"])
    assert groups == {"super": SEEDS[:2], "d=2": [SEEDS[2], SEEDS[1]]}


def test_what_holds_no_run_or_no_metrics_is_told(tmp_path, capsys):
    for name in ("s/a", "s/b"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.json").write_text('{"model": {"attention": "super"}}')
    (tmp_path / "s/a/metrics.jsonl").write_text('{"step": 1, "split": "train", "loss": 1.0}\n')
    (tmp_path / "lone.log").write_text("said")
    assert len(curves.read([f"swept={tmp_path}/s", f"{tmp_path}/lone.log"])["swept"]) == 1
    assert capsys.readouterr().out == "Skipped, since they hold no run: lone.log.\n"
    with pytest.raises(UsageError, match=r"no metrics\.jsonl yet"):
        curves.read([f"{tmp_path}/s/b"])
