"""Asked once to stop, a process saves first; asked twice, it is gone."""

import os
import signal

import pytest

from tests.sizes import more
from train.run.interrupts import Interrupts

TWICE = """
import os, runpy, signal, sys, time
from train import loop
from train.run.interrupts import Interrupts

def train(*_):
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signal.{first})
        assert interrupts.stop_after(1)
        os.kill(os.getpid(), signal.{second})
        time.sleep(60)

loop.train_and_evaluate = train
sys.argv = ["train.main"]
runpy.run_module("train.main", run_name="__main__")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_heard_after_the_next_step(number):
    with Interrupts() as interrupts:
        assert not interrupts.stop_after(1)
        os.kill(os.getpid(), number)
        assert interrupts.stop_after(2)
        assert interrupts.stop_after(3)


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


@pytest.mark.parametrize(("first", "second"), [("SIGTERM", "SIGINT"), more("SIGINT", "SIGTERM")])
def test_the_program_asked_twice_is_gone(run_python, first, second):
    """Killed by the signal itself, so nothing is waited for, and nothing is written."""
    done = run_python("-c", TWICE.format(first=first, second=second), check=False)
    assert done.returncode == -signal.Signals[second]
    assert done.stderr == ""
