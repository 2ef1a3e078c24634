"""Start several processes of a training on this machine, which find one another and end together.

The arguments after -- go to `train.main`. The output of the first process is passed on, and so are the errors of the
others, with their number in front. SIGTERM and SIGINT go to all processes. When one process dies, the others are ended,
and the last line says which one died.

python -m train.launch --processes=2 -- --config=configs/vit_digits.py --workdir=runs/two
python -m train.launch --processes=2 --devices-per-process=4 -- --config.mesh.data=4 --config.mesh.tensor=2
"""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor

from attention.errors import UsageError
from train import cli
from train.main import DEFAULT_CONFIG
from train.run import console

MOMENT = 5.0  # seconds that the other processes have to end by themselves, and again after SIGTERM
_DIE_WITH_PARENT = 1  # prctl's PR_SET_PDEATHSIG


def parser() -> cli.Parser:
    """Returns the parser of the flags in front of --."""
    parser = cli.Parser(__doc__)
    parser.add_argument("--processes", type=cli.count, required=True, help="number of processes")
    parser.add_argument(
        "--devices-per-process", type=cli.count, default=0, help="number of fake CPU devices, to try a mesh"
    )
    return parser


def parse(arguments: Sequence[str]) -> tuple[int, int, list[str]]:
    """Returns the number of processes, the fake devices of each (0 uses the real ones) and the flags of `train.main`.

    Raises:
      UsageError: a flag is unknown, or its value is not a number from 1 on.
    """
    given = list(arguments)
    place = given.index("--") if "--" in given else len(given)
    try:
        flags = parser().parse_args(given[:place])
    except UsageError as error:
        unknown = str(error).startswith("Unknown") and place == len(given)
        raise UsageError(f"{error} What is train.main's stands behind --." if unknown else str(error)) from error
    return flags.processes, flags.devices_per_process, given[place + 1 :]


class Job:
    """The processes of one training on this machine."""

    def __init__(self, command: Callable[[int], list[str]], count: int, environment: dict[str, str]):
        self.processes = [_start(command(index), index, environment) for index in range(count)]
        self._threads = ThreadPoolExecutor(2 * count)
        self._ends = {self._threads.submit(_watch, process): i for i, process in enumerate(self.processes)}
        for index, process in enumerate(self.processes):
            self._threads.submit(_pass_on, process, index)

    def wait(self) -> int | None:
        """Waits until all have ended, and returns which failed first, if any did; the others are then ended soon."""
        ended = (self._ends[end] for end in futures.as_completed(self._ends))
        failed = next((index for index in ended if self.processes[index].returncode), None)
        for number in (signal.SIGTERM, signal.SIGKILL):
            if futures.wait(self._ends, MOMENT).not_done:
                self.send(number)
        self._threads.shutdown()  # waits until all output of the processes has been passed on
        return failed

    def send(self, number: int) -> None:
        """Sends a signal to all processes that still run."""
        for process in self.processes:
            process.send_signal(number)


def _watch(process: subprocess.Popen) -> None:
    """Waits for a process's end, and kills the workers that it leaves behind, since they hold its stderr open."""
    process.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _pass_on(process: subprocess.Popen, index: int) -> None:
    """Passes on the stderr of a process other than the first, with its number."""
    for line in process.stderr or ():
        print(f"[{index}] {line}", end="", file=sys.stderr, flush=True)


def _environment(devices: int, command: str) -> dict[str, str]:
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3"}  # keeps JAX's C++ from logging pages when a process ends
    environment = quiet | os.environ | {console.COMMAND: command}
    if devices:
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
        environment["XLA_FLAGS"] = flags.strip()
    return environment


def _start(command: list[str], index: int, environment: dict[str, str]) -> subprocess.Popen:
    """Starts a process in a new process group, so that Ctrl-C reaches it only through us; it never outlives us."""
    streams = (
        {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True, "errors": "replace"} if index else {}
    )
    return subprocess.Popen(command, env=environment, process_group=0, preexec_fn=_end_with_parent, **streams)


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)


def free_port() -> int:
    """Returns a port of this machine that nobody listens at."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def launch(
    processes: int, devices: int, arguments: Sequence[str], module: str = "train.main", command: str = ""
) -> int:
    """Runs a module in several processes and returns the exit code, which is 0 where all ended well.

    Args:
      processes: How many processes to start.
      devices: Fake CPU devices in each; with 0 each has the real ones.
      arguments: The command line of each process.
      module: The program, which must take the flags of `train.mesh.processes`.
      command: What a user types to continue; '' if it is the same again.
    """
    place = [f"--coordinator=127.0.0.1:{free_port()}", f"--num-processes={processes}"]

    def process(index: int) -> list[str]:
        return [*console.command(module), *place, f"--process-id={index}", *arguments]

    job = Job(process, processes, _environment(devices, command))
    with cli.signals_handled(lambda number, _: job.send(number)):
        failed = job.wait()
    if failed is None:
        return 0
    codes = {process.returncode for process in job.processes}
    if len(codes) == 1 and codes <= {cli.FAILED, cli.MISTAKE, cli.DIVERGED}:
        return codes.pop()  # all raised the same error, and the first process has reported it
    code = job.processes[failed].returncode
    ending = f"died by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    again = f"to continue: {command}" if command else "the same command continues from the last checkpoint."
    print(f"Process {failed} of {processes} {ending}; {again}", file=sys.stderr)
    return 1


def run(arguments: Sequence[str]) -> int:
    """Chooses the work directory if none is given, to say how to continue; launches, and returns the exit code."""
    from train import loading

    processes, devices, given = parse(arguments)
    flags = dict(cli.taken(given, {"--config", "--workdir"}.__contains__)[0])
    if flags.get("--workdir"):
        return launch(processes, devices, given)
    place = f"--workdir={loading.default_workdir(flags.get('--config') or DEFAULT_CONFIG)}"
    behind = [place] if "--" in arguments else ["--", place]
    _, rest = cli.taken(given, "--workdir".__eq__)
    return launch(processes, devices, [*rest, place], command=console.typed("train.launch", arguments, *behind))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program and returns its exit code."""
    return cli.run(lambda: run(sys.argv[1:] if arguments is None else arguments), lasting=True)


if __name__ == "__main__":
    sys.exit(main())
