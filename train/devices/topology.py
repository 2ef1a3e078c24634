"""Described TPUs: XLA's and Mosaic's real compilers compile for them on any machine, and nothing runs."""

import collections
import importlib.util
import os
import re
from collections.abc import Iterator
from typing import Any

import jax

from attention.errors import UsageError
from train.devices.memory import scaled

# Bytes of memory of a chip, from Google Cloud's pages on each generation.
MEMORY = {"v4": 32 * 2**30, "v5e": 16 * 2**30, "v5p": 95 * 2**30, "v6e": 32 * 2**30}
EXAMPLES = "v5e:2x2, v5e:16x16, v6e:4x4, v4:2x2x1 or v5p:2x2x1"
QUIET = {  # what libtpu reads: no metadata server, and no lock against a second process
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "true",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_STDERR_LOG_LEVEL": "3",
}
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8}


def devices(name: str) -> list[jax.Device]:
    """Returns the devices of a topology such as `v5e:4x4`.

    Raises:
      UsageError: there is no such topology, or the package of the compiler is missing.
    """
    from jax.experimental import topologies

    generation, _, shape = name.partition(":")
    if generation not in MEMORY or not re.fullmatch(r"\d+(x\d+){1,2}", shape):
        raise UsageError(f"There is no topology {name!r}; give a generation of {', '.join(MEMORY)}: {EXAMPLES}.")
    os.environ.update({key: value for key, value in QUIET.items() if key not in os.environ})
    jax.config.update("jax_platforms", "cpu")
    try:
        return list(topologies.get_topology_desc(platform="tpu", topology_name=name).devices)
    except Exception as error:  # XLA raises RuntimeError and its own kinds, and without libtpu NotFoundError
        if importlib.util.find_spec("libtpu") is None:
            raise UsageError(
                f"Compiling for {name} needs the TPU compiler: pip install -r requirements-tpu.txt."
            ) from error
        raise UsageError(f"There is no topology {name!r}: {str(error).splitlines()[0]}; try {EXAMPLES}.") from error


def capacity(device: jax.Device) -> int:
    """Returns the bytes of memory of a described chip; 0 if they are not known."""
    kinds = {"TPU v4": "v4", "TPU v5 lite": "v5e", "TPU v5": "v5p", "TPU v6 lite": "v6e"}
    return MEMORY.get(kinds.get(device.device_kind, ""), 0)


def collectives(compiled: Any) -> Iterator[str]:
    """Yields a line for each kind of collective in a program: how often, and the bytes of their results a device."""
    counts, sizes = collections.Counter[str](), collections.Counter[str]()
    pattern = rf"= (.+?) ({'|'.join(COLLECTIVES)})(-start)?\("  # a start gives its operand too
    for shapes, kind, started in re.findall(pattern, compiled.as_text()):
        counts[kind] += 1
        results = re.findall(r"(\w+)\[([\d,]*)\]", shapes)
        sizes[kind] += sum(_bytes(*result) for result in (results[-1:] if started else results))
    if counts:
        listed = ", ".join(f"{kind} {counts[kind]} times ({scaled(sizes[kind], 'B')})" for kind in counts)
        yield f"Collectives in the program (a loop's body counts once): {listed}"


def _bytes(dtype: str, shape: str) -> int:
    size = BYTES.get(dtype, 0)
    for axis in filter(None, shape.split(",")):
        size *= int(axis)
    return size
