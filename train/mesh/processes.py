"""Several processes as one program: how they find one another, agree, and fail together.

They agree through JAX's coordination service, a small store of keys and values in the first process. It needs no
devices, so if a process fails before it has any, the others learn why.
"""

import contextlib
import hashlib
import itertools
import json
import os
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
from jax._src import distributed as _jax  # the store has no public name; Orbax imports it from here too

from attention.errors import UsageError
from train import cli
from train.data import packages

FLAGS = ("--coordinator", "--num-processes", "--process-id")
HEARTBEAT = 30  # seconds of silence after which a process counts as dead and the others end
JOINING = 300  # seconds within which all processes must have joined
FOREVER = 7 * 24 * 3600 * 1000  # milliseconds; waits end when a process dies, not by the clock
_SLURM = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID")
_rounds = itertools.count()


class SharedError(UsageError):
    """A mistake that all processes raise and that the first one reports."""


def join(arguments: Sequence[str]) -> list[str]:
    """Joins the other processes if flags or a scheduler say so; returns the arguments without `FLAGS`.

    It must be called before JAX looks for devices.
    """
    pairs, rest = cli.taken(arguments, FLAGS.__contains__)
    if pairs:
        host, count, index = _checked(pairs)
        local = host.rsplit(":", 1)[0] in ("localhost", "127.0.0.1")
        _initialize(
            coordinator_address=host,
            num_processes=count,
            process_id=index,
            cluster_detection_method="deactivate",
            coordinator_bind_address=host if local else None,
        )
    elif in_cluster(os.environ):
        _initialize()
    return rest


def in_cluster(environment: Mapping[str, str]) -> bool:
    """Tells whether a scheduler has started this process as one of several, which JAX finds by itself."""
    if all(name in environment for name in _SLURM):
        # An interactive shell in a job of many tasks is a step with one task, but SLURM_NTASKS counts the job's tasks.
        return int(environment.get("SLURM_STEP_NUM_TASKS", environment["SLURM_NTASKS"])) > 1
    if "OMPI_MCA_orte_hnp_uri" in environment:
        return int(environment["OMPI_COMM_WORLD_SIZE"]) > 1
    if "TPU_WORKER_HOSTNAMES" in environment or "TPU_PROCESS_ADDRESSES" in environment:
        return "," in environment.get("TPU_PROCESS_ADDRESSES", environment.get("TPU_WORKER_HOSTNAMES", ""))
    if "KUBERNETES_SERVICE_HOST" in environment and "JOB_COMPLETION_INDEX" in environment:
        return packages.is_installed("kubernetes")  # which JAX needs; without it the pods may be separate runs
    if not packages.is_installed("libtpu"):
        return False
    from jax._src.clusters import GceTpuCluster  # the machines of a Cloud TPU slice, perhaps only one

    return GceTpuCluster.is_env_present()


def is_first() -> bool:
    """Tells whether this is the first process, which writes and prints for all."""
    return _jax.global_state.process_id == 0  # jax.process_index() would start the devices


def _checked(pairs: Sequence[tuple[str, str | None]]) -> tuple[str, int, int]:
    flags: dict[str, str] = {}
    for name, value in pairs:
        if name in flags or not value:
            raise UsageError(f"{name} must be given once, with a value: write {name}=VALUE.")
        flags[name] = value
    missing = [name for name in FLAGS if name not in flags]
    if missing:
        raise UsageError(f"{', '.join(FLAGS)} go together; give {' and '.join(missing)} too.")
    host, count, index = (flags[name] for name in FLAGS)
    if not host.rpartition(":")[0] or not host.rpartition(":")[2].isdecimal():
        raise UsageError(f"--coordinator must be HOST:PORT, such as 10.0.0.1:1234, but it is {host!r}.")
    if not count.isdecimal() or not int(count):
        raise UsageError(f"--num-processes must be a number from 1 on, but it is {count!r}.")
    if not index.isdecimal() or int(index) >= int(count):
        raise UsageError(f"--process-id must be a number from 0 to {int(count) - 1}, but it is {index!r}.")
    return host, int(count), int(index)


def _initialize(**where: object) -> None:
    # JAX's own wait is longer, and would end the process with a C++ stack trace.
    late = threading.Timer(JOINING, _end_late)
    late.daemon = True
    late.start()
    try:
        jax.distributed.initialize(heartbeat_timeout_seconds=HEARTBEAT, initialization_timeout=JOINING + 60, **where)
    except (RuntimeError, ValueError) as error:
        raise UsageError(
            f"This process cannot join the others ({str(error).splitlines()[0]}); see docs/scaling.md."
        ) from error
    finally:
        late.cancel()


def _end_late() -> None:
    print(
        f"error: After {JOINING} s not all processes have joined; start as many as --num-processes says, each with a "
        "number of its own, and check that they reach the first one's port.",
        file=sys.stderr,
        flush=True,
    )
    os._exit(cli.ALONE)


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Turns a mistake in one process into a `SharedError` in all, with the sentence of the first that failed.

    All processes must enter such contexts in the same order. A process that is alone raises its error unchanged.
    """
    if _jax.global_state.num_processes == 1:
        yield
        return
    error_here: Exception | None = None
    try:
        yield
    except UsageError as error:
        error_here = error
    said = exchange(str(error_here) if error_here else "")
    failed = [index for index, message in enumerate(said) if message]
    if failed:
        message = said[failed[0]]
        where = "" if failed[0] == 0 else f"Process {failed[0]} of {len(said)}: "  # the first process is not named
        raise SharedError(where + message) from error_here


def exchange(value: Any) -> list[Any]:
    """Returns the JSON values of all processes, in order; waits for all of them."""
    here = _jax.global_state
    if here.num_processes == 1:
        return [value]
    client, folder = here.client, f"exchange/{next(_rounds)}/"
    client.key_value_set(f"{folder}{here.process_id:06d}", json.dumps(value))
    client.wait_at_barrier(folder + "all", FOREVER)
    return [json.loads(text) for _, text in sorted(client.key_value_dir_get(folder))]


def of_first(value: Any) -> Any:
    """Returns the first process's JSON value; waits for all processes."""
    return exchange(value if is_first() else None)[0]


def check_same(config: Any, files: Any) -> None:
    """Raises a `SharedError` in all processes if one has another config or other files than the first, as JSON.

    It waits for all processes.
    """
    digests = exchange(hashlib.sha256(json.dumps([config, files], sort_keys=True).encode()).hexdigest())
    for index, digest in enumerate(digests):
        if digest != digests[0]:
            raise SharedError(
                f"Process {index} of {len(digests)} has another config or other data than process 0; start all of them "
                "with the same command and the same data."
            )


@contextlib.contextmanager
def ending_alone() -> Iterator[None]:
    """Ends a process that fails alone at once, since the others would wait for it and it for them.

    The others notice its lost connection or missing heartbeat. Errors that all processes raise pass through.
    """
    try:
        yield
    except (SharedError, FloatingPointError, SystemExit):  # all processes see the same loss
        raise
    except BaseException as error:
        if _jax.global_state.num_processes == 1:
            raise
        if isinstance(error, UsageError):
            cli.mistake(str(error))
        elif isinstance(error, jax.errors.JaxRuntimeError):
            line = str(error).strip().splitlines()[0].rstrip(".")
            cli.mistake(f"{line}; perhaps another process has ended: see its output.")
        else:
            traceback.print_exception(error)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(cli.ALONE)
