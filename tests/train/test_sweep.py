"""A sweep that is killed, resumed and reported, and what is refused before anything is trained."""

import contextlib
import io
import json
import math
import re
import shlex
import statistics
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

from analysis import report
from tests.conftest import ROOT
from tests.train.conftest import arguments
from train import evaluate, main, sweep
from train.grids import grid, matching, pool, sweeping

pytestmark = pytest.mark.xdist_group(__name__)

MECHANISMS = ("dot_product", "efficient")
SUPER = "model.attention=dot_product,super"


def asked(workdir, *more, over="model.attention=dot_product,efficient", seeds=2, replicas="no", **changes):
    return [*arguments(workdir, **changes), f"--over={over}", f"--seeds={seeds}", f"--replicas={replicas}", *more]


def directly(function, *arguments):
    return function(*arguments)


@pytest.fixture
def here(monkeypatch):
    """Configs are checked in this process, since another one takes long to start."""
    monkeypatch.setattr(matching, "in_new_process", directly)


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """The folder of a sweep that was killed once its first run had a line, and what the second start printed."""
    workdir = tmp_path_factory.mktemp("sweep") / "runs"
    command = [sys.executable, "-m", "train.sweep", *asked(workdir, "--jobs=2")]
    first = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not any(workdir.rglob("metrics.jsonl")) and first.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    first.kill()
    assert "4 of 4" not in first.communicate()[0]
    assert any(workdir.rglob("metrics.jsonl"))
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(matching, "in_new_process", directly)
        assert sweep.main(asked(workdir, "--jobs=2")) == 0
    return workdir, printed.getvalue()


def read(path):
    return json.loads(path.read_text())


def results(workdir):
    paths = {(name, seed): workdir / f"attention={name}" / f"seed{seed}" for name in MECHANISMS for seed in (0, 1)}
    return {key: read(path / "result.json") for key, path in paths.items()}


@pytest.mark.more
def test_a_killed_sweep_is_resumed_and_every_run_stands_once(swept):
    workdir, printed = swept
    assert "4 of 4 runs have finished, 0 failed." in printed
    checked, *names, trained = printed.splitlines()[:4]
    assert checked == "Checking the settings (seeds of each: 2):"
    assert names == [f"  attention={name}" for name in MECHANISMS]
    assert trained.startswith("Runs: 4, 2 at a time; each prints to a file such as ")
    lines = [line for line in printed.splitlines() if line.startswith("[")]
    assert all("accuracy 0." in line for line in lines)
    assert "left" not in lines[-1]
    found = results(workdir)
    for (name, seed), result in found.items():
        path = workdir / f"attention={name}" / f"seed{seed}"
        lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        steps = [(line["split"], line["step"]) for line in lines]
        assert len(set(steps)) == len(steps)
        assert read(path / "config.json")["seed"] == seed
        assert (result["attention"], result["steps"]) == (name, 12)
        assert result["peak_memory_of"] == "process"
        assert 2**26 < result["peak_memory_bytes"] < 2**40
        epochs = 12 * 32 / 1149  # the clock leaves a process's first step out
        assert result["seconds"] / epochs <= result["seconds_per_epoch"] <= result["seconds"] / epochs * 12 / 6
    assert len({result["best"]["test"]["loss"] for result in found.values()}) == 4


@pytest.mark.more
def test_seeds_and_rates_of_one_program_are_the_runs_that_each_alone_would_be(tmp_path, here, capsys):
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
        found[replicas] = {path.relative_to(workdir): path for path in sorted(workdir.glob("*/seed*")) if path.is_dir()}
    ours, theirs = found.values()
    good = [path for path in theirs if (theirs[path] / "result.json").exists()]
    assert [path for path in ours if (ours[path] / "result.json").exists()] == good
    for path in good:
        mine, alone = (read(place[path] / "result.json") for place in (ours, theirs))
        assert mine.keys() - alone.keys() == {"together"}
        assert mine["best_step"] == alone["best_step"]
        assert mine["best"]["test"]["loss"] == pytest.approx(alone["best"]["test"]["loss"], rel=1e-4)
        names = [{one.name for one in place[path].iterdir()} - {".lock"} for place in (ours, theirs)]
        assert names[0] == names[1]
        configs = [read(place[path] / "config.json") for place in (ours, theirs)]
        assert configs[0] == configs[1]
        assert evaluate.evaluate(ours[path], "best")[1]["loss"] == pytest.approx(mine["best"]["test"]["loss"], rel=1e-5)
    assert not list((tmp_path / "yes/together").glob("*/"))
    [log] = (tmp_path / "yes/together").glob("*.log")
    told = re.search(r"folders of their own, the first of which is (\S+)\.\n$", log.read_text())
    assert (Path(told[1]) / "result.json").is_file()
    assert sweep.main(asked(tmp_path / "yes", "--print", over=over, replicas="yes", **changes)) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2  # those that diverged
    assert report.main([str(tmp_path / "yes"), f"--out={tmp_path}", "--metric=loss"]) == 0


@pytest.mark.more
def test_the_report_of_a_sweep(swept, tmp_path):
    workdir, _ = swept
    assert report.main([str(workdir), f"--out={tmp_path}", "--metric=loss"]) == 0
    page, found = (tmp_path / "report.md").read_text(), results(workdir)
    assert "2 settings, 4 runs; seeds per setting: 2. The baseline is `dot_product`." in page
    assert "Compared at equal training examples" in page  # and by chance of equal seconds
    losses = {name: [found[name, seed]["best"]["test"]["loss"] for seed in (0, 1)] for name in MECHANISMS}
    for name, values in losses.items():
        width = math.tan(0.475 * math.pi) * statistics.stdev(values) / math.sqrt(2)  # of Cauchy's distribution
        assert f"{statistics.mean(values):.4f} ± {width:.4f}" in page
        assert f"| {name} | {found[name, 0]['attention_layer_parameters']:,} " in page
    differences = [ours - theirs for ours, theirs in zip(losses["efficient"], losses["dot_product"], strict=True)]
    t = statistics.mean(differences) / (statistics.stdev(differences) / math.sqrt(2))
    p = 1 - 2 / math.pi * math.atan(abs(t))  # Student's t of one degree of freedom is Cauchy's
    assert f"| {p:.2g} |" in page
    assert (tmp_path / "report.csv").exists()


@pytest.mark.more
def test_a_finished_sweep_trains_nothing_and_more_values_extend_it(swept, here, capsys):
    workdir, _ = swept
    assert sweep.main(asked(workdir, "--print")) == 0
    assert capsys.readouterr().out == ""
    assert sweep.main(asked(workdir, "--print", seeds=3, over="model.attention=dot_product,super,efficient")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.rpartition("runs/")[2] for line in lines] == [
        *("attention=super/seed0", "attention=super/seed1"),
        *(f"attention={name}/seed2" for name in ("dot_product", "super", "efficient")),
    ]


def test_what_is_printed_can_be_run(tmp_path, here, capsys):
    over = "model.attention=neural(dim=2,hidden=(4,2))|dot_product,super"
    changes = {"model__depth": 2, "train__length": "2 steps"}
    assert sweep.main(asked(tmp_path / "s", "--print", over=over, seeds=1, **changes)) == 0
    commands = [shlex.split(line) for line in capsys.readouterr().out.splitlines()]
    assert [command[:3] for command in commands] == [["python", "-m", "train.main"]] * 2
    flags, overrides = main.parse(commands[0][3:])
    assert overrides["model.attention"] == "neural(dim=2,hidden=(4,2))|dot_product"
    assert overrides["train.length"] == "2 steps"
    assert flags.workdir.startswith(str(tmp_path / "s"))
    assert not list(tmp_path.rglob("config.json"))


def test_one_that_fails_is_named_in_the_end(tmp_path, here, monkeypatch, capsys):
    code = "import sys; print('the loss was nan') or sys.exit('seed1' in sys.argv[1])"
    monkeypatch.setattr(pool, "command", lambda own, path: [sys.executable, "-c", code, path.name])
    assert sweep.main(asked(tmp_path / "s")) == 1
    printed = capsys.readouterr().out
    for name in MECHANISMS:
        log = tmp_path / f"s/attention={name}/seed1.log"
        assert f"attention={name}/seed1: failed, see {log}: the loss was nan" in printed
        assert f"attention={name}/seed0: stopped and saved" in printed
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


@pytest.mark.more
def test_what_was_matched_is_written_and_kept(tmp_path, here, monkeypatch, capsys):
    assert sweep.main(asked(tmp_path / "s", "--print", "--equal=flops", seeds=1)) == 0
    first = capsys.readouterr().out
    cells = read(tmp_path / "s/sweep.json")["cells"]
    assert cells["attention=dot_product"]["chosen"] == {}
    length = cells["attention=efficient"]["chosen"]["train.length"]
    assert f"--config.train.length={length}" in shlex.split(first.splitlines()[1])
    assert abs(cells["attention=efficient"]["flops"] / cells["attention=dot_product"]["flops"] - 1) < 0.05  # 12 steps
    monkeypatch.setattr(matching.Request, "length", None)
    assert sweep.main(asked(tmp_path / "s", "--print", "--equal=flops", seeds=1)) == 0
    assert capsys.readouterr().out == first


class Submitit(types.ModuleType):
    """Stands in for `submitit`, and records what it is asked for."""

    def __init__(self):
        super().__init__("submitit")
        self.submitted = []

    def AutoExecutor(self, folder):
        self.folder = folder
        return self

    def update_parameters(self, *, timeout_min=0, slurm_partition=""):
        self.parameters = (timeout_min, slurm_partition)

    def map_array(self, function, commands):
        self.submitted = [(function, command) for command in commands]
        return [types.SimpleNamespace(job_id=f"7_{index}") for index, _ in enumerate(commands)]


def test_slurm_gets_the_runs_that_are_left(tmp_path, here, monkeypatch, capsys):
    fake = Submitit()
    monkeypatch.setitem(sys.modules, "submitit", fake)
    (tmp_path / "s").mkdir()
    assert sweep.main(asked(tmp_path / "s", "--slurm=timeout_min=60,slurm_partition=gpu")) == 0
    assert fake.parameters == (60, "gpu")
    assert fake.folder == tmp_path / "s/slurm"
    assert [function for function, _ in fake.submitted] == [subprocess.check_call] * 4
    assert fake.submitted[0][1][1:3] == ["-m", "train.main"]
    assert "Submitted 4 jobs, 7_0 the first." in capsys.readouterr().out
    assert sweep.main(asked(tmp_path / "s", "--slurm=hours=1")) == 2
    assert "--slurm=hours=1 is not what submitit takes" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "submitit", None)
    assert sweep.main(asked(tmp_path / "s", "--slurm")) == 2
    assert capsys.readouterr().err == (
        "error: --slurm needs submitit, which is not installed: pip install submitit, or use --print.\n"
    )


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--over=model.patch=2,3"], "dot_product,patch=3: model.patch=3 does not divide images of 8x8 pixels"),
        (["--over=optimizer.name=adamw,adan"], "'adan'"),
        (["--equal=parameter"], "Unknown --equal 'parameter'. Did you mean 'parameters'?"),
        (["--config.train.replicas=2"], "--config.train.replicas cannot be: --replicas decides it."),
        (["--also=model.heads"], "--also model.heads has no value of model.heads"),
        (["--also=seed=3"], "--also seed cannot be: --seeds decides it"),
        (["--also=model.attention=efficient"], "is a setting that the sweep has already"),
        (["--also=model.heads=1", "--equal=flops"], "--also cannot be combined with --equal"),
        (["--tune=optimizer.learning_rate"], "must be at least two rising numbers"),
        (["--tune=optimizer.learning_rat=1e-3,1e-2"], "Did you mean '--config.optimizer.learning_rate'?"),
        (["--declare=nowhere.json"], "nowhere.json cannot be read (No such file"),
    ],
)
def test_mistakes_are_one_sentence_and_leave_nothing(tmp_path, here, capsys, more, message):
    assert sweep.main([*asked(tmp_path / "s"), *more]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ")
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert not printed.out or printed.out.startswith("Checking the settings")
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
path.mkdir(parents=True)
(path / "result.json").write_text(json.dumps({"best": metrics}))
"""
TUNED = ("--tune=optimizer.learning_rate=0.01,0.03,0.1", "--jobs=2")


def standing_in(own, path):
    return [sys.executable, "-c", STAND_IN, str(path), *own]


def tuned(workdir, *more, length="1/4", seeds=2):
    return asked(workdir, *TUNED, f"--tune-length={length}", *more, over=SUPER, seeds=seeds)


def test_every_setting_is_tried_alike_and_trained_with_its_best(tmp_path, here, monkeypatch, capsys):
    monkeypatch.setattr(pool, "command", standing_in)
    assert sweep.main(tuned(tmp_path / "s")) == 0
    assert "4 of 4 runs have finished, 0 failed." in capsys.readouterr().out
    record = read(tmp_path / "s/sweep.json")
    cells = record["cells"]
    # 0.1 is best of dot_product, at the grid's end: 0.333 is tried for both, and diverges.
    assert {name: [*cell["tried"]] for name, cell in cells.items()} == {
        name: ["0.01", "0.03", "0.1", "0.333"] for name in ("attention=dot_product", "attention=super")
    }
    assert cells["attention=super"]["tried"]["0.333"] == [None]
    assert [cell["chosen"]["optimizer.learning_rate"] for cell in cells.values()] == ["0.1", "0.03"]
    assert (record["tune"]["metric"], record["tune"]["length"], record["tune"]["seeds"]) == ("accuracy", "1/4", 1)
    assert "at an end of the grid" in record["tune"]["rule"]
    assert record["command"].startswith("python -m train.sweep --config=")
    trials = sorted(str(path.parent.relative_to(tmp_path / "s")) for path in tmp_path.rglob("tuning/*/*/*/result.json"))
    assert len(trials) == 6
    assert trials[0] == "tuning/attention=dot_product/learning_rate=0.01/seed0"


def test_a_tuned_sweep_is_resumed_and_extended_with_what_was_chosen(tmp_path, here, monkeypatch, capsys):
    assert sweep.main(tuned(tmp_path / "s", "--print")) == 0
    commands = [shlex.split(line) for line in capsys.readouterr().out.splitlines()]
    assert len(commands) == 6
    assert {"--config.train.length=3.0000 steps", "--config.seed=0"} < set(commands[0])
    monkeypatch.setattr(pool, "command", standing_in)
    assert sweep.main(tuned(tmp_path / "s")) == 0
    monkeypatch.setattr(pool, "command", None)
    assert sweep.main(tuned(tmp_path / "s", "--print", seeds=3)) == 0
    lines = capsys.readouterr().out.splitlines()[-2:]
    assert ["--config.optimizer.learning_rate=0.1" in line for line in lines] == [True, False]
    assert [line.rpartition("/")[2] for line in lines] == ["seed2", "seed2"]
    assert sweep.main(asked(tmp_path / "s", "--print", over=SUPER)) == 2
    assert "holds another sweep, which differs in tune" in capsys.readouterr().err


def test_values_may_be_tried_on_seeds_that_no_run_has(tmp_path, here, monkeypatch):
    monkeypatch.setattr(pool, "command", standing_in)
    assert sweep.main(tuned(tmp_path / "s", "--tune-beyond=0", "--tune-apart", length="1")) == 0
    assert {path.name for path in (tmp_path / "s/tuning").glob("*/*/*") if path.is_dir()} == {f"seed{2**20}"}
    assert {path.name for path in (tmp_path / "s").glob("attention=*/*") if path.is_dir()} == {"seed0", "seed1"}


def test_a_trial_as_long_as_a_run_is_not_trained_again(tmp_path, here, monkeypatch, capsys):
    trained = []

    def standing_in_once(flags, path):
        trained.append(path.relative_to(tmp_path / "s"))
        return standing_in(flags, path)

    monkeypatch.setattr(pool, "command", standing_in_once)
    assert sweep.main(tuned(tmp_path / "s", "--tune-beyond=0", length="1")) == 0
    assert "4 of 4 runs have finished, 0 failed." in capsys.readouterr().out
    first = tmp_path / "s/attention=super/seed0"
    tried = tmp_path / "s/tuning/attention=super/learning_rate=0.03/seed0"
    assert (first / "result.json").read_bytes() == (tried / "result.json").read_bytes()
    assert sum(path.parts[0] == "tuning" for path in trained) == 6


def test_a_trial_that_fails_for_another_reason_is_not_counted(tmp_path, here, monkeypatch, capsys):
    monkeypatch.setattr(pool, "command", lambda own, path: [sys.executable, "-c", "import sys; sys.exit('no space')"])
    assert sweep.main(tuned(tmp_path / "s")) == 1
    assert "0 of 6 runs have finished, 6 failed." in capsys.readouterr().out
    assert all("tried" not in cell for cell in read(tmp_path / "s/sweep.json")["cells"].values())


def test_settings_beside_the_grid(tmp_path, here, capsys):
    beside = ("--also=model.attention=super,model.heads=1", "--also", "model.attention=neural(dim=2,hidden=(4,2))")
    assert sweep.main(asked(tmp_path / "s", "--print", *beside, over=SUPER, seeds=1)) == 0
    lines = [shlex.split(line) for line in capsys.readouterr().out.splitlines()]
    names = [line[-1].split("/")[-2] for line in lines]
    attentions = ("dot_product", "super", "super,heads=1", "neural-dim=2-hidden=-4-2--")
    assert names == [f"attention={name}" for name in attentions]
    assert {"--config.model.attention=super", "--config.model.heads=1"} < set(lines[2])
    assert sweep.main(asked(tmp_path / "s", "--print", over=SUPER, seeds=1)) == 2
    assert "differs in --also" in capsys.readouterr().err


DECLARED = {
    "question": "Is super better?",
    "metric": "accuracy",
    "margin": 0.005,
    "family": [{"name": "super", "settings": ["attention=super"], "baselines": ["attention=dot_product"]}],
}


def test_what_is_declared_is_written_and_does_not_change(tmp_path, here, capsys):
    file = tmp_path / "study.json"
    file.write_text(json.dumps(DECLARED))
    flags = asked(tmp_path / "s", "--print", f"--declare={file}", over=SUPER)
    assert sweep.main(flags) == 0
    kept = read(tmp_path / "s/sweep.json")["declaration"]
    assert kept | DECLARED | {"family": kept["family"]} == kept
    assert kept["family"][0] | DECLARED["family"][0] == kept["family"][0]
    file.write_text(json.dumps(DECLARED | {"margin": 0.01}))
    assert sweep.main(flags) == 2
    assert "which differs in declaration" in capsys.readouterr().err
    file.write_text(json.dumps(DECLARED | {"family": [DECLARED["family"][0] | {"settings": ["attention=supper"]}]}))
    assert sweep.main([*(flag for flag in flags if "workdir" not in flag), f"--workdir={tmp_path / 't'}"]) == 2
    assert "Unknown setting of the comparison 'super' 'attention=supper'" in capsys.readouterr().err
