"""PyTorch's fused dot-product attention on a CPU, as a contestant of `benchmarks.attention`."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

VERSION = torch.__version__.split("+")[0]


def program(query: Any, key: Any, value: Any, weigh: Any, causal: bool, backward: bool) -> Callable[[], Any]:
    """Makes a call of `scaled_dot_product_attention`, or of the gradients of its sum weighted by `weigh`.

    All arrays are `(B, T, N, H)`, and are copied to PyTorch's `(B, N, T, H)`.

    Args:
      weigh: Factors of the output.
      causal: Whether later keys are masked.
      backward: Whether to return the gradients of query, key and value.
    """
    *given, weights = (_tensor(x) for x in (query, key, value, weigh))

    def forward() -> Tensor:
        with torch.no_grad():
            return scaled_dot_product_attention(*given, is_causal=causal)

    def gradients() -> tuple[Tensor, ...]:
        tensors = [x.detach().requires_grad_() for x in given]
        out = scaled_dot_product_attention(*tensors, is_causal=causal)
        return torch.autograd.grad((out.float() * weights.float()).sum(), tensors)

    return gradients if backward else forward


def _tensor(x: jax.Array) -> Tensor:
    dtype = getattr(torch, str(x.dtype))
    return torch.tensor(np.asarray(x, np.float32).swapaxes(1, 2).copy()).to(dtype)
