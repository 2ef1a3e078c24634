"""Start several processes of a training on this machine, which find one another and end together.

The arguments after -- go to `train.main`. The first process's output is passed on, and so are the other processes'
errors, with the process's number in front. SIGTERM and SIGINT go to all processes. When one process dies, the others
are ended, and the last line says which one died.

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
from collections.abc import Sequence
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor

from attention.errors import UsageError
from train import cli
from train.main import DEFAULT_CONFIG
from train.run import console

MOMENT = 5.0  # seconds until the other processes get SIGTERM, and again until they get SIGKILL
_DIE_WITH_PARENT = 1  # prctl's PR_SET_PDEATHSIG


def parse(arguments: Sequence[str]) -> tuple[int, int, list[str]]:
    """Reads the number of processes, the fake devices of each (0 for the real ones) and the flags of `train.main`."""
    given = list(arguments)
    place = given.index("--") if "--" in given else len(given)
    try:
        flags = parser().parse_args(given[:place])
    except UsageError as error:
        unknown = str(error).startswith("Unknown") and place == len(given)
        raise UsageError(f"{error} Flags of train.main go after --." if unknown else str(error)) from error
    return flags.processes, flags.devices_per_process, given[place + 1 :]


def parser() -> cli.Parser:
    """Makes the parser of the flags before --."""
    made = cli.Parser(__doc__)
    made.add_argument("--processes", type=cli.count, required=True, help="number of processes")
    text = "number of fake CPU devices of each process, to try a mesh"
    made.add_argument("--devices-per-process", type=cli.count, default=0, help=text)
    return made


def free_port() -> int:
    """Finds a free port of this machine."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def launch(
    processes: int, devices: int, arguments: Sequence[str], module: str = "train.main", command: str = ""
) -> int:
    """Runs a module in several processes and returns the exit code, which is 0 if all ended well.

    Args:
      processes: The number of processes.
      devices: The number of fake CPU devices of each process; 0 gives it the real ones.
      arguments: The command line of each process.
      module: The program, which must take the flags of `train.mesh.processes`.
      command: What a user types to continue; '' if it is the same command.
    """
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3"}  # else JAX's C++ logs pages when a process ends
    environment = quiet | os.environ | {console.COMMAND: command}
    if devices:
        fake = f"--xla_force_host_platform_device_count={devices}"
        environment["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {fake}".strip()
    start = [*console.command(module), f"--coordinator=127.0.0.1:{free_port()}", f"--num-processes={processes}"]
    job = [_start([*start, f"--process-id={i}", *arguments], i, environment) for i in range(processes)]
    with cli.signals_handled(lambda number, _: _send(job, number)):
        failed = _wait(job)
    if failed is None:
        return cli.DONE
    codes = {process.returncode for process in job}
    if len(codes) == 1 and codes <= {cli.FAILED, cli.MISTAKE, cli.DIVERGED}:
        return codes.pop()  # all raised the same error, and the first process has reported it
    code = job[failed].returncode
    ending = f"died by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    again = f"to continue: {command}" if command else "the same command continues from the last checkpoint."
    print(f"Process {failed} of {processes} {ending}; {again}", file=sys.stderr)
    return cli.FAILED


def _start(command: list[str], index: int, environment: dict[str, str]) -> subprocess.Popen:
    """Starts a process in a new process group, so that Ctrl-C reaches it only through us; it never outlives us."""
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True, "errors": "replace"}
    options = streams if index else {}
    return subprocess.Popen(command, env=environment, process_group=0, preexec_fn=_end_with_parent, **options)


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)


def _send(job: Sequence[subprocess.Popen], number: int) -> None:
    for process in job:
        process.send_signal(number)  # does nothing if it has ended


def _wait(job: Sequence[subprocess.Popen]) -> int | None:
    """Waits until all have ended, and tells which failed first, if any; the others are then ended."""
    with ThreadPoolExecutor(2 * len(job)) as threads:  # which ends once all output has been passed on
        ends = {threads.submit(_watch, process): index for index, process in enumerate(job)}
        for index, process in enumerate(job):
            threads.submit(_pass_on, process, index)
        ended = (ends[end] for end in futures.as_completed(ends))
        failed = next((index for index in ended if job[index].returncode), None)
        for number in (signal.SIGTERM, signal.SIGKILL):
            if futures.wait(ends, MOMENT).not_done:
                _send(job, number)
    return failed


def _watch(process: subprocess.Popen) -> None:
    """Waits until a process has ended, and kills the workers it leaves behind, which hold its stderr open."""
    process.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _pass_on(process: subprocess.Popen, index: int) -> None:
    for line in process.stderr or ():
        print(f"[{index}] {line}", end="", file=sys.stderr, flush=True)


def run(arguments: Sequence[str]) -> int:
    """Launches; chooses the work directory if none is given, to be able to say how to continue."""
    processes, devices, given = parse(arguments)
    from train import loading  # only now, so that --help is fast

    flags = dict(cli.taken(given, {"--config", "--workdir"}.__contains__)[0])
    if flags.get("--workdir"):
        return launch(processes, devices, given)
    place = f"--workdir={loading.default_workdir(flags.get('--config') or DEFAULT_CONFIG)}"
    behind = [place] if "--" in arguments else ["--", place]
    _, rest = cli.taken(given, "--workdir".__eq__)
    return launch(processes, devices, [*rest, place], command=console.typed("train.launch", arguments, *behind))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program."""
    return cli.run(lambda: run(sys.argv[1:] if arguments is None else arguments), lasting=True)


if __name__ == "__main__":
    sys.exit(main())
