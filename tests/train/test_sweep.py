"""A sweep that is trained, tuned, printed or submitted, and what is refused before anything is trained."""

import json
import shlex
import subprocess
import sys
import time
from unittest import mock

import pytest

from analysis import report
from tests.conftest import ROOT
from tests.train.conftest import arguments
from train import evaluate, main, sweep
from train.grids import grid, matching, pool, running, sweeping

pytestmark = pytest.mark.xdist_group(__name__)


def asked(workdir, *more, over="model.attention=dot_product,super", seeds=2, replicas="no", **changes):
    return [*arguments(workdir, **changes), f"--over={over}", f"--seeds={seeds}", f"--replicas={replicas}", *more]


@pytest.fixture(autouse=True)
def here(monkeypatch):
    """Configs are checked in this process, since another one takes long to start."""
    monkeypatch.setattr(matching, "in_new_process", lambda function, *arguments: function(*arguments))


def read(path):
    return json.loads(path.read_text())


def printed_commands(capsys):
    return [shlex.split(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.more
def test_a_killed_sweep_is_resumed_and_every_run_stands_once(tmp_path, capsys):
    command = asked(tmp_path / "s", "--jobs=2", over="model.attention=super")
    first = subprocess.Popen([sys.executable, "-m", "train.sweep", *command], cwd=ROOT, stdout=subprocess.PIPE)
    deadline = time.monotonic() + 120
    while not any(tmp_path.rglob("metrics.jsonl")) and first.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    first.kill()
    assert b"2 of 2" not in first.communicate()[0]
    assert sweep.main(command) == 0
    assert "2 of 2 runs have finished, 0 failed." in capsys.readouterr().out
    runs = [path.parent for path in tmp_path.rglob("result.json")]
    for run in runs:
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert len({(line["split"], line["step"]) for line in lines}) == len(lines)
    assert len({read(run / "result.json")["best"]["test"]["loss"] for run in runs}) == 2


@pytest.mark.more
def test_a_sweep_killed_when_a_program_has_just_finished_goes_on_to_its_runs(tmp_path, monkeypatch, capsys):
    command = asked(tmp_path / "s", over="model.attention=super", replicas="yes")
    with monkeypatch.context() as patched:
        patched.setattr(running, "take_apart", mock.Mock(side_effect=SystemExit(137)))
        assert sweep.main(command) == 137
    assert not any(tmp_path.glob("s/attention=super/*/result.json"))
    assert sweep.main(command) == 0
    assert "2 of 2 runs have finished, 0 failed." in capsys.readouterr().out
    assert len([*tmp_path.glob("s/attention=super/*/result.json")]) == 2
    assert not any((tmp_path / "s/together").glob("*.json"))


@pytest.mark.more
def test_seeds_and_rates_of_one_program_are_the_runs_that_each_alone_would_be(tmp_path, capsys):
    """A run whose rate is too high diverges either way, and changes no other run."""
    over = "optimizer.learning_rate=1e-3,3e-3,1e30"
    changes = {"optimizer__clip": 0.0, "optimizer__warmup": "0 steps"}
    found = {}
    for replicas in ("yes", "no"):
        workdir = tmp_path / replicas
        assert sweep.main(asked(workdir, over=over, replicas=replicas, **changes)) == 1
        printed = capsys.readouterr().out
        assert ("Runs: 6 in 1 program, 1 at a time" in printed) == (replicas == "yes")
        assert "4 of 6 runs have finished, 2 failed." in printed
        finished = [path.parent for path in workdir.glob("*/seed*/result.json")]
        found[replicas] = {path.relative_to(workdir): path for path in finished}
    ours, theirs = found.values()
    assert len(theirs) == 4
    assert ours.keys() == theirs.keys()
    for path in theirs:
        mine, alone = (read(place[path] / "result.json") for place in (ours, theirs))
        assert mine["best_step"] == alone["best_step"]
        assert mine["best"]["test"]["loss"] == pytest.approx(alone["best"]["test"]["loss"], rel=1e-4)
        assert read(ours[path] / "config.json") == read(theirs[path] / "config.json")
        assert evaluate.evaluate(ours[path], "best")[1]["loss"] == pytest.approx(mine["best"]["test"]["loss"], rel=1e-5)
    assert sweep.main(asked(tmp_path / "yes", "--print", over=over, replicas="yes", **changes)) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2  # those that diverged
    assert report.main([str(tmp_path / "yes"), f"--out={tmp_path}", "--metric=loss"]) == 0


def test_what_is_printed_can_be_run_and_may_have_settings_beside_the_grid(tmp_path, capsys, refused):
    over = "model.attention=neural(dim=2,hidden=(4,2))|dot_product,super"
    flags = asked(tmp_path / "s", "--print", over=over, seeds=1, model__depth=2)
    assert sweep.main([*flags, "--also=model.attention=super,model.heads=1"]) == 0
    commands = printed_commands(capsys)
    assert [command[:3] for command in commands] == [["python", "-m", "train.main"]] * 3
    parsed, overrides = main.parse(commands[0][3:])
    assert overrides["model.attention"] == "neural(dim=2,hidden=(4,2))|dot_product"
    assert parsed.workdir.startswith(str(tmp_path / "s"))
    assert {"--config.model.attention=super", "--config.model.heads=1"} < set(commands[2])
    assert commands[2][-1].endswith("attention=super,heads=1/seed0")
    assert "differs in --also" in refused(sweep.main, flags)


def test_one_that_fails_is_named_in_the_end(tmp_path, monkeypatch, capsys):
    code = "import sys; print('the loss was nan') or sys.exit('seed1' in sys.argv[1])"
    monkeypatch.setattr(pool, "command", lambda own, path: [sys.executable, "-c", code, path.name])
    assert sweep.main(asked(tmp_path / "s")) == 1
    printed = capsys.readouterr().out
    log = tmp_path / "s/attention=super/seed1.log"
    assert f"attention=super/seed1: failed, see {log}: the loss was nan" in printed
    assert "attention=super/seed0: stopped and saved" in printed
    assert "0 of 4 runs have finished, 2 failed." in printed
    assert "The same command continues" in printed


def test_seeds_that_are_trained_together_are_one_run(tmp_path):
    wanted = grid.Sweep("configs/vit_digits.py", {}, {"model.attention": ["super"]}, [[3, 4], [5]], "")
    plan = sweeping.Plan(wanted, None, {"attention=super": {"model.width": "8"}}, {}, tmp_path, "")
    rest = ["--config=configs/vit_digits.py", "--config.model.attention=super", "--config.model.width=8"]
    assert plan.runs() == {
        tmp_path / "attention=super/seeds3-4": [*rest, "--config.seed=3", "--config.train.replicas=2"],
        tmp_path / "attention=super/seed5": [*rest, "--config.seed=5"],
    }


def test_slurm_gets_the_runs_that_are_left(tmp_path, monkeypatch, refused):
    submitit = mock.MagicMock()
    executor = submitit.AutoExecutor.return_value
    executor.update_parameters = lambda *, timeout_min: None
    monkeypatch.setitem(sys.modules, "submitit", submitit)
    assert sweep.main(asked(tmp_path / "s", "--slurm=timeout_min=60", seeds=1)) == 0
    ((function, commands),) = [call.args for call in executor.map_array.call_args_list]
    assert function is subprocess.check_call
    assert [command[1:3] for command in commands] == [["-m", "train.main"]] * 2
    assert "--slurm=hours=1 is not what submitit takes" in refused(
        sweep.main, asked(tmp_path / "s", "--slurm=hours=1", seeds=1)
    )
    monkeypatch.setitem(sys.modules, "submitit", None)
    assert "--slurm needs submitit, which is not installed" in refused(
        sweep.main, asked(tmp_path / "s", "--slurm", seeds=1)
    )


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--over=model.patch=2,3"], "dot_product,patch=3: model.patch=3 does not divide images of 8x8 pixels"),
        (["--config.train.replicas=2"], "--config.train.replicas cannot be: --replicas decides it."),
        (["--also=seed=3"], "--also seed cannot be: --seeds decides it"),
        (["--also=model.attention=super"], "is a setting that the sweep has already"),
        (["--also=model.heads=1", "--equal=flops"], "--also cannot be combined with --equal"),
        (["--tune=optimizer.learning_rat=1e-3,1e-2"], "Did you mean '--config.optimizer.learning_rate'?"),
    ],
)
def test_mistakes_are_one_sentence_and_leave_nothing(tmp_path, refused, more, message):
    assert message in refused(sweep.main, [*asked(tmp_path / "s"), *more])
    assert not (tmp_path / "s").exists()


# Stands for a training: its accuracy is best at a rate of 0.03 (super) or 0.1 (dot_product); at 0.3 the loss is lost.
STAND_IN = """
import json, pathlib, sys
path, flags = pathlib.Path(sys.argv[1]), dict(flag[2:].partition("=")[::2] for flag in sys.argv[2:])
rate, name = float(flags["config.optimizer.learning_rate"]), flags["config.model.attention"]
if rate > 0.2:
    sys.exit(4)  # as train.main does
accuracy = 1 - abs(rate - {"super": 0.03, "dot_product": 0.1}[name])
metrics = {"validation": {"accuracy": accuracy, "loss": 1.0}, "test": {"accuracy": 0.5, "loss": 1.0}}
path.mkdir(parents=True, exist_ok=True)
(path / "result.json").write_text(json.dumps({"best": metrics}))
"""


@pytest.fixture
def standing_in(monkeypatch):
    monkeypatch.setattr(pool, "command", lambda own, path: [sys.executable, "-c", STAND_IN, str(path), *own])


def tuned(workdir, *more, length="1/4", seeds=2):
    rates = "--tune=optimizer.learning_rate=0.01,0.03,0.1"
    return asked(workdir, rates, "--jobs=2", f"--tune-length={length}", *more, seeds=seeds)


def test_every_setting_is_tried_alike_and_trained_with_its_best_and_further_seeds_too(
    tmp_path, standing_in, capsys, refused
):
    assert sweep.main(tuned(tmp_path / "s", "--print")) == 0
    commands = printed_commands(capsys)
    assert len(commands) == 6
    assert {"--config.train.length=3.0000 steps", "--config.seed=0"} < set(commands[0])
    assert sweep.main(tuned(tmp_path / "s")) == 0
    assert "4 of 4 runs have finished, 0 failed." in capsys.readouterr().out
    cells = read(tmp_path / "s/sweep.json")["cells"]
    # 0.1 is best of dot_product, at the grid's end: 0.333 is tried for both, and diverges.
    assert [[*cell["tried"]] for cell in cells.values()] == [["0.01", "0.03", "0.1", "0.333"]] * 2
    assert cells["attention=super"]["tried"]["0.333"] == [None]
    assert [cell["chosen"]["optimizer.learning_rate"] for cell in cells.values()] == ["0.1", "0.03"]
    trials = sorted(str(path.parent.relative_to(tmp_path / "s")) for path in tmp_path.rglob("tuning/*/*/*/result.json"))
    assert len(trials) == 6
    assert trials[0] == "tuning/attention=dot_product/learning_rate=0.01/seed0"
    assert sweep.main(tuned(tmp_path / "s", "--print", seeds=3)) == 0
    commands = printed_commands(capsys)
    assert [command[-1].rpartition("/")[2] for command in commands] == ["seed2", "seed2"]
    assert ["--config.optimizer.learning_rate=0.1" in command for command in commands] == [True, False]
    assert "holds another sweep, which differs in tune" in refused(sweep.main, asked(tmp_path / "s", "--print"))


def test_values_may_be_tried_on_seeds_that_no_run_has(tmp_path, standing_in):
    assert sweep.main(tuned(tmp_path / "s", "--tune-beyond=0", "--tune-apart", length="1", seeds=1)) == 0
    assert {path.name for path in (tmp_path / "s/tuning").glob("*/*/*") if path.is_dir()} == {f"seed{2**20}"}
    assert {path.name for path in (tmp_path / "s").glob("attention=*/*") if path.is_dir()} == {"seed0"}


def test_a_trial_as_long_as_a_run_is_not_trained_again(tmp_path, standing_in):
    assert sweep.main(tuned(tmp_path / "s", "--tune-beyond=0", length="1", seeds=1)) == 0
    runs = [str(path.relative_to(tmp_path / "s")) for path in (tmp_path / "s").glob("attention=*/*")]
    assert sorted(runs) == ["attention=dot_product/seed0", "attention=super/seed0"]  # and no log of a training


def test_a_trial_that_fails_for_another_reason_is_not_counted(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pool, "command", lambda own, path: [sys.executable, "-c", "import sys; sys.exit('no space')"])
    assert sweep.main(tuned(tmp_path / "s")) == 1
    assert "0 of 6 runs have finished, 6 failed." in capsys.readouterr().out
    assert all("tried" not in cell for cell in read(tmp_path / "s/sweep.json")["cells"].values())


def test_what_is_declared_is_written_and_does_not_change(tmp_path, refused):
    file = tmp_path / "study.json"
    family = [{"name": "a", "settings": ["attention=super"], "baselines": ["attention=dot_product"]}]
    declared = {"question": "Is super better?", "metric": "accuracy", "margin": 0.005, "family": family}
    file.write_text(json.dumps(declared))
    flags = asked(tmp_path / "s", "--print", f"--declare={file}")
    assert sweep.main(flags) == 0
    assert read(tmp_path / "s/sweep.json")["declaration"]["margin"] == 0.005
    file.write_text(json.dumps(declared | {"margin": 0.01}))
    assert "which differs in declaration" in refused(sweep.main, flags)
    family[0]["settings"] = ["attention=supper"]
    file.write_text(json.dumps(declared))
    assert "Unknown setting of the comparison 'a' 'attention=supper'" in refused(
        sweep.main, asked(tmp_path / "t", "--print", f"--declare={file}")
    )
