"""The layers of the models."""

from models.layers.multi_head import MultiHeadAttention

__all__ = ["MultiHeadAttention"]
