"""Attention mechanisms as pure functions of arrays, in the layout of `jax.nn.dot_product_attention`."""

from attention.align import align_values
from attention.dot import dot_product_attention
from attention.errors import UnsupportedError, UsageError
from attention.mask import Mask

__all__ = ["Mask", "UnsupportedError", "UsageError", "align_values", "dot_product_attention"]
