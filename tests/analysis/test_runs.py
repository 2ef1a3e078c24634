"""Work directories become groups of seeds; what is no finished run is named."""

import json

import pytest

from analysis import runs
from attention import UsageError


def labels(found):
    return [(each.label, each.seeds) for each in found.groups]


def test_what_follows_from_other_fields_is_no_key(tmp_path, write_run):
    """Widths that were chosen for each mechanism and number of heads tell no further rows apart."""
    widths = {("dot_product", 1): 64, ("dot_product", 4): 64, ("super", 1): 70, ("super", 4): 72}
    for (attention, heads), width in widths.items():
        path = tmp_path / attention / f"{heads}"
        write_run(path, model__attention=attention, model__heads=heads, model__width=width)
    asked = {"over": {"model.attention": ["super", "dot_product"], "model.heads": ["4", "1"]}}
    (tmp_path / "sweep.json").write_text(json.dumps(asked))
    found = runs.find([tmp_path / "super", tmp_path / "dot_product"])
    assert found.keys == ("model.attention", "model.heads")
    assert [each.label for each in found.groups] == [
        f"{a}, heads {h}" for a in ("super", "dot_product") for h in (4, 1)
    ]
    assert [each.settings["model.width"] for each in found.groups] == [72, 70, 64, 64]


def test_seeds_that_were_trained_together_are_runs_of_their_own(tmp_path, write_run):
    write_run(tmp_path / "run", seed=5, seconds=8.0)
    result = json.loads((tmp_path / "run/result.json").read_text())
    del result["best"], result["best_step"]
    own = [{"best": {"test": {"accuracy": accuracy}}, "best_step": 10} for accuracy in (0.25, 0.75)]
    (tmp_path / "run/result.json").write_text(json.dumps(result | {"replicas": own}))
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    both = [line | {"replica": r, "accuracy": line["accuracy"] + r} for line in lines for r in (0, 1)]
    (tmp_path / "run/metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in both))
    (group,) = runs.find([tmp_path]).groups
    assert group.seeds == (5, 6)
    assert [run.value("accuracy") for run in group.runs] == [0.25, 0.75]
    assert [run.value("accuracy", "train") for run in group.runs] == [0.6, 1.6]
    assert [point[2] for point in group.runs[1].curve("accuracy")] == [1.5, 1.7, 1.8, 1.85]
    assert [run.seconds for run in group.runs] == [4.0] * 2


def test_where_and_how_a_run_is_made_is_a_setting_only_of_a_sweep_that_varied_it(tmp_path, write_run):
    for number in (1, 4):
        elsewhere = {"data__cache_dir": f"/{number}", "train__keep": number, "mesh__data": number}
        write_run(tmp_path / f"workers={number}/seed0", data__workers=number, **elsewhere)
    with pytest.raises(UsageError, match="are the same run"):
        runs.find([tmp_path])
    beside = {"over": {"data.workers": ["4"]}, "also": [{"data.workers": "1"}]}
    (tmp_path / "sweep.json").write_text(json.dumps(beside))
    assert [each.label for each in runs.find([tmp_path]).groups] == ["workers 4", "workers 1"]


ODD = {"a": {"data__source": {"a": 1}}, "b": {"data__classes": [{}]}, "c": {"data__batch_size": 0}}


def test_what_is_no_finished_run_is_named_and_left_out(tmp_path, write_run):
    write_run(tmp_path / "good")
    write_run(tmp_path / "unfinished", finished=False)
    write_run(tmp_path / "damaged", seed=1)
    (tmp_path / "damaged/result.json").write_text("{")
    write_run(tmp_path / "other", seed=2)
    (tmp_path / "other/result.json").write_text('{"answer": 42}')
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign/config.json").write_text('{"model_type": "bert"}')
    for name, changes in ODD.items():
        write_run(tmp_path / name, **changes)
    found = runs.find([tmp_path])
    assert labels(found) == [("all runs", (0,))]
    reasons = dict.fromkeys(ODD, "its config.json is not that of a run") | {
        "damaged": "cannot be read",
        "foreign": "its config.json is not that of a run",
        "other": "result.json holds no result of a run",
        "unfinished": "the run has not finished",
    }
    for (name, reason), sentence in zip(reasons.items(), found.left_out, strict=True):
        assert str(tmp_path / name) in sentence
        assert reason in sentence


def test_all_of_a_folder_may_be_given_though_not_all_are_runs(tmp_path, write_run):
    """`runs/*` may give a run, a sweep with its trials and report, a log, a picture, and other folders."""
    for seed in (0, 1):
        write_run(tmp_path / f"sweep/setting/seed{seed}", seed)
    write_run(tmp_path / "sweep/tuning/setting/learning_rate=1e-3/seed3", 3)
    write_run(tmp_path / "lone", 2)
    (tmp_path / "sweep/sweep.json").write_text('{"over": {}}')
    (tmp_path / "pictures").mkdir()
    for name in ("lone.log", "a.png", "b.json"):
        (tmp_path / name).write_bytes(b"{}")
    found = runs.find([*sorted(tmp_path.iterdir()), tmp_path / "sweep", *(tmp_path / "sweep").glob("s*")])
    assert labels(found) == [("all runs", (0, 1, 2))]
    (passed,) = found.left_out
    assert passed == "Skipped, since they hold no run: a.png, b.json, lone.log, pictures, sweep.json."


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        (["empty"], "There is no finished run in .*empty; give folders"),
        (["swept"], r"sweep\.json is damaged \(it does not say what varies\); remove it"),
        (["unfinished"], "There is no finished run in .*: .*unfinished was left out: the run has not finished"),
        (["one", "two"], "one and .*two are the same run, of seed 0; leave one of them out"),
        (["one", "nowhere"], "nowhere is no folder; give folders of runs"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path, write_run, folders, message):
    (tmp_path / "empty").mkdir()
    write_run(tmp_path / "one")
    write_run(tmp_path / "two")
    write_run(tmp_path / "unfinished", finished=False)
    write_run(tmp_path / "swept/setting/seed0")
    (tmp_path / "swept/sweep.json").write_text("{}")
    with pytest.raises(UsageError, match=message):
        runs.find([tmp_path / folder for folder in folders])
