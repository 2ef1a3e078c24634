"""What a report says of tuning: every value that was tried, what was chosen, and the rule."""

import json

import pytest

from analysis import archive, comparison, report, runs
from analysis.pictures import tuning as picture

TUNE = {
    "field": "optimizer.learning_rate",
    "values": ["1e-3", "3e-3"],
    "length": "1/3",
    "seeds": 2,
    "metric": "accuracy",
    "highest": True,
    "rule": "The best mean is chosen.",
}
TRIED = {
    "attention=dot_product": {"1e-3": [0.5, 0.7], "3e-3": [0.8, None]},
    "attention=super": {"1e-3": [0.5, 0.5], "3e-3": [0.8, 0.9]},
}


@pytest.fixture
def swept(tmp_path, write_run):
    """Makes a sweep of two mechanisms with a rate each and two seeds, and a finished trial, which is not its run."""
    folder = tmp_path / "runs"
    chosen = {"attention=dot_product": "1e-3", "attention=super": "3e-3"}
    cells = {name: {"chosen": {TUNE["field"]: rate}, "tried": TRIED[name]} for name, rate in chosen.items()}
    for name, rate in chosen.items():
        for seed in (0, 1):
            settings = {"model__attention": name.partition("=")[2], "optimizer__learning_rate": float(rate)}
            write_run(folder / name / f"seed{seed}", seed, accuracy=0.9 + 0.01 * seed, **settings)
    write_run(folder / "tuning/attention=super/learning_rate=1e-3/seed0", model__attention="super")
    over = {"model.attention": ["dot_product", "super"]}
    beside = [{"model.attention": "linear", "model.heads": "1"}]
    record = {"over": over, "also": beside, "tune": TUNE, "cells": cells}
    (folder / "sweep.json").write_text(json.dumps(record))
    return folder


@pytest.mark.usefixtures("undrawn")
def test_a_report_has_what_was_tried_and_chosen(tmp_path, swept):
    assert report.main([str(swept), f"--out={tmp_path / 'out'}"]) == 0
    page = (tmp_path / "out/report.md").read_text()
    assert "| attention=dot_product | 60.00 | – | 1e-3 |" in page
    assert "| attention=super | 50.00 | 85.00 | 3e-3 |" in page
    assert "tuned in trials of 1/3 of a run's length with 2 seeds" in page
    assert "2 settings, 4 runs" in page  # the trial is none of them


def test_an_archive_keeps_it(tmp_path, swept):
    kept = tmp_path / "kept.json"
    archive.main([str(swept), f"--out={kept}"])
    ours, theirs = runs.find([kept]), runs.find([swept])
    assert ours.sweeps == theirs.sweeps
    assert archive.read(kept).asked == {"model.attention": ["dot_product", "super"], "model.heads": []}
    assert comparison.report(ours).tuning == comparison.report(theirs).tuning


def test_the_picture_fills_what_was_chosen_and_leaves_out_what_diverged(swept):
    (axes,) = picture.figure(json.loads((swept / "sweep.json").read_text())).axes
    points = [(line.get_xdata().tolist(), line.get_markerfacecolor()) for line in axes.lines]
    assert [xs for xs, _ in points] == [[0.001], [0.001], [0.001, 0.003], [0.003]]
    assert [face == "white" for _, face in points] == [True, False, True, False]
