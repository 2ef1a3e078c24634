"""The chips that programs are compiled for: memory, speed and links, by their makers' published figures."""

import dataclasses

import jax

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
    """A chip by its maker's figures.

    Google's are from docs.cloud.google.com/tpu/docs/v4, v5e, v5p and v6e, read in 2026; a chip sends half of a
    bidirectional figure. NVIDIA's are from the H100 SXM data sheet and the DGX H100 user guide.
    """

    kind: str  # its name in JAX
    memory: int  # bytes
    flops: float  # dense operations a second in bfloat16, at best
    bandwidth: float  # bytes of its memory read or written a second, at best
    links: float  # bytes a second that it sends within its slice or machine, over all its links together
    network: float  # bytes a second that it sends to other slices or machines; 0 if not published


CHIPS = {
    "v4": Chip("TPU v4", 32 * GIB, 275e12, 1.2e12, 300e9, 0),
    "v5e": Chip("TPU v5 lite", 16 * GIB, 197e12, 819e9, 200e9, 3.125e9),
    "v5p": Chip("TPU v5", 95 * GIB, 459e12, 2.765e12, 600e9, 6.25e9),
    "v6e": Chip("TPU v6 lite", 32 * GIB, 918e12, 1.638e12, 400e9, 12.5e9),
    "h100": Chip("NVIDIA H100 80GB HBM3", 80 * 10**9, 989e12, 3.35e12, 450e9, 50e9),
}
TPUS = tuple(name for name in CHIPS if name != "h100")


def of(device: jax.Device) -> Chip | None:
    """Finds the chip of a device; None if it is not in the table."""
    return next((chip for chip in CHIPS.values() if chip.kind == device.device_kind), None)


# What XLA and ptxas need to know of a GPU, from the H100 SXM's data sheet and the limits of compute capability 9.0 in
# NVIDIA's CUDA programming guide. The versions are those of the packages that compile; nothing of this machine is read.
TOOLKITS = {"12": "12.9.0", "13": "13.0.0"}  # as in requirements-cuda12.txt and requirements-cuda13.txt
H100 = """
gpu_device_info {
  name: "NVIDIA H100 80GB HBM3"
  device_vendor: "NVIDIA Corporation"
  cuda_compute_capability { major: 9 minor: 0 feature_extension: ACCELERATED_FEATURES }
  core_count: 132
  fpus_per_core: 128
  clock_rate_ghz: 1.98
  device_memory_size: 80000000000
  memory_bandwidth: 3350000000000
  l2_cache_size: 52428800
  shared_memory_per_core: 233472
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: 232448
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  threads_per_core_limit: 2048
  threads_per_block_limit: 1024
  threads_per_warp: 32
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  device_address_bits: 64
  driver_version: "{toolkit}"
  runtime_version: "{toolkit}"
  compile_time_toolkit_version: "{toolkit}"
  dnn_version: "9.10.0"
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
