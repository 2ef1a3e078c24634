"""Every test runs with strict broadcasting, checked shapes and deprecations as errors."""

import atexit
import gc
import importlib.metadata
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable

# `pytest -m gpu` takes the GPU that JAX finds, all else the CPU.
os.environ.setdefault("JAX_PLATFORMS", "" if "gpu" in sys.argv[1:] and "-m" in sys.argv else "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

# JAX_PLATFORMS=cuda runs tests on a GPU: with exact products, memory for the processes that they start, and all
# optimizations of XLA, since kernels are to be tested as users run them.
ON_CPU = os.environ["JAX_PLATFORMS"] == "cpu"
if os.environ["JAX_PLATFORMS"] == "cuda":
    os.environ["JAX_PLATFORMS"] = "cuda,cpu"  # definitions are computed on the CPU
if not ON_CPU:
    os.environ.setdefault("JAX_DEFAULT_MATMUL_PRECISION", "highest")
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

# Compiling is most of what the suite does: the short forms skip XLA's dear optimizations, the long forms have them.
# Without fusion emitters and in one part, small programs compile in a third of the time. XLA aborts at flags that it
# does not know, and has no promise to keep them.
SHORT = os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "true" if ON_CPU else "false") == "true"
if SHORT and importlib.metadata.version("jaxlib").startswith("0.10."):
    CHEAP = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    os.environ["XLA_FLAGS"] = f"{CHEAP} {os.environ.get('XLA_FLAGS', '')}".strip()

# Most tests of whole runs compile the same programs in fresh processes: they share what is compiled.
CACHE = tempfile.mkdtemp(prefix="compiled-") if "JAX_COMPILATION_CACHE_DIR" not in os.environ else ""
if CACHE:
    atexit.register(shutil.rmtree, CACHE, ignore_errors=True)
    os.environ |= {"JAX_COMPILATION_CACHE_DIR": CACHE, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}

# Text is tokenised once for all tests, and never into the user's own cache.
os.environ["ATTENTION_BENCH_CACHE"] = tempfile.mkdtemp(prefix="text-")
atexit.register(shutil.rmtree, os.environ["ATTENTION_BENCH_CACHE"], ignore_errors=True)

import jax
import jaxtyping
import pytest

from tests.browser import browser, page  # noqa: F401  (fixtures)

jax.config.update("jax_numpy_rank_promotion", "raise")
jaxtyping.install_import_hook(["attention", "models"], "beartype.beartype")

ROOT = pathlib.Path(__file__).parent.parent


def pytest_collection_modifyitems(items):
    """Files whose tests share a run, a build or a long wait go to one process, and come first.

    So nothing is made twice, and at the end no process waits long for another.
    """
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)


def pytest_collection_finish():
    """What was imported and collected stays: looking through it for garbage takes a fifteenth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


@pytest.fixture(scope="module", autouse=True)
def compiled_programs_of_one_file():
    """Each keeps memory maps, of which a process may have 65,530: the whole suite compiles more than that takes."""
    yield
    jax.clear_caches()


@pytest.fixture
def x64():
    """Double precision within one test."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def unchecked_shapes():
    """Without jaxtyping's checks, as users run: wrong shapes reach our own errors."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def run_python():
    """Runs Python in a fresh process from the repository's root, on so many fake devices."""

    def run(*arguments: str, devices: int = 1, check: bool = True, **options) -> subprocess.CompletedProcess:
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
        environment = os.environ | {"XLA_FLAGS": flags.strip()} | ({"JAX_PLATFORMS": "cpu"} if devices > 1 else {})
        environment |= options.pop("env", {})
        done = subprocess.run(
            [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, **options
        )
        if check:
            assert done.returncode == 0, done.stdout + done.stderr
        return done

    return run


@pytest.fixture
def refused(capsys):
    """Runs a program's main with arguments that it refuses in one sentence, and returns that."""

    def run(main: Callable[[list[str]], int], arguments: list[str]) -> str:
        assert main(arguments) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: ")
        return line

    return run
