"""Facts in a result about the device, its driver, the versions, and the sources of our kernels."""

import ast
import functools
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

COMMIT = "COMMIT"  # the environment variable that names the commit if there is no git
PACKAGES = (
    *("jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin", "libtpu", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13"),
    *("flax", "numpy", "torch", "triton", "transformers", "tokamax", "flash-linear-attention"),
)


def call() -> dict[str, Any]:
    """Collects the command, the commit and the versions."""
    git = os.environ.get(COMMIT) or workdir.revision(Path(__file__).parent)
    return {"command": " ".join(["benchmarks.device", *sys.argv[1:]]), "git": git, "versions": versions()}


def versions() -> dict[str, str]:
    """Collects the versions of installed packages."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def of_jax() -> dict[str, Any]:
    """Describes the device as JAX sees it."""
    import jax

    first = jax.devices()[0]
    device = {"platform": jax.default_backend(), "device": first.device_kind, "devices": jax.device_count()}
    return device | {"driver": driver()} if jax.default_backend() == "gpu" else device


def of_torch() -> dict[str, Any]:
    """Sets PyTorch up like JAX, with TF32 for float32, and describes its device; '' if PyTorch is missing."""
    try:
        import torch
    except ImportError:
        return {"device": "", "platform": ""}
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch._dynamo.config.fail_on_recompile_limit_hit = True  # otherwise it continues without compiling
    on_gpu = torch.cuda.is_available()
    return {"platform": "gpu" if on_gpu else "cpu", "device": torch.cuda.get_device_name() if on_gpu else "cpu"}


DEVICES: dict[str, Callable[[], dict[str, Any]]] = {"jax": of_jax, "torch": of_torch}


def answers(stack: str) -> bool:
    """Tells whether the device still computes; after an illegal address, every later call of the process fails."""
    try:
        if stack == "jax":
            import jax

            return float(jax.block_until_ready(jax.numpy.ones(2).sum())) == 2
        import torch

        return float(torch.ones(2, device="cuda" if torch.cuda.is_available() else "cpu").sum()) == 2
    except ImportError:
        return True
    except Exception:  # whatever it is, nothing more can be measured
        return False


def driver() -> str:
    """Reads the version of NVIDIA's driver; '' if it is unknown."""
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()[0].strip()
    except (OSError, subprocess.CalledProcessError, IndexError):
        return ""


# Modules that begin an implementation, to which all their imports belong except those left out.
ROOTS = {
    "xla": ("kernels.xla",),
    "chunked": ("kernels.loops",),
    "cudnn": ("kernels.cudnn",),
    "pallas": ("kernels.mlp", "kernels.fused"),
    "recurrence": ("recurrences.state", "recurrences.gated", "recurrences.selective", "recurrences.retention"),
}
COMPUTE_NOTHING = (
    "attention",
    "attention.errors",
    "attention.kernels.choose",
    "attention.operations",
    "attention.score",
)
FOR_TPUS = ("attention.kernels.mlp.tpu", "attention.kernels.fused.tpu")  # and what only they import
LEFT_OUT = COMPUTE_NOTHING + FOR_TPUS
# Digests of earlier sources of which a GPU runs the same, by `python -m benchmarks.compilers.traced` at both commits.
SAME = {"0f8c3a2ba11f": "4c1e61ee75d1"}  # what TPUs run has changed, and how the programs of GPUs are made


@functools.cache
def digest(implementation: str) -> str:
    """Computes a digest of an implementation's sources; for `auto`, of all mechanisms and kernels."""
    folder = measure.ROOT / "attention"
    names = sources(implementation) if implementation in ROOTS else folder.rglob("*.py")
    sha = hashlib.sha256()
    for path in sorted(names):
        sha.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return sha.hexdigest()[:12]


def made_by(implementation: str) -> dict[str, str]:
    """Identifies the sources that made a row."""
    return {"made_by": implementation, "digest": digest(implementation)}


def sources(implementation: str) -> set[Path]:
    """Finds an implementation's files, including what they import from `attention`."""
    left, seen = [f"attention.{name}" for name in ROOTS[implementation]], set()
    while left:
        path = measure.ROOT / left.pop().replace(".", "/")
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if path.is_file() and path not in seen:
            seen.add(path)
            left += [name for name in imported(path) if name.startswith("attention.") and name not in LEFT_OUT]
    return seen


def imported(path: Path) -> set[str]:
    """Lists the names that a file imports, which may be modules or members of modules."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names
