"""train.main, but one of its processes meets with something: FAULT='1 6 SIGKILL' is process 1 after reading step 6.

FAULT='1 0 /a/folder' starts process 1 in another folder, as on a machine that lacks the data.
"""

import os
import signal
import sys

from train import loop, main


def meet(step: int, what: str) -> None:
    """Arranges it."""
    if step == 0:
        os.chdir(what)
        return
    read = loop.Run._read

    def until(run, at, *rest):
        read(run, at, *rest)
        if at == step:
            os.kill(os.getpid(), signal.Signals[what])

    loop.Run._read = until


if __name__ == "__main__":
    process, step, what = os.environ["FAULT"].split()
    if f"--process-id={process}" in sys.argv:
        meet(int(step), what)
    sys.exit(main.main(sys.argv[1:]))
