"""A table of trials: its cells, what cannot be tried, and tables that are merged."""

import pytest

from attention import UsageError
from tests.analysis.tried import SETTINGS
from train import trials
from train.grids import cells, pool, trying
from train.grids.cells import Cell
from train.grids.trial_table import TrialTable

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


def cell_of(directory, trial="recall", rates=("1e-3",)):
    return Cell(trial, "delta", directory, rates, 2, 5)


def test_of_rates_that_are_equally_good_the_lowest_is_chosen():
    assert cells.best({"1e-2": [0.9, None], "3e-3": [0.8, 0.8], "1e-3": [0.8, 0.8]}) == "1e-3"


def test_rates_are_chosen_on_seeds_that_are_not_tested_and_each_has_its_own_folders(tmp_path):
    cell = cell_of(tmp_path, rates=("1e-3", "3e-3"))
    tuning, tested = ({path.name for path in runs} for runs in (cell.tuning(), cell.tested("1e-3")))
    assert (len(tuning), len(tested), tuning & tested) == (2, 5, set())
    assert not cell.tested("1e-3").keys() & cell.tested("3e-3").keys()


def test_a_seed_that_diverged_is_kept_and_not_trained_again(tmp_path):
    cell = cell_of(tmp_path)
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
    assert [line.split() for line in lines[1:4]] == [["delta", "0.83", "2/3"], ["super", "-"], ["chance", "0.12"]]
    assert lines[-1] == "super, recall: it is not causal"


def test_tables_are_joined_and_other_versions_are_remarked(tmp_path, capsys):
    """A setting that was declared later does not keep them apart."""
    a = written(tmp_path, "a", ROW)
    b = written(tmp_path, "b", OTHER, settings={"model.new": 0}, versions={"jax": "0.11"})
    assert trials.main([f"--merge={a}", f"--merge={b}", f"--out={tmp_path / 'c.json'}"]) == 0
    assert "The runs were made with different versions." in capsys.readouterr().out
    assert [row["spec"] for row in TrialTable.read(tmp_path / "c.json").rows] == ["delta", "linear"]


@pytest.mark.parametrize(
    "changes",
    [
        {"accuracy": [2.0] * 3},
        {"reason": "why"},
        {"accuracy_at_8": [0.5]},
        {"curves": [[0.5]]},
        {"cache_bytes_at_x": 3},
        {"trial": "copying"},
        {"spec": "a\nb"},
    ],
)
def test_a_damaged_table_is_one_sentence(tmp_path, changes):
    with pytest.raises(UsageError, match="is no table of trials"):
        TrialTable.read(written(tmp_path, "a", ROW | changes))


@pytest.mark.parametrize(
    ("settings", "row", "message"),
    [
        ({"tuning.rates": [1e-2]}, OTHER, "in the trial recall, tuning.rates was [0.001, 0.003] and [0.01]"),
        ({}, ROW | {"accuracy": [0.1]}, "Two tables have delta in the trial recall"),
    ],
)
def test_what_does_not_compare_is_refused(settings, row, message):
    empty = {"trial": "recall", "spec": "super", "reason": "why"}
    with pytest.raises(UsageError) as error:
        TrialTable.merged([table(empty, ROW), table(row, settings=settings)])
    assert message in str(error.value)


def test_kept_cells_stand_behind_those_that_were_trained_here():
    ours, kept = table(ROW), table(ROW | {"accuracy": [0.1]}, OTHER)
    assert ours.beside(kept, ["recall"]).rows == [ROW, OTHER]
    assert ours.beside(kept, []).rows == [ROW]


def test_the_kept_table_is_one_whose_trials_are_as_they_are_now():
    """Otherwise no new row would stand beside it."""
    kept = TrialTable.read(trying.KEPT)
    for trial, of in kept.trials.items():
        now = cell_of(trying.KEPT.parent, trial=trial, rates=tuple(trials.RATES.split(","))).settings()
        assert now | of["settings"] == now, trial


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Which mechanisms are tried?"),
        (["delt", "--workdir=x"], "Did you mean 'delta'"),
        (["delta", "--workdir=x", "--only=recal"], "Did you mean 'recall'"),
        (["delta", "--workdir=x", "--rates=1e-3,0.001"], "--rates must be different numbers above 0"),
        (["--merge=nothing.json", "--out=a.json"], "nothing.json"),
        (["--merge=nothing.json"], "Give an --out"),
        (["delta", "--workdir=x", "--out=a.json"], "--out is for --merge"),
        (["delta", "--workdir=x", "--all", "--only=recall"], "--all is without --only"),
    ],
)
def test_mistakes_are_one_sentence(arguments, message, refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in refused(trials.main, arguments)
    assert not list(tmp_path.iterdir())


def test_what_does_not_compare_is_refused_before_anything_is_trained(tmp_path, refused):
    written(tmp_path, "trials", OTHER)
    assert "in the trial recall, data.source was" in refused(
        trials.main, ["delta", "--only=recall", f"--workdir={tmp_path}"]
    )
    assert [path.name for path in tmp_path.iterdir()] == [cells.TABLE]


@pytest.fixture
def small(monkeypatch):
    """Makes trials of two steps, of a width that a test may change."""
    changes = {
        "train.length": "2 steps",
        "data.train_examples": "64",
        "data.eval_examples": "10",
        "data.eval_batch_size": "10",
        "model.width": "8",
    }
    trial = Cell._trial.fget
    monkeypatch.setattr(Cell, "_trial", property(lambda cell: trial(cell).but(changes)))
    monkeypatch.setattr(trying.matching, "in_new_process", lambda function, *arguments: function(*arguments))
    return changes


def test_a_cell_whose_tuning_failed_leaves_the_others_to_be_tested(tmp_path, small, monkeypatch):
    begun = []

    def run_all(todo, *_):
        begun.append({path.parts[-3] for path in todo})
        return {path: pool.FAILED if "linear" in path.parts else pool.FINISHED for path in todo}

    monkeypatch.setattr(trying.running, "run_all", run_all)
    monkeypatch.setattr(trying, "_write_page", lambda path: None)
    monkeypatch.setattr(Cell, "tried", lambda cell: {"1e-3": [0.5]} if cell.spec == "delta" else {})
    flags = ["--only=stacked", "--seeds=2", "--rates=1e-3", f"--workdir={tmp_path}"]
    assert trials.main(["delta", "linear", *flags]) == 1
    assert begun == [{"delta", "linear"}, {"delta"}]
    reasons = [row["reason"] for row in TrialTable.read(tmp_path / cells.TABLE).rows]
    assert reasons == ["0 of 2 seeds have finished", "not all rates have been tried"]


@pytest.mark.more
def test_a_mechanism_is_tried_and_what_cannot_be_has_its_reason(tmp_path, small, capsys):
    flags = ["--only=stacked", "--seeds=1", "--rates=1e-3", "--tuning-seeds=1", f"--workdir={tmp_path}"]
    assert trials.main(["delta", " delta | linear", *flags]) == 0
    row, refused = TrialTable.read(tmp_path / cells.TABLE).rows
    assert (row["seeds"], [*row["tried"]], len(row["accuracy_at_64"])) == ([0], ["1e-3"], 1)
    assert refused["spec"] == "delta|linear"  # however it was spaced
    assert "delta in stacked" in (tmp_path / cells.TABLE).with_suffix(".html").read_text()
    (tmp_path / cells.TABLE).unlink()  # the runs themselves say what they are
    small["model.width"] = "16"
    assert trials.main(["delta", *flags]) == 2
    assert "was trained with model.width=8, which is 16 now" in capsys.readouterr().err.replace("\n", " ")
