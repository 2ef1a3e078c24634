"""Layers of which models are made."""

from models.layers.multi_head import MultiHeadAttention

__all__ = ["MultiHeadAttention"]
