"""PyTorch's attention on a GPU: fused kernels by backend, and FlexAttention, which PyTorch compiles."""

import contextlib
import functools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
CAP = 50.0  # as in Gemma 2


def fused(backend: str) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Makes causal attention of arrays `(B, N, T, H)` by a backend, which raises an error if it cannot.

    On a CPU, which has its own backend, PyTorch chooses.
    """

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        with sdpa_kernel(BACKENDS[backend]) if query.is_cuda else contextlib.nullcontext():
            return scaled_dot_product_attention(query, key, value, is_causal=True)

    return attend


def flex(kind: str, length: int, heads: int, device: str) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Makes compiled causal FlexAttention of arrays `(B, N, T, H)`, with one of `SCORES`."""
    mask = create_block_mask(lambda b, h, query, key: query >= key, None, None, length, length, device=device)
    slopes = torch.tensor([2.0 ** (-8 * (head + 1) / heads) for head in range(heads)], device=device)
    compiled = torch.compile(flex_attention, dynamic=False)
    return functools.partial(compiled, score_mod=SCORES[kind](slopes), block_mask=mask)


SCORES: dict[str, Callable[[Tensor], Callable | None]] = {
    "dot_product": lambda slopes: None,
    "alibi": lambda slopes: lambda score, b, h, query, key: score + slopes[h] * (key - query),
    "soft_cap": lambda slopes: lambda score, b, h, query, key: CAP * torch.tanh(score / CAP),
}
