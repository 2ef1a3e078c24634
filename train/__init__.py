"""Training: the programs, the loop, and in a room each: configs, data, tasks, runs, devices, decoding and grids."""

import signal
import sys
from pathlib import Path

if (
    sys.argv[0] == "-m" or Path(sys.argv[0]).stem == "attention-bench"
):  # a program is being started, and nothing that takes long is imported yet
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # JAX's callbacks would swallow the exception that Ctrl-C raises
