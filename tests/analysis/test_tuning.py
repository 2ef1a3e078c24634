"""What a report says of tuning: every value that was tried, what was chosen, and the rule."""

import json

from analysis import runs, tables, tuning

TUNE = {"field": "optimizer.learning_rate", "length": "1/3", "seeds": 2, "metric": "accuracy", "rule": "The best is."}
TRIED = {"1e-3": [0.5, 0.7], "3e-3": [0.8, None]}  # one diverged
SWEEP = {"tune": TUNE, "cells": {"attention=super": {"chosen": {TUNE["field"]: "1e-3"}, "tried": TRIED}}}


def test_a_table_has_what_was_tried_and_chosen():
    assert "| attention=super | 60.00 | – | 1e-3 |" in tables.markdown(tuning.table([SWEEP]))
    (note,) = tuning.notes([SWEEP])
    assert "tuned in trials of 1/3 of a run's length with 2 seeds" in note
    assert note.endswith("The best is.")


def test_a_trial_is_no_run_of_its_sweep(tmp_path, write_run):
    write_run(tmp_path / "attention=super/seed0")
    write_run(tmp_path / "tuning/attention=super/learning_rate=1e-3/seed0", 1)
    (tmp_path / "sweep.json").write_text(json.dumps({"over": {}}))
    (group,) = runs.find([tmp_path]).groups
    assert group.seeds == (0,)
