"""Run train.main, to which something happens once it has read a step: FAULT='6 SIGKILL'.

FAULT='5 SIGTERM SIGTERM' sends two signals, and FAULT='5 group:SIGTERM' sends one to the whole process group, as Ctrl-C
in a terminal and schedulers do. FAULT='0 /a/folder' starts it in another folder, as on a machine that lacks the data.
With PROCESS=1, it happens only to process 1 of several.
"""

import os
import signal
import sys

from train import main
from train.run.training import TrainingRun


def meet(step: int, *what: str) -> None:
    """Arranges what happens at a step."""
    if step == 0:
        os.chdir(*what)
        return
    account = TrainingRun._account

    def until(run, before, count, *rest):
        account(run, before, count, *rest)
        if before < step <= before + count:
            for name in what:
                send(name)

    TrainingRun._account = until


def send(what: str) -> None:
    """Sends a signal by its name."""
    where, _, name = what.rpartition(":")
    (os.killpg if where == "group" else os.kill)(0 if where == "group" else os.getpid(), signal.Signals[name])


if __name__ == "__main__":
    if "PROCESS" not in os.environ or f"--process-id={os.environ['PROCESS']}" in sys.argv:
        step, *what = os.environ["FAULT"].split()
        meet(int(step), *what)
    sys.exit(main.main(sys.argv[1:]))
