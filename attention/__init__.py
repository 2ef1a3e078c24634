"""Attention mechanisms as pure functions of arrays, in the layout of `jax.nn.dot_product_attention`."""

from attention.channel import align_values, cbam, channel_attention, spatial_attention, squeeze_excitation
from attention.defining.named import advance, attend, init
from attention.defining.pair import pair, per_head, shared
from attention.errors import UnsupportedError, UsageError, explain_hidden
from attention.mask import Mask
from attention.mesh import leave_out_fusions
from attention.recurrences.linear import delta_attention, linear_attention
from attention.scores.dot import dot_product_attention
from attention.scores.gaussian import gaussian_attention
from attention.scores.location import location_attention
from attention.scores.luong import luong_attention
from attention.scores.pairwise import additive_attention, neural_attention
from attention.scores.positional import factorised_table, positional_attention

__all__ = [
    "Mask",
    "UnsupportedError",
    "UsageError",
    "additive_attention",
    "advance",
    "align_values",
    "attend",
    "cbam",
    "channel_attention",
    "delta_attention",
    "dot_product_attention",
    "factorised_table",
    "gaussian_attention",
    "init",
    "linear_attention",
    "location_attention",
    "luong_attention",
    "neural_attention",
    "pair",
    "per_head",
    "positional_attention",
    "shared",
    "spatial_attention",
    "squeeze_excitation",
]

explain_hidden()
leave_out_fusions()
