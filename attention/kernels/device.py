"""What the devices of this process are."""

import re

import jax


def compute_capability() -> tuple[int, ...]:
    """Of the first NVIDIA GPU, such as (9, 0) for Hopper; empty where there is none."""
    if jax.default_backend() != "gpu":
        return ()
    text = str(getattr(jax.devices()[0], "compute_capability", ""))  # AMD's are names, such as gfx90a
    return tuple(map(int, text.split("."))) if re.fullmatch(r"\d+\.\d+", text) else ()
