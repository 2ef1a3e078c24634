"""The work directory of a run, which belongs to one config."""

import contextlib
import fcntl
import json
import os
import re
import resource
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import IO, Any

import jax

from attention.errors import UsageError
from models.files import open_regular, read_json, read_text
from train import loading
from train.cli.files import is_occupied, write_json, write_text, writing
from train.config.schema import Config
from train.loading.leaves import CHANGEABLE, completed, flatten
from train.mesh import processes

LOCK = ".lock"
SHARED_WITHIN = 30.0  # seconds that a network file system may take to show one machine what another has written
PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")


@contextlib.contextmanager
def claimed(workdir: Path, config: dict[str, Any], files: dict[str, str]) -> Iterator[None]:
    """Holds the folder for this run; a second process that trains in it is refused.

    Creates the folder with `config.json`, or checks that an existing folder belongs to the same run; see `keep`. The
    texts of `files`, such as `data.json`, must be the same at every start of the run.
    """
    with contextlib.ExitStack() as held:
        with processes.together():
            token = processes.of_first(secrets.token_hex(8))
            if processes.is_first():
                with writing(f"The work directory {workdir}"):
                    _create_or_check(workdir, config, files)
                    _lock(held.enter_context(open_regular(workdir / LOCK, "ab", buffering=0)), workdir, token)
                    for name, text in files.items():
                        if not (workdir / name).exists():  # else `check_files` has compared it
                            write_text(workdir / name, text)
        with processes.together():
            _check_shared(workdir, token)
        yield


def _create_or_check(workdir: Path, config: dict[str, Any], files: dict[str, str]) -> None:
    path = workdir / "config.json"
    if path.exists():
        _refuse_another(read_config(workdir), config, workdir)
        check_files(files, workdir)
    elif workdir.is_dir() and is_occupied(workdir):
        raise UsageError(f"{workdir} is not empty and holds no config.json; choose another --workdir.")
    else:
        workdir.mkdir(parents=True, exist_ok=True)
        write_json(path, config)  # first, so that the folder is a run's even if the process is then killed
    (workdir / "checkpoints").mkdir(exist_ok=True)


def _lock(file: IO, workdir: Path, token: str) -> None:
    """Locks a file until it is closed, and writes the token to it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UsageError(
            f"Another process is training in {workdir}; wait for it or choose another --workdir."
        ) from error
    file.truncate(0)
    file.write(token.encode())


def keep(workdir: Path, config: dict[str, Any], finished: bool) -> None:
    """Writes the config if it has changed, and removes the result of a run that is not `finished` but continues."""
    if processes.is_first():
        with writing(f"The work directory {workdir}"):
            if read_config(workdir) != config:
                write_json(workdir / "config.json", config)
            if not finished:
                (workdir / "result.json").unlink(missing_ok=True)


def _check_shared(workdir: Path, token: str) -> None:
    """Raises UsageError if the token that the first process has written does not appear here in time."""
    deadline = time.monotonic() + SHARED_WITHIN
    while not (workdir / LOCK).exists() or read_text(workdir / LOCK) != token:
        if time.monotonic() > deadline:
            raise UsageError(
                f"{workdir} is not the folder that process 0 writes to; choose a --workdir on storage that all "
                "machines share."
            )
        time.sleep(0.2)


def read_config(workdir: Path) -> dict[str, Any]:
    """Reads the resolved config of a run; see `train.loading.leaves.completed`."""
    path = workdir / "config.json"
    if not os.path.isfile(path):  # Path.is_file() raises where a name is too long
        raise UsageError(f"{workdir} is not a work directory: it has no config.json; give the --workdir of a run.")
    return completed(read_json(path))


def load_config(workdir: Path) -> Config:
    """Reads and validates a run's config; files of mechanisms must equal those that the run keeps."""
    config = loading.validate(read_config(workdir))
    check_files(config.model.code(), workdir)
    return config


def read_result(workdir: Path, replica: int = 0) -> dict[str, Any]:
    """Reads the result of one replica of a finished run."""
    return read_results(workdir)[replica]


def read_results(workdir: Path) -> list[dict[str, Any]]:
    """Reads the result of each replica of a finished run."""
    path = workdir / "result.json"
    if not path.is_file():
        raise UsageError(
            f"{workdir} has no result.json: the run has not finished; continue it with train.main, or give --step=last."
        )
    result = read_json(path)
    replicas = result.pop("replicas", [{}])
    if isinstance(replicas, list) and replicas and all(isinstance(replica, dict) for replica in replicas):
        results = [result | replica for replica in replicas]
        best = [result.get("best") for result in results]
        if all(isinstance(of, dict) and of and all(isinstance(x, dict) for x in of.values()) for of in best):
            return results
    raise UsageError(
        f"{path} holds no result of a run; give another --workdir, or remove it and run the command again."
    )


def _refuse_another(before: dict[str, Any], now: dict[str, Any], workdir: Path) -> None:
    old, new = flatten(before), flatten(completed(json.loads(json.dumps(now))))
    differ = [f for f in sorted(old | new) if old.get(f) != new.get(f) and f not in CHANGEABLE]
    if differ:
        changes = "; ".join(f"{field} was {old.get(field)!r} and is now {new.get(field)!r}" for field in differ)
        raise UsageError(f"{workdir} holds a run of another config: {changes}. Choose another --workdir.")


def check_files(files: dict[str, str], workdir: Path) -> None:
    """Refuses `files` that differ from the run's files of the same names."""
    for name, text in files.items():
        path = workdir / name
        if path.exists() and read_text(path) != text:
            code = name.endswith(".py")
            now, what = ("your file of that name", "your file") if code else ("what the data give now", "the data")
            raise UsageError(
                f"{path} differs from {now}, so the run would not be the same: restore {what}, or choose another "
                "--workdir."
            )


def read_file(workdir: Path, name: str) -> str:
    """Reads a file that the run keeps with its config."""
    return read_text(workdir / name, "give the --workdir of a run that has it")


def environment() -> dict[str, Any]:
    """Lists versions, the precision of float32 products, devices and the git revision, for `result.json`."""
    return {
        "versions": {package: metadata.version(package) for package in PACKAGES},
        "matmul_precision": jax.config.jax_default_matmul_precision or "default",
        "devices": f"{jax.device_count()} {jax.devices()[0].device_kind}",
        "git": revision(Path(__file__).parent),
    }


def peak_memory() -> dict[str, Any]:
    """Measures the peak memory of this process's fullest device, or of the process if devices do not tell."""
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    peaks = [stat["peak_bytes_in_use"] for stat in stats if "peak_bytes_in_use" in stat]
    if peaks:
        return {"peak_memory_bytes": max(peaks), "peak_memory_of": "device"}
    status = Path("/proc/self/status")
    if status.is_file():  # `ru_maxrss` would include the parent process's memory at the start
        peak = 1024 * int(re.search(r"VmHWM:\s*(\d+)", status.read_text())[1])
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {"peak_memory_bytes": peak, "peak_memory_of": "process"}


def revision(folder: Path) -> str:
    """Names the commit of a folder's checkout, with `-dirty` if files differ from it; `unknown` without a checkout.

    Changes in `docs/` do not count, since studies keep their runs there while they train.
    """
    git = ["git", "-C", str(folder)]
    changes = [*git, "diff", "--quiet", "HEAD", "--", ":/", ":(top,exclude)docs"]
    try:
        described = subprocess.run([*git, "describe", "--always", "--abbrev=12"], capture_output=True, check=True)
        return described.stdout.decode().strip() + "-dirty" * bool(subprocess.run(changes).returncode)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
