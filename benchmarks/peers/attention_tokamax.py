"""Tokamax's dot-product attention on a GPU or a TPU, by its kernels for Mosaic."""

import sys
import types
from typing import Any

import jax

# Tokamax imports xprof, only for profiles, and xprof needs TensorFlow.
for name in ("xprof", "xprof.cli", "xprof.cli.tools"):
    sys.modules.setdefault(name, types.ModuleType(name))
if not hasattr(sys.modules["xprof.cli.tools"], "get_kernel_stats_tool"):
    sys.modules["xprof.cli.tools"].get_kernel_stats_tool = None

import tokamax  # noqa: E402


def causal(weights: Any, query: jax.Array, key: jax.Array, value: jax.Array, source: Any) -> jax.Array:
    """Computes causal attention; all arrays are `(B, T, N, H)`."""
    implementation = "xla" if jax.default_backend() == "cpu" else "mosaic"
    return tokamax.dot_product_attention(query, key, value, is_causal=True, implementation=implementation)
