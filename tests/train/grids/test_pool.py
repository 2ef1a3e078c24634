"""Several processes run at a time: each once, on its own CPUs, whatever ends or is killed."""

import errno
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from attention import UsageError
from tests.conftest import ROOT
from train import cli
from train.grids import pool
from train.grids.pool import DIVERGED, FAILED, FINISHED, STOPPED, run_all


def script(text):
    return [sys.executable, "-c", textwrap.dedent(text)]


def finishing(workdir, more=""):
    """A run that takes a moment, notes that it ran and where, and has a result."""
    return script(f"""
        import os, pathlib, time
        {more}
        path = pathlib.Path({str(workdir)!r})
        path.mkdir(exist_ok=True)
        with (path / "ran").open("a") as file:
            file.write(f"{{sorted(os.sched_getaffinity(0))}}\\n")
        time.sleep(0.3)
        (path / "result.json").write_text("{{}}")
    """)


def test_one_that_fails_stops_no_other_and_what_has_finished_is_not_run_again(tmp_path):
    paths = [tmp_path / name for name in "abcde"]
    (tmp_path / "a").mkdir()
    (tmp_path / "a/result.json").write_text("{}")
    todo = {path: finishing(path) for path in paths}
    todo[tmp_path / "b"] = script("print('no luck'); raise SystemExit(3)")
    todo[tmp_path / "c"] = script("print('saved')")  # as one that was told to stop
    todo[tmp_path / "e"] = script(f"raise SystemExit({cli.DIVERGED})")
    told = []
    outcomes = run_all(todo, 2, lambda path, outcome, left: told.append((path, outcome)))
    assert outcomes == dict(zip(paths, (FINISHED, FAILED, STOPPED, FINISHED, DIVERGED), strict=True))
    assert sorted(told) == sorted(outcomes.items())
    assert not (tmp_path / "a/ran").exists()
    assert pool.log_of(tmp_path / "b").read_text() == "no luck\n"


def test_each_has_cpus_of_its_own(tmp_path):
    cpus = sorted(os.sched_getaffinity(0))
    jobs = len(cpus)
    paths = [tmp_path / f"{i}" for i in range(jobs)]
    run_all({path: finishing(path) for path in paths}, 0, lambda *_: None)
    assert sorted((path / "ran").read_text() for path in paths) == sorted(f"[{cpu}]\n" for cpu in cpus)
    assert sorted(os.sched_getaffinity(0)) == cpus
    run_all({tmp_path / "all": finishing(tmp_path / "all")}, 1, lambda *_: None)
    assert (tmp_path / "all/ran").read_text() == f"{cpus}\n"


def test_the_time_that_is_left_follows_from_the_runs_that_have_finished(tmp_path):
    left = []
    start = time.monotonic()
    run_all({tmp_path / name: finishing(tmp_path / name) for name in "abc"}, 1, lambda *told: left.append(told[2]))
    seconds = time.monotonic() - start
    assert 2 * 0.3 <= left[0] < seconds
    assert 0.3 <= left[1] < seconds / 2
    assert left[2] == 0.0


def started(tmp_path, command):
    """Another process that has started a run of `tmp_path / 'run'`."""
    run = tmp_path / "run"
    code = f"""
        import pathlib
        from train.grids import pool
        pool.run_all({{pathlib.Path({str(run)!r}): {command!r}}}, 1, lambda *told: print(told[1]))
    """
    other = subprocess.Popen(script(code), cwd=ROOT, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not run.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return other


def test_a_run_that_outlives_its_killed_sweep_is_waited_for(tmp_path):
    command = finishing(tmp_path / "run", "pathlib.Path({!r}).mkdir(); time.sleep(2)".format(str(tmp_path / "run")))
    started(tmp_path, command).kill()
    assert not pool.is_finished(tmp_path / "run")
    outcomes = run_all({tmp_path / "run": ["false"]}, 1, lambda *_: None)
    assert outcomes == {tmp_path / "run": FINISHED}
    assert (tmp_path / "run/ran").read_text().count("\n") == 1


def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch):
    def refuse(file, how):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(UsageError, match=r"one\.log cannot be locked .*No locks available"):
        run_all({tmp_path / "one": ["true"]}, 1, lambda *_: None)


def test_a_signal_is_passed_on_and_all_save(tmp_path):
    command = script(f"""
        import os, pathlib, signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path('saved').touch(), sys.exit(0)))
        pathlib.Path({str(tmp_path / "run")!r}).mkdir()
        os.chdir({str(tmp_path)!r})
        time.sleep(60)
    """)
    other = started(tmp_path, command)
    other.send_signal(signal.SIGTERM)
    assert other.communicate(timeout=30)[0] == f"{STOPPED}\n"
    assert other.returncode == 0
    assert (tmp_path / "saved").exists()
