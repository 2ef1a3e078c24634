"""What a result says of the device, its driver, the versions, and where our kernels come from."""

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

COMMIT = "COMMIT"  # the variable that names the commit where git is not there
PACKAGES = (
    *("jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin", "libtpu", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13"),
    *("flax", "numpy", "torch", "triton", "transformers", "tokamax", "flash-linear-attention"),
)


def call() -> dict[str, Any]:
    """Collects the command, the commit and the versions."""
    git = os.environ.get(COMMIT) or workdir.revision(Path(__file__).parent)
    return {"command": " ".join(["benchmarks.device", *sys.argv[1:]]), "git": git, "versions": versions()}


def versions() -> dict[str, str]:
    """Collects the versions of the packages that are installed."""
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
    """Sets PyTorch up like JAX, with TF32 for float32, and gives its device; '' where PyTorch is missing."""
    try:
        import torch
    except ImportError:
        return {"device": "", "platform": ""}
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch._dynamo.config.fail_on_recompile_limit_hit = True  # else it goes on without compiling
    on_gpu = torch.cuda.is_available()
    return {"platform": "gpu" if on_gpu else "cpu", "device": torch.cuda.get_device_name() if on_gpu else "cpu"}


DEVICES: dict[str, Callable[[], dict[str, Any]]] = {"jax": of_jax, "torch": of_torch}


def answers(stack: str) -> bool:
    """Tells whether a device still computes: after an illegal address it fails in every later call of the process."""
    try:
        if stack == "jax":
            import jax

            return float(jax.block_until_ready(jax.numpy.ones(2).sum())) == 2
        import torch

        return float(torch.ones(2, device="cuda" if torch.cuda.is_available() else "cpu").sum()) == 2
    except ImportError:
        return True
    except Exception:  # whatever it is, nothing can be measured any more
        return False


def driver() -> str:
    """Asks for the version of NVIDIA's driver; '' where it does not say."""
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()[0].strip()
    except (OSError, subprocess.CalledProcessError, IndexError):
        return ""


# Where what an implementation runs begins; what these import counts too, but for `SHARED`, which runs nothing itself.
ROOTS = {
    "xla": ("kernels.xla",),
    "chunked": ("kernels.loops",),
    "cudnn": ("kernels.cudnn",),
    "pallas": ("kernels.mlp", "kernels.fused", "kernels.splash"),
    "recurrence": ("recurrences.state", "recurrences.gated", "recurrences.selective", "recurrences.retention"),
}
SHARED = ("attention", "attention.errors", "attention.kernels.choose", "attention.operations", "attention.score")


@functools.cache
def digest(implementation: str) -> str:
    """Computes a digest of the sources of an implementation; of all mechanisms and kernels for `auto`."""
    folder = measure.ROOT / "attention"
    names = sources(implementation) if implementation in ROOTS else folder.rglob("*.py")
    sha = hashlib.sha256()
    for path in sorted(names):
        sha.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return sha.hexdigest()[:12]


def made_by(implementation: str) -> dict[str, str]:
    """Describes the sources of ours that made a row."""
    return {"made_by": implementation, "digest": digest(implementation)}


def sources(implementation: str) -> set[Path]:
    """Finds the files that an implementation consists of: its own, and what they import of `attention`."""
    left, seen = [f"attention.{name}" for name in ROOTS[implementation]], set()
    while left:
        path = measure.ROOT / left.pop().replace(".", "/")
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if path.is_file() and path not in seen:
            seen.add(path)
            left += [name for name in imported(path) if name.startswith("attention.") and name not in SHARED]
    return seen


def imported(path: Path) -> set[str]:
    """Lists the names of what a file imports, which may be modules or what is in them."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names
