"""What is drawn of a tuning is every value that was tried, the chosen one filled, without those that diverged."""

from analysis import tables, tuning
from analysis.pictures import tuning as picture

TUNE = {"field": "optimizer.learning_rate", "length": "1/3", "seeds": 2, "metric": "accuracy", "rule": "The best is."}
TRIED = {"1e-3": [0.5, 0.7], "3e-3": [0.8, 0.9], "1e-2": [0.8, None]}
SWEEP = {"tune": TUNE, "cells": {"super": {"chosen": {TUNE["field"]: "3e-3"}, "tried": TRIED}}}


def test_the_picture_and_the_table_have_what_was_tried_and_chosen():
    (axes,) = picture.figure(SWEEP).axes
    points = [(line.get_xdata().tolist(), line.get_markerfacecolor()) for line in axes.lines]
    assert [(xs, face == "white") for xs, face in points] == [([0.001, 0.003], True), ([0.003], False)]
    assert "| super | 60.00 | 85.00 | – | 3e-3 |" in tables.markdown(tuning.table([SWEEP]))
