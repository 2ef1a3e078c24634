"""A table of trials: its cells, what cannot be tried, and tables that are merged."""

import json

import pytest

from attention import UsageError
from tests.analysis.tried import SETTINGS
from train import trials
from train.grids import cells, pool, trying
from train.grids.cells import Cell
from train.grids.trial_table import MADE, TrialTable

SETTINGS = SETTINGS | {"data.source": "recall", "train.length": "9 steps", "tuning.rates": [1e-3, 3e-3]}
RECALL = {"recall": {"settings": SETTINGS, "chance": 0.125}}
ROW = {
    "trial": "recall",
    "spec": "delta",
    "tried": {"1e-3": [0.5, 0.6], "3e-3": [0.9, 0.8]},
    "rate": "3e-3",
    "seeds": [0, 1, 2],
    "accuracy": [1.0, 0.995, 0.5],
    "diverged": 0,
    "steps": [9],
    "curves": [[1.0], [0.995], [0.5]],
}
CALL = {"versions": {"jax": "0.10"}, "devices": "1 cpu", "git": "abc", "matmul_precision": "default"}


def table(*rows, settings=(), **call):
    """A table of rows in the trial `recall`, whose settings may differ from the others'."""
    of = {"recall": RECALL["recall"] | {"settings": SETTINGS | dict(settings)}}
    return TrialTable(of, list(rows), [CALL | call])


def written(tmp_path, name, *rows, **call):
    path = tmp_path / f"{name}.json"
    table(*rows, **call).write(path)
    return path


OTHER = ROW | {"spec": "linear"}


RATES = tuple(trials.RATES.split(","))


def cell_of(directory, spec="delta", trial="recall", rates=RATES, tuning_seeds=2):
    return Cell(trial, spec, directory, rates, tuning_seeds, 5)


@pytest.mark.parametrize(
    ("tried", "chosen"),
    [
        ({"1e-3": [0.5, 0.6], "3e-3": [0.9, 0.8]}, "3e-3"),
        ({"1e-3": [0.5, 0.6], "3e-3": [1.0, None]}, "1e-3"),
        ({"3e-3": [1.0, 1.0], "1e-3": [1.0, 1.0]}, "1e-3"),
    ],
)
def test_the_best_mean_is_chosen_without_divergence_and_of_equal_ones_the_lowest(tried, chosen):
    assert cells.best(tried) == chosen


def test_rates_are_chosen_on_seeds_that_are_not_tested_and_each_has_its_own_folders(tmp_path):
    """A seed that was tested with one rate is never taken for that of another."""
    cell = cell_of(tmp_path, rates=("1e-3", "3e-3"))
    tuning, tested = (
        {flag for flags in runs.values() for flag in flags if "seed=" in flag}
        for runs in (cell.tuning(), cell.tested("1e-3"))
    )
    assert (len(tuning), len(tested), tuning & tested) == (2, 5, set())
    assert not cell.tested("1e-3").keys() & cell.tested("3e-3").keys()


def test_a_seed_that_diverged_is_kept_and_not_trained_again(tmp_path):
    cell = cell_of(tmp_path, rates=("1e-3",))
    first, second = cell.tuning()
    cell.note({first: pool.DIVERGED, second: pool.FAILED})
    assert [*cell.left(cell.tuning())] == [second]
    assert cell.tried() == {}  # one has neither finished nor diverged
    cell.note({second: pool.DIVERGED})
    assert cell.tried() == {"1e-3": [None, None]}
    assert "with every rate, the loss of a seed was not finite" in cell.table().rows[0]["reason"]


def test_a_table_shows_means_seeds_that_solved_chance_and_reasons(tmp_path):
    row = {"trial": "recall", "spec": "super", "reason": "it is not causal"}
    lines = table(ROW, row).text().splitlines()
    assert lines[0].split() == ["recall"]
    assert lines[1].split() == ["delta", "0.83", "2/3"]
    assert lines[2].split() == ["super", "-"]
    assert lines[3].split() == ["chance", "0.12"]
    assert lines[-1] == "super, recall: it is not causal"


def test_tables_are_joined_and_other_versions_are_remarked(tmp_path, capsys):
    a, b = written(tmp_path, "a", ROW), written(tmp_path, "b", OTHER, versions={"jax": "0.11"})
    assert trials.main([f"--merge={a}", f"--merge={b}", f"--out={tmp_path / 'c.json'}"]) == 0
    printed = capsys.readouterr().out
    assert "delta" in printed
    assert "linear" in printed
    assert "The runs were made with different versions." in printed
    assert [row["spec"] for row in TrialTable.read(tmp_path / "c.json").rows] == ["delta", "linear"]


@pytest.mark.parametrize(
    "changes",
    [
        {"accuracy": []},
        {"accuracy": "x"},
        {"accuracy": [None] * 3},
        {"reason": "why"},
        {"accuracy": [2.0] * 3},
        {"accuracy_at_8": [0.5]},
        {"curves": [[0.5]]},
        {"cache_bytes_at_x": 3},
        {"rate": 3},
        {"trial": "copying"},
        {"trial": 1},
        {"spec": "a\nb"},
    ],
)
def test_a_damaged_table_is_one_sentence(tmp_path, changes):
    with pytest.raises(UsageError, match="is no table of trials"):
        TrialTable.read(written(tmp_path, "a", ROW | changes))


@pytest.mark.parametrize(
    ("settings", "row", "message"),
    [
        ({"train.length": "8 steps"}, OTHER, "in the trial recall, train.length was '9 steps' and '8 steps'"),
        ({"data.source": "recall(size=4)"}, OTHER, "data.source was 'recall' and 'recall(size=4)'"),
        ({"tuning.rates": [1e-2]}, OTHER, "tuning.rates was [0.001, 0.003] and [0.01]"),
        ({}, ROW | {"accuracy": [0.1]}, "Two tables have delta in the trial recall"),
    ],
)
def test_what_does_not_compare_is_refused(settings, row, message):
    empty = {"trial": "recall", "spec": "super", "reason": "why"}
    with pytest.raises(UsageError) as error:
        TrialTable.merged([table(empty, ROW), table(row, settings=settings)])
    assert message in str(error.value)


def test_a_setting_that_was_declared_later_does_not_keep_tables_apart():
    joined = TrialTable.merged([table(ROW), table(OTHER, settings={"model.new": 0})])
    assert [row["spec"] for row in joined.rows] == ["delta", "linear"]


def test_kept_cells_stand_behind_those_that_were_trained_here():
    ours, kept = table(ROW), table(ROW | {"accuracy": [0.1]}, OTHER)
    assert ours.beside(kept, ["recall"]).rows == [ROW, OTHER]
    assert ours.beside(kept, []).rows == [ROW]


def test_the_kept_table_is_one_whose_trials_are_as_they_are_now():
    """Otherwise no new row would stand beside it."""
    kept = TrialTable.read(trying.KEPT)
    for trial, of in kept.trials.items():
        now = cell_of(trying.KEPT.parent, trial=trial).settings()
        assert now | of["settings"] == now, trial


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Which mechanisms are tried?"),
        (["delt", "--workdir=x"], "Did you mean 'delta'"),
        (["delta", "--workdir=x", "--only=recal"], "Did you mean 'recall'"),
        (["delta", "--workdir=x", "--rates=1e-3,0.001"], "--rates must be different numbers above 0"),
        (["delta", "--workdir=x", "--rates=fast"], "--rates must be different numbers above 0"),
        (["--merge=nothing.json", "--out=a.json"], "nothing.json"),
        (["--merge=nothing.json"], "Give an --out"),
        (["delta", "--workdir=x", "--out=a.json"], "--out is for --merge"),
        (["delta", "--workdir=x", "--all", "--only=recall"], "--all is without --only"),
    ],
)
def test_mistakes_are_one_sentence(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert trials.main(arguments) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("flags", "folder"), [([], "runs/trials"), (["--full"], "runs/trials_published")])
def test_small_and_full_sizes_have_folders_of_their_own(flags, folder):
    cell, *_ = trying.cells_of(trials.main.parser().parse_args(["delta", "--rates=1e-3, 3e-3", *flags]))
    assert str(cell.directory) == folder
    assert (cell.rates, cell.tuning_seeds) == (("1e-3", "3e-3"), 2)


def test_what_does_not_compare_is_refused_before_anything_is_trained(tmp_path, capsys):
    settings = cell_of(tmp_path, trial="stacked").settings() | {"train.length": "7 steps"}
    kept = {"stacked": {"settings": settings, "chance": 0.1}}
    TrialTable(kept, [OTHER | {"trial": "stacked"}], [CALL]).write(tmp_path / cells.TABLE)
    assert trials.main(["delta", "--only=stacked", f"--workdir={tmp_path}"]) == 2
    assert "train.length was '7 steps' and '1500 steps'" in capsys.readouterr().err.replace("\n", " ")
    assert [path.name for path in tmp_path.iterdir()] == [cells.TABLE]


def test_a_mechanism_that_does_not_fit_is_no_error_beside_kept_cells(tmp_path):
    asked = cell_of(tmp_path, "delta|linear", "stacked")
    kept = {"stacked": {"settings": asked.settings(), "chance": 0.1}}
    TrialTable(kept, [OTHER | {"trial": "stacked"}], [CALL]).write(tmp_path / cells.TABLE)
    assert [row["spec"] for row in trying.before([asked]).rows] == ["linear"]


def test_a_cell_whose_tuning_failed_leaves_the_others_to_be_tested(tmp_path, monkeypatch):
    begun = []

    def run_all(todo, jobs, most, directory, ended):
        begun.append([*todo])
        for path in todo:
            if "linear" not in path.parts:
                path.mkdir(parents=True)
                best = {"validation": {"accuracy": 0.5}, "test": {"accuracy": 0.5}}
                about = {name: CALL[name] for name in MADE} | {"seconds": 1.0, "steps": 1, "best_step": 1}
                result = about | {"best": best, "baselines": {"chance_accuracy": 0.1}}
                (path / "result.json").write_text(json.dumps(result))
                sections = {name: {} for name in cells.SECTIONS}
                for name, value in SETTINGS.items():
                    sections.setdefault(name.partition(".")[0], {})[name.partition(".")[2]] = value
                (path / "config.json").write_text(json.dumps(sections))
                line = {"step": 1, "split": "validation", "accuracy": 0.5}
                (path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
        return {path: pool.FAILED if "linear" in path.parts else pool.FINISHED for path in todo}

    monkeypatch.setattr(trying.matching, "in_new_process", lambda *arguments: (["", ""], 0, 1))
    monkeypatch.setattr(trying.running, "run_all", run_all)
    monkeypatch.setattr(trying, "_write_page", lambda path: None)
    command = ["delta", "linear", "--only=recall", "--seeds=2", "--rates=1e-3", f"--workdir={tmp_path}"]
    assert trials.main(command) == 1
    tuned, tested = begun
    assert {path.parts[-3] for path in tuned} == {"delta", "linear"}
    assert {path.parts[-3] for path in tested} == {"delta"}
    done, failed = TrialTable.read(tmp_path / cells.TABLE).rows
    assert done["accuracy"] == [0.5, 0.5]
    assert failed["reason"] == "not all rates have been tried"


@pytest.mark.more
def test_a_mechanism_is_tried_and_what_cannot_be_has_its_reason(tmp_path, capsys, monkeypatch):
    """The trial has two steps; the same command trains nothing again."""
    small = {
        "train.length": "2 steps",
        "data.train_examples": "64",
        "data.eval_examples": "10",
        "data.eval_batch_size": "10",
        "model.width": "8",
    }
    monkeypatch.setattr(Cell, "_trial", property(lambda cell: on_small(cell, small)))
    monkeypatch.setattr(trying.matching, "in_new_process", lambda function, *arguments: function(*arguments))
    command = ["delta", " delta | linear", "--only=stacked", "--seeds=1", "--rates=1e-3,3e-3", "--tuning-seeds=1"]
    command.append(f"--workdir={tmp_path}")
    assert trials.main(command) == 0
    table = json.loads((tmp_path / cells.TABLE).read_text())
    row, refused = table["rows"]
    assert row["seeds"] == [0]
    assert len(row["accuracy"]) == len(row["accuracy_at_64"]) == 1
    assert set(row["tried"]) == {"1e-3", "3e-3"}
    assert row["cache_bytes"] > 0
    assert "2" in refused["reason"]
    assert refused["spec"] == "delta|linear"  # however it was spaced
    assert "delta in stacked" in (tmp_path / cells.TABLE).with_suffix(".html").read_text()
    monkeypatch.setattr(trying, "_write_page", lambda path: None)
    capsys.readouterr()
    assert trials.main(command) == 0
    assert json.loads((tmp_path / cells.TABLE).read_text()) == table
    assert trials.main(["linear|delta", *command[2:]]) == 0  # the others stay
    assert [row["spec"] for row in json.loads((tmp_path / cells.TABLE).read_text())["rows"]] == [
        "delta",
        "delta|linear",
        "linear|delta",
    ]
    assert trials.main(["retention", *command[2:4], "--rates=1e-3", command[-1]]) == 2
    assert "tuning.rates was [0.001, 0.003] and [0.001]" in capsys.readouterr().err.replace("\n", " ")
    (tmp_path / cells.TABLE).unlink()  # the runs themselves say what they are
    monkeypatch.setattr(Cell, "_trial", property(lambda cell: on_small(cell, small | {"model.width": "16"})))
    assert trials.main(command) == 2
    assert "was trained with model.width=8, which is 16 now" in capsys.readouterr().err.replace("\n", " ")


TRIAL = Cell._trial.fget


def on_small(cell, small):
    return TRIAL(cell).but(small)
