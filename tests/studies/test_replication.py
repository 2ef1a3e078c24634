"""The sweeps of the replication page: each can be trained as it stands, and its tables are made of what is kept."""

import dataclasses
import json
import subprocess

import pytest

from analysis import archive, metrics, report
from analysis import runs as found_runs
from attention import UsageError
from studies import declared, replication
from tests.analysis.conftest import config, write_run  # noqa: F401
from tests.conftest import ROOT
from train import sweep
from train.config import loading
from train.grids import grid
from train.grids.grid import Sweep
from train.main import parse


@pytest.fixture
def page(tmp_path, monkeypatch):
    """A page with room for one study, in a folder of its own."""
    path = tmp_path / "page.md"
    path.write_text("a\n<!-- figures: mnist -->\nold\n<!-- end -->\nb\n<!-- figures: imdb -->\n<!-- end -->\nc\n")
    monkeypatch.setattr(replication, "PAGE", path)
    monkeypatch.setattr(replication, "KEPT", tmp_path / "kept")
    return path


@pytest.fixture
def swept(tmp_path, write_run):  # noqa: F811
    """Two mechanisms, 1 and 2 heads, three seeds; the one mechanism is better by about 5 points, two heads are by 2."""
    for attention, offset in (("dot_product", 0.0), ("super", 0.05)):
        for heads, more in ((1, 0.0), (2, 0.02)):
            for seed in range(3):
                path = tmp_path / f"runs/mnist/attention={attention},heads={heads}/seed{seed}"
                accuracy = 0.8 + (offset + more) * (1 + 0.01 * seed) + 0.01 * seed
                write_run(path, seed, accuracy, model__attention=attention, model__heads=heads)
    return plan(tmp_path / "runs/mnist", "dot_product", "super")


def plan(folder, *mechanisms):
    over = {"model.attention": [*mechanisms], "model.heads": ["1", "2"]}
    record = dataclasses.asdict(Sweep("configs/vit_mnist.py", {}, over, [[0], [1], [2]], ""))
    cells = {f"attention={name},heads={heads}": {"chosen": {}} for name in mechanisms for heads in (1, 2)}
    grid.write(folder, record | {"cells": cells})
    return folder


@pytest.mark.parametrize("name", replication.STUDIES)
def test_every_config_of_a_study_is_valid(name, tmp_path):
    study = replication.STUDIES[name]
    overrides = parse([f"--config.{field.format(data='data')}" for field in study.fields])[1]
    sweep = Sweep(study.config, overrides, grid.over(study.over, overrides, study.equal), [], study.equal)
    assert len(sweep.cells) >= 2
    for cell in sweep.cells.values():
        loading.resolve(cell.spec, cell.overrides)


@pytest.mark.parametrize("name", replication.DECLARED)
def test_a_declared_study_compares_settings_that_it_trains(name, tmp_path):
    study = replication.DECLARED[name]
    made = sweep.asked(sweep.main.parser().parse_args(study.flags("data", tmp_path)))
    assert made.declaration.metric == study.metrics[0]
    assert all(metrics.find(metric) for metric in study.metrics)
    assert made.tune.length == "1/3"
    assert made.tune.seeds == 1
    assert len(made.tune.values) == 3
    assert made.declaration.detects > 0 < study.hours
    for cell in made.cells.values():
        loading.resolve(cell.spec, cell.overrides)


def test_the_code_that_trains_declared_studies_is_in_the_history():
    assert not history() or declared.COMMIT in history()


def test_declared_studies_fit_their_budget():
    assert sum(study.hours for study in replication.DECLARED.values()) <= 61


def test_flags_are_those_of_a_sweep(tmp_path):
    flags = replication.STUDIES["matched"].flags("data", tmp_path / "matched")
    assert flags[0] == "--config=configs/vit_mnist.py"
    assert "--config.data.data_dir=data/tfds" in flags
    assert flags[-4:] == ["--seeds=3", "--equal=parameters", "--replicas=no", f"--workdir={tmp_path}/matched"]


def test_tables_are_made_of_what_is_kept(page, tmp_path, swept, monkeypatch):
    monkeypatch.setattr(replication.sweep, "run", lambda flags: 0)
    kept = replication.KEPT / "mnist.json"
    assert replication.train(["--config=c", "--workdir=w"], swept, kept)
    replication.put("mnist", kept)
    text = page.read_text()
    assert "old" not in text
    assert text.startswith("a\n<!-- figures: mnist -->\n\n4 settings, 12 runs; seeds a setting: 3.")
    assert text.endswith("<!-- end -->\nb\n<!-- figures: imdb -->\n<!-- end -->\nc\n")
    assert "| super | 1 | 100 (1) | 1,000 (1) | 86.05 ± 1.05 (1) | 0.1000 ± 0.0000 (1) | 3 |" in text
    found = found_runs.find([swept])
    made = [report.report(found, names=["accuracy", "loss"]), report.report(found, "heads=1", ["accuracy"])]
    sentences = [str(cell) for each in made for cell in each.differences.columns[-1].cells]
    assert sentences[0].startswith("better by 5.05")
    assert sentences[-1].startswith("better by 2.02")
    assert all(f"| {sentence} |" in text for sentence in sentences)


@pytest.mark.parametrize("begun", [False, True], ids=["between two runs", "within a run"])
def test_what_has_not_finished_is_not_kept(begun, page, swept, write_run, monkeypatch):  # noqa: F811
    monkeypatch.setattr(replication.sweep, "run", lambda flags: 0)
    plan(swept, "dot_product", "super", "linear")
    for heads, seed in ((1, 0), (1, 1), (1, 2), (2, 0), (2, 1)):
        write_run(swept / f"attention=linear,heads={heads}/seed{seed}")
    if begun:
        write_run(swept / "attention=linear,heads=2/seed2", finished=False)
    with pytest.raises(KeyboardInterrupt):
        replication.train(["--config=c", "--workdir=w"], swept, replication.KEPT / "mnist.json")
    monkeypatch.setattr(replication.sweep, "run", lambda flags: 1)
    assert not replication.train(["--config=c", "--workdir=w"], swept, replication.KEPT / "mnist.json")
    replication.put("mnist", replication.KEPT / "mnist.json")
    assert "old" in page.read_text()
    assert not replication.KEPT.exists()


def test_what_has_finished_so_far_is_kept_on_request(page, swept, write_run, capsys):  # noqa: F811
    plan(swept, "dot_product", "super", "linear")
    write_run(swept / "attention=linear,heads=2/seed0", finished=False)
    assert replication.main(["--only", "mnist", "imdb", "--archive", f"--runs={swept.parent}"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed == [
        "mnist: 12 of 18 runs are kept in mnist.json.",
        "imdb: no run has finished, so nothing was kept.",
    ]
    assert len(archive.read(replication.KEPT / "mnist.json").entries) == 12
    assert "old" in page.read_text()


def test_what_was_kept_is_put_back_and_not_trained_again(page, swept, tmp_path, capsys):
    assert replication.main(["--only", "mnist", "--archive", f"--runs={swept.parent}"]) == 0
    again = tmp_path / "again"
    for count in (12, 0):  # what is there stays
        assert replication.main(["--only", "mnist", "imdb", "--restore", f"--runs={again}"]) == 0
        assert f"mnist: {count} runs were put back.\nimdb: 0 runs were put back." in capsys.readouterr().out
    assert grid.read(again / "mnist") == grid.read(swept)
    for path in swept.glob("*/*/*.json"):
        assert json.loads((again / "mnist" / path.relative_to(swept)).read_text()) == json.loads(path.read_text())
    for ours, theirs in zip(found_runs.find([again / "mnist"]).groups, found_runs.find([swept]).groups, strict=True):
        assert [run.record for run in ours.runs] == [run.record for run in theirs.runs]


def history():
    """All commits that lead here; none where git or a part of the history is missing."""
    command = ["git", "-C", str(ROOT), "rev-list", "HEAD"]
    shallow = ["git", "-C", str(ROOT), "rev-parse", "--is-shallow-repository"]
    try:
        if subprocess.run(shallow, check=True, capture_output=True, text=True).stdout.strip() == "true":
            return ()
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    except (OSError, subprocess.CalledProcessError):
        return ()


@pytest.mark.parametrize("name", replication.DECLARED)
def test_an_archive_of_a_declared_study_is_what_was_declared(name, tmp_path):
    kept = replication.KEPT / f"{name}.json"
    if not kept.is_file():
        pytest.skip("no run of it has been kept yet")
    found, commits = archive.read(kept), history()
    (record,) = found.sweeps
    made = sweep.asked(sweep.main.parser().parse_args(replication.DECLARED[name].flags("data", tmp_path))).plain
    assert {key: record[key] for key in ("config", "over", "also", "tune", "declaration")} == {
        key: made[key] for key in ("config", "over", "also", "tune", "declaration")
    }
    assert '"/' not in kept.read_text()
    for entry in found.entries:
        cell = record["cells"][entry.path.parent.name]
        assert str(entry.config["optimizer.learning_rate"]) == str(float(cell["chosen"]["optimizer.learning_rate"]))
        for result in entry.results:
            assert not result["git"].endswith("-dirty")
            assert not commits or any(commit.startswith(result["git"]) for commit in commits)
            assert {"versions", "devices", "parameters", "forward_flops_per_example"} <= result.keys()
            assert "epoch" in result["final"]


def test_a_study_that_fails_stops_no_other(page, swept, monkeypatch, capsys):
    begun = []
    monkeypatch.setattr(replication.sweep, "run", lambda flags: begun.append(flags.config) or 1)
    assert replication.main(["--only", "mnist", "imdb", f"--runs={swept.parent}"]) == 1
    assert begun == ["configs/vit_mnist.py", "configs/classify_imdb.py"]
    assert capsys.readouterr().out.count("has not finished") == 2


def test_a_page_without_the_place_is_refused(page, swept):
    archive.write(archive.find([swept]), page.parent / "matched.json", swept)
    with pytest.raises(UsageError, match="has no place for matched; write <!-- figures: matched --> and <!-- end -->"):
        replication.put("matched", page.parent / "matched.json")


def test_an_unknown_study_is_one_sentence(capsys):
    assert replication.main(["--only", "minst"]) == 2
    assert "Did you mean 'mnist'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "kept",
    [path for path in sorted(replication.KEPT.glob("*.json")) if path.stem in replication.STUDIES],
    ids=lambda path: path.stem,
)
def test_what_is_kept_is_the_study(kept):
    """Every setting with every seed, trained as the study says, and no path of the machine that trained it."""
    study = replication.STUDIES[kept.stem]
    found = found_runs.find([kept])
    overrides = parse([f"--config.{field.format(data='data')}" for field in study.fields])[1]
    over = grid.over(study.over, overrides, study.equal)
    cells = Sweep(study.config, overrides, over, [], study.equal).cells
    assert {each.seeds for each in found.groups} == {tuple(range(study.seeds))}
    assert len(found.groups) == len(cells)
    assert json.loads(kept.read_text())["asked"] == over
    entries = archive.read(kept).entries
    chosen = grid.chosen_by(study.equal)
    for cell in cells.values():
        plain = archive.flatten(loading.resolve(cell.spec, cell.overrides)[1])
        alike = [
            entry
            for entry in entries
            if all(
                entry.config[field] == plain[field] for field in plain.keys() & entry.config.keys() - {"seed", *chosen}
            )
        ]
        assert len(alike) == study.seeds
    assert '"/' not in kept.read_text()


def test_a_picture_is_drawn_where_the_study_has_one(page, swept, monkeypatch):
    study = replication.STUDIES["mnist"]
    monkeypatch.setitem(replication.ALL, "mnist", dataclasses.replace(study, picture=True))
    archive.write(archive.find([swept]), page.parent / "mnist.json", swept)
    replication.put("mnist", page.parent / "mnist.json")
    assert (page.parent / "mnist.svg").stat().st_size > 1000
