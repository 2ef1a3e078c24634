"""A process learns whether it is one of several; the launcher starts and ends them together."""

import os
import subprocess
import time

import pytest

from attention.errors import UsageError
from tests.conftest import ROOT
from tests.sizes import once
from train import cli, launch, loading
from train.data import packages
from train.mesh import processes
from train.run import console

SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_NODELIST": "node[001-002]",
    "SLURM_NTASKS": "4",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "1",
}
OPEN_MPI = {"OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1:34911", "OMPI_COMM_WORLD_SIZE": "2"}
KUBERNETES = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}


@pytest.mark.parametrize(
    ("environment", "installed", "is_one_of_several"),
    [
        (SLURM, "", True),
        ({name: value for name, value in SLURM.items() if name != "SLURM_STEP_NUM_TASKS"}, "", True),
        (SLURM | {"SLURM_STEP_NUM_TASKS": "1"}, "", False),  # a shell in a job of four tasks
        (SLURM | {"SLURM_NTASKS": "1", "SLURM_STEP_NUM_TASKS": "1"}, "", False),
        ({name: SLURM[name] for name in SLURM if "STEP" not in name}, "", False),  # sbatch without srun
        (OPEN_MPI, "", True),
        (OPEN_MPI | {"OMPI_COMM_WORLD_SIZE": "1"}, "", False),
        ({"TPU_WORKER_HOSTNAMES": "a,b", "TPU_WORKER_ID": "0"}, "", True),
        ({"TPU_WORKER_HOSTNAMES": "localhost"}, "", False),
        (KUBERNETES | {"JOB_COMPLETION_INDEX": "0"}, "kubernetes", True),
        (KUBERNETES | {"JOB_COMPLETION_INDEX": "0"}, "", False),  # without the package that asks Kubernetes
        (KUBERNETES, "kubernetes", False),  # any pod
        ({}, "", False),
    ],
)
def test_a_scheduler_is_noticed(environment, installed, is_one_of_several, monkeypatch):
    monkeypatch.setattr(packages, "is_installed", lambda package: package == installed)
    assert processes.in_cluster(environment) == is_one_of_several


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--coordinator=a:1"], "give --num-processes and --process-id too."),
        (["--coordinator=a", "--num-processes=2", "--process-id=0"], "must be HOST:PORT"),
        (["--coordinator=:1", "--num-processes=2", "--process-id=0"], "must be HOST:PORT"),
        (["--coordinator=a:1", "--num-processes=0", "--process-id=0"], "must be a number from 1 on, but it is '0'"),
        (["--coordinator=a:1", "--num-processes=two", "--process-id=0"], "must be a number from 1 on"),
        (["--coordinator=a:1", "--num-processes=2", "--process-id=2"], "must be a number from 0 to 1, but it is '2'"),
        (["--coordinator=a:1", "--num-processes=2", "--process-id=-1"], "must be a number from 0 to 1"),
        (["--coordinator", "--num-processes=2"], "--coordinator must be given once, with a value"),
        (["--process-id=0", "--process-id", "1"], "--process-id must be given once"),
    ],
)
def test_flags_that_do_not_fit_are_told(flags, message):
    with pytest.raises(UsageError, match=message):
        processes.join(flags)


def test_alone_there_is_nobody_to_agree_with():
    with pytest.raises(UsageError, match=r"^mine$") as raised, processes.together():
        raise UsageError("mine")
    assert not isinstance(raised.value, processes.SharedError)
    assert processes.exchange("a") == ["a"]
    assert processes.of_first("b") == "b"
    assert processes.is_first()


@pytest.mark.parametrize("process", once([0, 1], [1]))
def test_a_process_that_waits_in_vain_says_so(run_python, process):
    flags = [f"--coordinator=127.0.0.1:{launch.free_port()}", "--num-processes=2", f"--process-id={process}"]
    program = f"from train.mesh import processes; processes.JOINING = 1; processes.join({flags})"
    done = run_python("-c", program, check=False)
    assert done.returncode == cli.ALONE
    assert done.stderr.startswith("error: After 1 s not all processes have joined;")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "Something is missing: --processes"),
        (["--processes=0"], "--processes must be a whole number from 1 on, but it is '0'"),
        (["--processes=2", "--devices-per-process"], "--devices-per-process needs a value"),
        (["--process=2"], "Did you mean '--processes'"),
        (["--processes=2", "--config=a.py"], "go after --"),
    ],
)
def test_launch_tells_of_mistakes(flags, message, refused):
    assert message in refused(launch.main, flags)


@pytest.mark.parametrize(
    ("flags", "more", "again"),
    [
        (["--", "--config=a.py", "--workdir=runs/a"], [], ""),
        (["--", "--workdir=runs/a", "--", "--help"], [], ""),
        (["--", "--config=a.py:b"], ["--workdir=runs/a-b-NOW"], "-- --config=a.py:b --workdir=runs/a-b-NOW"),
        ([], ["--workdir=runs/vit_digits-NOW"], "-- --workdir=runs/vit_digits-NOW"),
    ],
)
def test_launch_chooses_the_work_directory_if_none_is_given(monkeypatch, flags, more, again):
    monkeypatch.setattr(loading.time, "strftime", lambda _: "NOW")
    launched = []
    monkeypatch.setattr(launch, "launch", lambda *given, command="": launched.append((*given, command)))
    launch.run(["--processes=2", *flags])
    command = f"python -m train.launch --processes=2 {again}" if again else ""
    assert launched == [(2, 0, [*flags[1:], *more], command)]


def test_launch_says_how_to_continue_where_it_chose_the_work_directory(program, capfd):
    line = f"print(os.environ['{console.COMMAND}']); sys.exit(me)"
    assert launch.launch(2, 0, [], program(line), "typed") == 1
    out, err = capfd.readouterr()
    assert out == "typed\n"
    assert err == "Process 1 of 2 ended with exit code 1; to continue: typed\n"


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Makes a module from a line of Python, in which `me` is the process's number."""

    def make(line):
        lines = ["import os, signal, sys, time", "me = int(sys.argv[3].partition('=')[2])", line]
        (tmp_path / "program.py").write_text("\n".join(lines) + "\n")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        return "program"

    return make


def test_launch_shows_the_firsts_output_and_the_others_errors(program, capfd):
    module = program("print('out', me); print('err', me, file=sys.stderr)")
    assert launch.launch(3, 0, [], module) == 0
    out, err = capfd.readouterr()
    assert out == "out 0\n"
    assert sorted(err.splitlines()) == ["[1] err 1", "[2] err 2", "err 0"]


@pytest.mark.parametrize(
    ("line", "code", "last"),
    [
        ("sys.exit(2)", 2, ""),  # all alike: the first has said why
        ("sys.exit(3 if me == 1 else 0)", 1, "Process 1 of 2 ended with exit code 3; "),
        ("os.kill(os.getpid(), signal.SIGKILL) if me == 0 else time.sleep(60)", 1, "Process 0 of 2 died by SIGKILL; "),
        ("signal.signal(15, signal.SIG_IGN); time.sleep(0 if me else 60); sys.exit(1)", 1, "Process 1 of 2 ended with"),
    ],
)
def test_launch_ends_all_and_says_who_failed(program, monkeypatch, capfd, line, code, last):
    monkeypatch.setattr(launch, "MOMENT", 0.5)
    assert launch.launch(2, 0, [], program(line)) == code
    said = capfd.readouterr().err.splitlines()
    assert len(said) == bool(last)
    if last:
        assert said[-1].startswith(last)
        assert said[-1].endswith("the same command continues from the last checkpoint.")


# Stand-ins for SLURM's programs: a step that ends when it is told to, or by itself where there is an exit code for it.
PROGRAMS = {
    "srun": """echo $$ > step; trap 'exit 0' TERM
if [[ $ENDS == 0 ]]; then touch run/result.json; fi
if [[ $ENDS ]]; then exit $ENDS; fi
while true; do sleep 0.02; done""",
    "scancel": 'kill -TERM $(cat step); echo "$@" > cancelled',
    "scontrol": 'echo "$@" > queued',
}


@pytest.mark.parametrize(("ends", "code"), once([("", 0), ("0", 0), ("2", 2)], [("2", 2)]))
def test_the_slurm_script(tmp_path, ends, code):
    """Near the end of its time it saves and requeues the run, unless that has finished or failed."""
    script = (ROOT / "docs/scaling.md").read_text().split("```bash\n")[1].split("```")[0]
    assert "\nrun=/shared/runs/vit\n" in script
    (tmp_path / "run").mkdir()
    (tmp_path / "job").write_text(script.replace("/shared/runs/vit", "run"))
    for name, text in PROGRAMS.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "ENDS": ends}
    job = subprocess.Popen(["bash", "job"], cwd=tmp_path, env=environment)
    if not ends:
        while not (tmp_path / "step").exists() or not (tmp_path / "step").read_text():
            time.sleep(0.02)
        job.terminate()
    assert job.wait(timeout=60) == code
    assert (tmp_path / "queued").exists() == (not ends)
    if not ends:
        assert (tmp_path / "cancelled").read_text() == "--signal=TERM 7\n"
        assert (tmp_path / "queued").read_text() == "requeue 7\n"
