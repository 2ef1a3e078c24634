"""Many processes as one program: how they find one another, agree, and fail together.

What is agreed here goes over JAX's coordination service, a small store of keys and values in the first process. No
device takes part, so a process may still fail before it has one, and the others hear why.
"""

import contextlib
import importlib.util
import itertools
import os
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence

import jax
from jax._src import distributed as _jax  # the store has no public name; Orbax takes it from here too

from attention.errors import UsageError
from train import cli

FLAGS = ("--coordinator", "--num-processes", "--process-id")
HEARTBEAT = 30  # seconds of silence after which a process counts as dead, and the others end
JOINING = 300  # seconds until all processes must have come
ALONE = 3  # exit code
FOREVER = 7 * 24 * 3600 * 1000  # milliseconds: a process that dies ends a wait, not the clock
_SLURM = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID")
_rounds = itertools.count()


class SharedError(UsageError):
    """A mistake that all processes raise alike, of which the first one tells."""


def join(arguments: Sequence[str]) -> list[str]:
    """Becomes one of several processes where flags or the scheduler say so; before anything asks JAX for devices.

    Args:
      arguments: Of the command line.

    Returns:
      The arguments without `FLAGS`.

    Raises:
      UsageError: flags that do not fit together, or not all processes came.
    """
    flags, rest = _taken(arguments)
    if flags:
        host, count, index = _checked(flags)
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
    """Whether a scheduler has started this process as one of several, which JAX then finds by itself."""
    if all(name in environment for name in _SLURM):
        # An interactive shell in a job of many tasks is a step of one task, of which SLURM_NTASKS knows nothing.
        return int(environment.get("SLURM_STEP_NUM_TASKS", environment["SLURM_NTASKS"])) > 1
    if "OMPI_MCA_orte_hnp_uri" in environment:
        return int(environment["OMPI_COMM_WORLD_SIZE"]) > 1
    if "TPU_WORKER_HOSTNAMES" in environment or "TPU_PROCESS_ADDRESSES" in environment:
        return "," in environment.get("TPU_PROCESS_ADDRESSES", environment.get("TPU_WORKER_HOSTNAMES", ""))
    if "KUBERNETES_SERVICE_HOST" in environment and "JOB_COMPLETION_INDEX" in environment:
        return _installed("kubernetes")  # without it JAX cannot ask, and the pods of a job may be runs of their own
    return _on_cloud_tpu()


def _on_cloud_tpu() -> bool:
    """Whether this is a machine of a Cloud TPU slice; one machine alone may be joined too."""
    if not _installed("libtpu"):
        return False
    from jax._src.clusters import GceTpuCluster

    return GceTpuCluster.is_env_present()


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def is_first() -> bool:
    """Whether this process writes and speaks for all."""
    return _jax.global_state.process_id == 0  # jax.process_index() would start the devices


def _taken(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    flags: dict[str, str] = {}
    rest, left = [], list(arguments)
    while left:
        argument = left.pop(0)
        name, equals, value = argument.partition("=")
        if name not in FLAGS:
            rest.append(argument)
            continue
        if not equals and left and not left[0].startswith("--"):
            value = left.pop(0)
        if name in flags or not value:
            raise UsageError(f"{name} must be given once, with a value: write {name}=VALUE.")
        flags[name] = value
    return flags, rest


def _checked(flags: dict[str, str]) -> tuple[str, int, int]:
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
    # JAX would end the process with a stack of C++ functions if its own, longer wait were over.
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
        f"error: After {JOINING} s not all processes have come; start as many as are announced, each with a number of "
        "its own, and check that they reach the first one's port.",
        file=sys.stderr,
        flush=True,
    )
    os._exit(ALONE)


@contextlib.contextmanager
def together() -> Iterator[None]:
    """What fails in here in one process fails in all, with the error of the first that failed.

    All processes must come by here in the same order. One process alone raises its own error.

    Raises:
      SharedError: in all processes alike.
    """
    if _jax.global_state.num_processes == 1:
        yield
        return
    own: Exception | None = None
    try:
        yield
    except UsageError as error:
        own = error
    said = exchange(str(own) if own else "")
    failed = [index for index, message in enumerate(said) if message]
    if failed:
        message = said[failed[0]]
        where = "" if failed[0] == 0 else f"Process {failed[0]} of {len(said)}: "  # unmarked, it is the first's own
        raise SharedError(where + message) from own


def exchange(text: str) -> list[str]:
    """What every process says, in their order; waits for all of them."""
    here = _jax.global_state
    if here.num_processes == 1:
        return [text]
    client, folder = here.client, f"exchange/{next(_rounds)}/"
    client.key_value_set(f"{folder}{here.process_id:06d}", "=" + text)  # a value may not be empty
    client.wait_at_barrier(folder + "all", FOREVER)
    return [value[1:] for _, value in sorted(client.key_value_dir_get(folder))]


def of_first(text: str) -> str:
    """What the first process says; waits for all of them."""
    return exchange(text if is_first() else "")[0]


@contextlib.contextmanager
def ending_alone() -> Iterator[None]:
    """An error in one process of several ends it at once: it must not wait for the others, who wait for it.

    They find its connection gone or its heartbeat missing. Errors that all processes raise alike pass through.
    """
    try:
        yield
    except (SharedError, FloatingPointError, SystemExit):  # every process sees the same loss
        raise
    except BaseException as error:
        if _jax.global_state.num_processes == 1:
            raise
        _leave(error)


def _leave(error: BaseException) -> None:
    if isinstance(error, UsageError):
        cli.mistake(str(error))
    elif isinstance(error, jax.errors.JaxRuntimeError):
        line = str(error).strip().splitlines()[0].rstrip(".")
        cli.mistake(f"{line}; perhaps another process has ended: see what it says.")
    else:
        traceback.print_exception(error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(ALONE)
