"""Asked to stop once, a process saves first; asked twice, it ends at once."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.sizes import more
from train.run import interrupts
from train.run.interrupts import Interrupts

PROGRAM = """
import contextlib, os, runpy, signal, sys, time
sys.argv = ["-m"]  # as Python has it while it looks for a program
from train import loop
from train.run.interrupts import Interrupts

def train(*_):
    with {context}():
        for name in {names}:
            os.kill(os.getpid(), signal.Signals[name])
        time.sleep(60)

loop.train_and_evaluate = train
sys.argv = ["train.main"]
runpy.run_module("train.main", run_name="__main__")
"""
STARTING, TRAINING = "contextlib.nullcontext", "Interrupts"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_heard_after_the_next_step(number):
    with Interrupts() as asked:
        assert not asked.stop_after(1)
        os.kill(os.getpid(), number)
        assert asked.stop_after(2)
        assert asked.stop_after(3)


def test_ctrl_c_is_answered_at_once_on_a_terminal(monkeypatch):
    ours, terminal = os.openpty()
    monkeypatch.setattr(interrupts, "STDERR", terminal)
    with Interrupts():
        os.kill(os.getpid(), signal.SIGINT)
    assert os.read(ours, 200).strip() == interrupts.SOON.strip()


def test_handlers_are_put_back():
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with Interrupts():
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) != before
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_after_the_first_signal_what_was_there_before_hears_the_second():
    heard, before = [], signal.signal(signal.SIGTERM, lambda *_: heard.append("second"))
    try:
        with Interrupts():
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == ["second"]


@pytest.mark.parametrize(
    ("context", "names"),
    [
        (STARTING, ["SIGTERM"]),
        more(STARTING, ["SIGINT"]),
        (TRAINING, ["SIGTERM", "SIGINT"]),
        more(TRAINING, ["SIGINT", "SIGTERM"]),
    ],
)
def test_a_signal_during_start_up_or_a_second_one_ends_the_program_at_once(run_python, context, names):
    """The last signal itself kills it, so nothing is waited for or written."""
    done = run_python("-c", PROGRAM.format(context=context, names=names), check=False, timeout=50)
    assert done.returncode == -signal.Signals[names[-1]]  # 128 and that, to a shell
    assert done.stderr == ""


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux shows what a process has loaded")
@pytest.mark.parametrize("module", ["train.main", more("analysis.report")])
def test_an_interrupt_during_the_imports_ends_the_program(module):
    program = subprocess.Popen([sys.executable, "-m", module, "--help"], cwd=ROOT, stderr=subprocess.PIPE)
    maps = Path(f"/proc/{program.pid}/maps")
    while "jaxlib" not in maps.read_text():  # JAX is being imported
        time.sleep(0.005)
    program.send_signal(signal.SIGINT)
    assert (program.communicate(timeout=60)[1], program.returncode) == (b"", -signal.SIGINT)
