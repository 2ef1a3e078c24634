"""Tables with a row for each mechanism: what is trained joins what was kept, and each run says its own commit."""

import json

import pytest

from attention import UsageError
from models.mechanisms import MECHANISMS
from studies import digits, rows, runs
from train import loading
from train.main import parse

VERSIONS = {"jax": "1"}


def result(accuracy, git, versions=VERSIONS):
    best = {"test": {"accuracy": accuracy}}
    return {"best": best, "best_step": 1, "steps": 2, "parameters": 1234, "git": git} | {
        "versions": versions,
        "devices": "1 cpu",
    }


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Makes the digits' table in a separate folder, with two kept runs."""
    (tmp_path / "benchmarks/results").mkdir(parents=True)
    monkeypatch.setattr(runs, "ROOT", tmp_path)
    kept = [{"seed": seed} | {key: result(0.5, "old")[key] for key in rows.KEPT[1:]} for seed in (0, 1)]
    about = {"versions": VERSIONS, "runs": {"super": kept}}
    runs.file_of("digits").write_text(json.dumps(about))
    return digits.TABLE


def finish(folder, spec, seed, **options):
    path = rows.place(spec, seed, folder)
    path.mkdir(parents=True)
    (path / "result.json").write_text(json.dumps(result(**options)))


def test_what_is_trained_joins_what_was_kept(table, tmp_path, capsys):
    finish(tmp_path / "runs", "super", 1, accuracy=0.75, git="new")
    finish(tmp_path / "runs", "sink", 0, accuracy=0.25, git="new")
    table.make(["sink"], 1, tmp_path / "runs")
    kept = json.loads(runs.file_of("digits").read_text())["runs"]
    assert [(run["seed"], run["git"]) for run in kept["super"]] == [(0, "old"), (1, "new")]
    lines = table.markdown(kept).splitlines()
    assert "| `super` | 62.50 | 50.00 – 75.00 | 2 | 1,234 |" in lines
    assert "| `sink` | 25.00 | 25.00 – 25.00 | 1 | 1,234 |" in lines
    assert capsys.readouterr().out.endswith("`python -m docs.figures` writes its table into the page.\n")


def test_rows_of_other_versions_do_not_join(table, tmp_path):
    before = runs.file_of("digits").read_text()
    finish(tmp_path / "runs", "sink", 0, accuracy=0.25, git="new", versions={"jax": "2"})
    with pytest.raises(UsageError, match=r"digits_cpu\.json has rows of other versions"):
        table.make(["sink"], 1, tmp_path / "runs")
    assert runs.file_of("digits").read_text() == before


def test_every_mechanism_has_a_row_that_its_config_takes():
    table = digits.TABLE
    assert set(MECHANISMS) - set(table.specs) == {"forgetting", "path"}
    for spec in (spec for spec in table.specs if "(" in spec):
        flags = [*table.flags, *table.special(spec), f"--config.model.attention={spec}"]
        given, overrides = parse(flags)
        loading.resolve(given.config, overrides)
