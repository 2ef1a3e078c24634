"""PyTorch's attention as it runs on a GPU: fused kernels by their backend, and FlexAttention, which it compiles."""

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
    """Makes causal attention of arrays `(B, N, T, H)` by one backend, which raises where it cannot.

    On a CPU, which has one backend of its own, PyTorch chooses.
    """

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        with sdpa_kernel(BACKENDS[backend]) if query.is_cuda else contextlib.nullcontext():
            return scaled_dot_product_attention(query, key, value, is_causal=True)

    return attend


def flex(kind: str, length: int, heads: int, device: str) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Makes causal FlexAttention of arrays `(B, N, T, H)`, compiled, with the scores of a kind of `SCORES`."""
    mask = create_block_mask(lambda b, h, query, key: query >= key, None, None, length, length, device=device)
    slopes = torch.tensor([2.0 ** (-8 * (head + 1) / heads) for head in range(heads)], device=device)
    compiled = torch.compile(flex_attention, dynamic=False)
    return functools.partial(compiled, score_mod=SCORES[kind](slopes), block_mask=mask)


SCORES: dict[str, Callable[[Tensor], Callable | None]] = {
    "dot_product": lambda slopes: None,
    "alibi": lambda slopes: lambda score, b, h, query, key: score + slopes[h] * (key - query),
    "soft_cap": lambda slopes: lambda score, b, h, query, key: CAP * torch.tanh(score / CAP),
}
