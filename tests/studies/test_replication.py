"""The sweeps of the replication page: each can be trained as it stands, and its tables are made of what is kept."""

import dataclasses
import itertools
import json
import re
import signal
import subprocess
import sys
import textwrap
import types

import numpy as np
import pytest
from scipy import stats

from analysis import archive
from analysis import runs as found_runs
from attention import UsageError
from models.surgery import exchange
from studies import data, declared, definitions, full, kept, pretraining, replication
from studies.definitions import DECLARATIONS
from tests.conftest import ROOT
from train import loading, sweep
from train.data.sources import numpy as numpy_source
from train.data.splits import Split
from train.grids import declaration, grid, matching, pool, running, sweeping, tuning
from train.grids.grid import Sweep
from train.main import parse

SMALL = dataclasses.replace(definitions.STUDIES["mnist"], over=("a=1,2", "b=1,2"), seeds=2)  # 8 runs


@pytest.fixture
def archives(tmp_path, monkeypatch):
    """Makes a separate folder of archives."""
    monkeypatch.setattr(kept, "KEPT", tmp_path / "kept")


@pytest.fixture
def trained(monkeypatch):
    """Replaces a sweep: every run has ended already, as the fixture `swept` left it."""

    def run(flags, ended):
        for path in archive.work_directories(flags.workdir):
            ended([path])
        return 0

    monkeypatch.setattr(replication.sweep, "run", run)
    monkeypatch.setitem(replication.ALL, "mnist", SMALL)


@pytest.fixture
def swept(tmp_path, write_run):
    """Makes runs of two mechanisms with 1 and 2 heads and two seeds."""
    folder, mechanisms = tmp_path / "runs/mnist", ("dot_product", "super")
    cells = {f"attention={name},heads={heads}": (name, heads) for name in mechanisms for heads in (1, 2)}
    for cell, (name, heads) in cells.items():
        for seed in range(2):
            write_run(folder / cell / f"seed{seed}", seed, 0.8 + 0.01 * seed, model__attention=name, model__heads=heads)
    over = {"model.attention": [*mechanisms], "model.heads": ["1", "2"]}
    record = dataclasses.asdict(Sweep("configs/vit_mnist.py", {}, over, [[0], [1]], ""))
    record |= {"command": f"python -m train.sweep --workdir={folder}"}
    grid.write(folder, record | {"cells": {cell: {"chosen": {}} for cell in cells}})
    return folder


@pytest.mark.parametrize("name", [name for name in declared.DECLARED if not kept.place(name).is_file()])
def test_a_declared_study_that_is_not_kept_yet_can_be_trained(name, tmp_path):
    study = declared.DECLARED[name]
    made = sweeping.asked(sweep.main.parser().parse_args(study.flags("data", tmp_path)))
    assert made.declaration.metric == study.metrics[0]
    for cell in made.cells.values():
        loading.resolve(cell.spec, cell.overrides)


@pytest.mark.parametrize("name", pretraining.MODELS)
def test_a_study_that_starts_from_a_model_trains_the_same_model(name, tmp_path):
    """Its runs differ from the model's in mechanisms, data and lengths alone, and read its tokeniser and weights."""
    model = pretraining.MODELS[name]
    overrides = parse([f"--config.{field.format(data='data')}" for field in model.fields])[1]
    there, _ = loading.resolve(model.config, overrides)
    starting = {key: study for key, study in declared.DECLARED.items() if study.start == name}
    assert starting
    for key, study in starting.items():
        made = sweeping.asked(sweep.main.parser().parse_args(study.flags("data", tmp_path / key)))
        assert made.overrides["train.init_from"] == f"{tmp_path}/pretrained/{name}/{{seed}}"
        assert {*range(study.seeds), tuning.APART} <= {*pretraining.SEEDS}
        for cell in made.cells.values():
            here, _ = loading.resolve(cell.spec, cell.overrides)
            exchange.same_but_mechanisms(here.model, there.model)
            assert here.data.source == there.data.source
            parts = there.data.train_split, here.data.train_split, here.data.validation_split, here.data.test_split
            split = [Split.parse(part) for part in parts]
            ranges = [(s.name, s.start.rstrip("%") or 0, s.stop.rstrip("%") or 100) for s in split]
            ends = sorted((name, float(start), float(stop)) for name, start, stop in ranges)
            for (one, _, stop), (other, start, _) in itertools.pairwise(ends):
                assert one != other or stop <= start, parts
            assert here.data.validation_split == there.data.validation_split


def test_a_study_first_trains_the_model_that_it_starts_from(archives, swept, trained, write_run, monkeypatch):
    monkeypatch.setitem(replication.ALL, "mnist", dataclasses.replace(SMALL, start="translator", seeds=3))
    order = []

    def train_all(todo, say):
        order.extend(todo)
        for place in todo:
            write_run(place)
        return dict.fromkeys(todo, pool.FINISHED)

    monkeypatch.setattr(pretraining.runs, "train_all", train_all)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):  # not all runs are in
            replication.train(["--config=c", f"--workdir={swept}"], swept, "sets")
    assert order == [swept.parent / f"pretrained/translator/{seed}" for seed in pretraining.SEEDS]  # once
    out = kept.KEPT / "pretrained/translator.json"
    other = json.loads(out.read_text())
    other["runs"][0]["results"][0]["steps"] += 1
    out.write_text(json.dumps(other))
    with pytest.raises(UsageError, match=r"translator has other results in .* all settings of a study start from"):
        pretraining.train("translator", "sets", swept.parent)


def test_a_model_whose_training_failed_begins_no_study(tmp_path, monkeypatch):
    monkeypatch.setattr(pretraining.runs, "train_all", lambda todo, say: dict.fromkeys(todo, pool.FAILED))
    with pytest.raises(UsageError, match="translator has not been pretrained"):
        pretraining.train("translator", "sets", tmp_path)


def test_arrays_of_images_are_those_of_tfds_in_its_order(tmp_path, monkeypatch):
    rows = [{"image": np.full((2, 3, 1), n, np.uint8), "label": n} for n in (3, 1, 2)]
    builder = types.SimpleNamespace(as_data_source=lambda: {"train": rows, "test": rows[::-1]})
    tfds = types.SimpleNamespace(builder=lambda name, data_dir: builder)
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", tfds)
    assert data.main([f"--data={tmp_path}"]) == 0
    for split, order in {"train": [3, 1, 2], "test": [2, 1, 3]}.items():
        arrays = numpy_source.open_split(str(tmp_path / "mnist.npz"), split, (), None).arrays
        assert arrays["label"].tolist() == order
        assert arrays["image"].mean((1, 2, 3)).tolist() == order


@pytest.mark.parametrize("name", declared.DECLARED)
def test_what_a_declared_study_finds_follows_from_the_spread_that_it_names(name):
    """A two-sided t-test with that many seeds, at Holm's smallest level, has a power of 80 % there."""
    made = declaration.read(DECLARATIONS / f"{name}.json")
    spread = float(re.search(r"standard deviation of ([\d.]+\d)", made.basis)[1])
    seeds = int(re.search(r"(\d+) seeds", made.basis)[1])
    assert seeds == declared.DECLARED[name].seeds
    assert f"Holm's {len(made.family)}." in made.basis
    critical = stats.t.ppf(1 - 0.05 / 2 / len(made.family), seeds - 1)
    power = stats.nct.sf(critical, seeds - 1, made.detects / (spread / seeds**0.5))
    assert power == pytest.approx(0.8, abs=0.01)


def test_every_run_and_trial_is_kept_as_soon_as_it_ends(archives, swept, write_run, trained, capsys):
    trial = swept / "tuning/attention=super,heads=1/learning_rate=0.1/seed0"
    write_run(trial)
    write_run(swept / "attention=linear,heads=2/seed0", finished=False)
    first = swept / "attention=super,heads=2/seed1/result.json"
    results = [path for path in swept.rglob("result.json") if path != first]
    for path in results:  # only one run has ended
        path.rename(path.with_suffix(".later"))
    assert kept.keep(swept) == (1, 0)
    assert kept.read("mnist").sweeps[0]["command"] == "python -m train.sweep --workdir=runs/replication/mnist"
    assert [len(found.runs) for found in kept.find("mnist").groups] == [1]
    assert "? 1 of 8 runs is in.\n" in replication.text("mnist")
    first.unlink()  # what is kept stays so, whatever becomes of the folder
    for path in results:
        path.with_suffix(".later").rename(path)
    assert replication.main(["--only", "mnist", "imdb", "--archive", f"--runs={swept.parent}"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed == ["mnist: 8 of 8 runs and 1 trial are kept.", "imdb: 0 of 60 runs and 0 trials are kept."]
    assert len([run for group in kept.find("mnist").groups for run in group.runs]) == 8
    assert [entry.path for entry in kept.read("mnist").trials] == [trial.relative_to(swept)]
    before = kept.place("mnist").stat()
    assert (kept.keep(swept), kept.place("mnist").stat().st_mtime_ns) == ((8, 1), before.st_mtime_ns)  # no news


def test_what_has_not_ended_is_no_study_and_keeps_what_has(archives, swept, trained, monkeypatch):
    monkeypatch.setitem(replication.ALL, "mnist", dataclasses.replace(SMALL, seeds=3))
    with pytest.raises(KeyboardInterrupt):
        replication.train(["--config=c", f"--workdir={swept}"], swept, "data")
    assert "? 8 of 12 runs are in.\n" in replication.text("mnist")
    monkeypatch.setattr(replication.sweep, "run", lambda flags, ended: 1)
    assert not replication.train(["--config=c", f"--workdir={swept}"], swept, "data")


def test_what_was_kept_is_put_back_and_not_trained_again(archives, swept, write_run, tmp_path):
    write_run(swept / "tuning/attention=super,heads=1/learning_rate=0.1/seed0")
    kept.keep(swept)
    again = tmp_path / "again/mnist"
    assert [archive.unpack(kept.read("mnist"), again) for _ in range(2)] == [9, 0]  # the second time, all is there
    assert grid.read(again) == grid.read(swept)
    for path in swept.rglob("*.json"):
        whole = path.read_text().replace(str(swept), "runs/replication/mnist")
        assert json.loads((again / path.relative_to(swept)).read_text()) == json.loads(whole)
    for ours, theirs in zip(found_runs.find([again]).groups, found_runs.find([swept]).groups, strict=True):
        assert [run.record for run in ours.runs] == [run.record for run in theirs.runs]


TRAINING = """
    import os, pathlib, shutil, signal, sys, time
    template, place = map(pathlib.Path, sys.argv[1:])
    if place.name == "seed0" or (place / "saved").is_file():
        shutil.copytree(template / place.name, place, dirs_exist_ok=True)
    else:
        place.mkdir(parents=True)
        signal.signal(signal.SIGTERM, lambda *_: (place.joinpath("saved").touch(), sys.exit(0)))
        os.kill(os.getppid(), signal.SIGALRM)  # the time is over while this trains
        time.sleep(60)
"""


def test_when_the_time_is_over_runs_are_saved_and_the_next_call_goes_on(archives, swept, monkeypatch, capsys):
    study = dataclasses.replace(SMALL, config="configs/vit_digits.py", over=(), fields=(), seeds=2)
    monkeypatch.setitem(replication.ALL, "mnist", study)
    monkeypatch.setattr(matching, "in_new_process", lambda function, *arguments: function(*arguments))
    start = [sys.executable, "-c", textwrap.dedent(TRAINING), swept / "attention=super,heads=1"]
    monkeypatch.setattr(pool, "command", lambda flags, path: [*start, path])
    monkeypatch.setattr(
        running, "group_runs", lambda todo, *_: {path: running.RunGroup(todo[path], (path,)) for path in todo}
    )
    monkeypatch.setattr(pool, "shares", lambda jobs: [{0}])  # one at a time
    again = swept.parents[1] / "again"
    call = [f"--runs={again}", "--seconds=3000", "--only", "mnist"]
    assert replication.main([*call, "imdb"]) == 0
    said = capsys.readouterr().out
    assert said.endswith("mnist: 1 of 2 runs and 0 trials are kept.\nTime is up; the same command continues.\n")
    assert list(again.rglob("saved")) == [again / "mnist/vit_digits/seed1/saved"]
    assert replication.main(call) == 0
    assert kept.keep(again / "mnist") == (2, 0)
    assert signal.alarm(0) == 0


@pytest.mark.parametrize("name", declared.DECLARED)
def test_an_archive_of_a_declared_study_is_what_was_declared(name, tmp_path):
    found = kept.read(name)
    if not found.entries:
        pytest.skip("no run of it has been kept yet")
    (record,) = found.sweeps
    made = sweeping.asked(sweep.main.parser().parse_args(declared.DECLARED[name].flags("data", tmp_path))).plain
    record |= {"tune": {"beyond": tuning.BEYOND, "apart": False} | record["tune"]}
    assert {key: record[key] for key in ("config", "over", "also", "tune", "declaration")} == {
        key: made[key] for key in ("config", "over", "also", "tune", "declaration")
    }
    assert not re.search(r'"(file:)?/\w', kept.place(name).read_text())  # the path of a machine
    for entry in found.entries:
        cell = record["cells"][entry.path.parent.name]
        assert str(entry.config["optimizer.learning_rate"]) == str(float(cell["chosen"]["optimizer.learning_rate"]))
        for result in entry.results:
            assert {"versions", "devices", "parameters", "forward_flops_per_example"} <= result.keys()


def test_a_study_that_fails_stops_no_other(archives, swept, monkeypatch, capsys):
    begun = []
    monkeypatch.setattr(replication.sweep, "run", lambda flags, ended: begun.append(flags.config) or 1)
    assert replication.main(["--only", "mnist", "imdb", f"--runs={swept.parent}"]) == 1
    assert begun == ["configs/vit_mnist.py", "configs/classify_imdb.py"]
    assert capsys.readouterr().out.count("has not finished") == 2


def test_mistakes_are_one_sentence(refused):
    assert "Did you mean 'mnist'" in refused(replication.main, ["--only", "minst"])


@pytest.mark.parametrize(
    "file",
    [path for path in sorted(kept.KEPT.glob("*.json")) if path.stem in definitions.STUDIES],
    ids=lambda path: path.stem,
)
def test_what_is_kept_is_the_study(file):
    """Every setting with every seed, and no path of the machine that trained it."""
    study = definitions.STUDIES[file.stem]
    found = found_runs.find([file])
    overrides = parse([f"--config.{field.format(data='data')}" for field in study.fields])[1]
    over = grid.over(study.over, overrides, study.equal)
    cells = Sweep(study.config, overrides, over, [], study.equal).cells
    assert {each.seeds for each in found.groups} == {tuple(range(study.seeds))}
    assert len(found.groups) == len(cells)
    assert json.loads(file.read_text())["asked"] == over
    assert '"/' not in file.read_text()


def history():
    """Lists all commits that lead here; none if git or a part of the history is missing."""
    command = ["git", "-C", str(ROOT), "rev-list", "HEAD"]
    shallow = ["git", "-C", str(ROOT), "rev-parse", "--is-shallow-repository"]
    try:
        if subprocess.run(shallow, check=True, capture_output=True, text=True).stdout.strip() == "true":
            return ()
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    except (OSError, subprocess.CalledProcessError):
        return ()


def test_commits_are_in_the_history_where_results_do_not_say_otherwise_and_have_what_was_declared():
    commits = history()
    if not commits:
        pytest.skip("git, or a part of the history, is missing")
    assert {declared.COMMIT, declared.OF_SURGERIES} <= {*commits}
    for file in (*kept.KEPT.glob("*.json"), *(ROOT / "benchmarks/results").glob("*.json")):
        text = file.read_text()
        named = {name.removesuffix("-dirty") for name in re.findall(r'"git": "([0-9a-f]+(?:-dirty)?)"', text)}
        gone = {name for name in named if not any(commit.startswith(name) for commit in commits)}
        assert gone == set(json.loads(text).get("not_in_the_history", ()))
    for name in declared.DECLARED.keys() - full.FULL.keys():
        commit = declared.OF_SURGERIES if name in declared.SURGERIES else declared.COMMIT
        file = f"{commit}:studies/declarations/{name}.json"
        assert subprocess.run(["git", "cat-file", "-e", file], cwd=ROOT, check=False).returncode == 0, file


def test_no_fresh_value_is_drawn_with_the_key_of_a_trained_model():
    assert not {pretraining.OFFSET + seed for seed in pretraining.SEEDS} & {*pretraining.SEEDS}
