"""What a result says of the device, its driver, the versions, and where our kernels come from."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks import measure
from train.run import workdir

COMMIT = "COMMIT"  # the variable that names the commit where git is not there
PACKAGES = (
    *("jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin", "libtpu", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13"),
    *("flax", "numpy", "torch", "triton", "transformers", "tokamax", "flash-linear-attention"),
)


def call() -> dict[str, Any]:
    """Returns the command, the commit and the versions."""
    git = os.environ.get(COMMIT) or workdir.revision(Path(__file__).parent)
    return {"command": " ".join(["benchmarks.device", *sys.argv[1:]]), "git": git, "versions": versions()}


def versions() -> dict[str, str]:
    """Returns the versions of the packages that are installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def of_jax() -> dict[str, Any]:
    """Returns the device as JAX sees it."""
    import jax

    first = jax.devices()[0]
    device = {"platform": jax.default_backend(), "device": first.device_kind, "devices": jax.device_count()}
    return device | {"driver": driver()} if jax.default_backend() == "gpu" else device


def of_torch() -> dict[str, Any]:
    """Returns the device as PyTorch sees it, or that PyTorch is not there."""
    try:
        import torch
    except ImportError:
        return {"device": "", "platform": ""}
    on_gpu = torch.cuda.is_available()
    return {"platform": "gpu" if on_gpu else "cpu", "device": torch.cuda.get_device_name() if on_gpu else "cpu"}


DEVICES: dict[str, Callable[[], dict[str, Any]]] = {"jax": of_jax, "torch": of_torch}


def driver() -> str:
    """Returns the version of NVIDIA's driver; '' where it does not say."""
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()[0].strip()
    except (OSError, subprocess.CalledProcessError, IndexError):
        return ""


# The files, below attention/, that make what an implementation runs; `SHARED` belongs to all of them.
SHARED = ("kernels/call.py", "kernels/choose.py", "mask.py", "normaliser.py", "scores/*.py")
SOURCES = {
    "xla": ("kernels/xla.py", "kernels/pairs.py"),
    "chunked": ("kernels/chunked.py", "kernels/block.py", "kernels/tiles.py", "kernels/pairs.py", "kernels/plan.py"),
    "cudnn": ("kernels/cudnn.py",),
    "pallas": ("kernels/pair_*.py", "kernels/gpu/*.py", "kernels/tpu/*.py"),
    "recurrence": ("recurrences/*.py",),
}


def digest(implementation: str) -> str:
    """Returns a digest of the sources of an implementation."""
    sha = hashlib.sha256()
    for pattern in (*SHARED, *SOURCES[implementation]):
        for path in sorted((measure.ROOT / "attention").glob(pattern)):
            sha.update(path.name.encode() + path.read_bytes())
    return sha.hexdigest()[:12]
