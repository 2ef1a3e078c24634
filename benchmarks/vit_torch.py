"""The ViT of the speed comparison in eager PyTorch, with torch.nn.functional.scaled_dot_product_attention.

Pre-norm blocks, exact GELU, one product for query, key and value, dropout on the attention weights and on the outputs
of the attention and of both MLP layers, the class token classified, fused AdamW on every parameter.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

Params = Mapping[str, Any]


def _tensor(array: np.ndarray) -> nn.Parameter:
    return nn.Parameter(torch.tensor(np.asarray(array, np.float32)))


def _linear(kernel: np.ndarray, bias: np.ndarray) -> nn.Linear:
    """A linear layer from a kernel (inputs, outputs) and its bias."""
    layer = nn.utils.skip_init(nn.Linear, *kernel.shape)
    layer.weight, layer.bias = _tensor(kernel.T), _tensor(bias)
    return layer


def _norm(params: Params) -> nn.LayerNorm:
    layer = nn.LayerNorm(params["scale"].shape, eps=1e-6)
    layer.weight, layer.bias = _tensor(params["scale"]), _tensor(params["bias"])
    return layer


class Block(nn.Module):
    """One pre-norm transformer block."""

    def __init__(self, params: Params, heads: int, dropout: float):
        super().__init__()
        attention, mlp, width = params["attention"], params["mlp"], params["norm_mlp"]["scale"].size
        inputs = [attention[name] for name in ("query", "key", "value")]
        kernel = np.concatenate([layer["kernel"].reshape(width, -1) for layer in inputs], axis=1)
        self.qkv = _linear(kernel, np.concatenate([layer["bias"].reshape(-1) for layer in inputs]))
        self.out = _linear(attention["out"]["kernel"].reshape(-1, width), attention["out"]["bias"])
        self.up, self.down = (_linear(mlp[name]["kernel"], mlp[name]["bias"]) for name in ("up", "down"))
        self.norm_attention, self.norm_mlp = _norm(params["norm_attention"]), _norm(params["norm_mlp"])
        self.heads, self.rate, self.dropout = heads, dropout, nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """The block's output; x is (batch, tokens, width)."""
        b, t, d = x.shape
        qkv = self.qkv(self.norm_attention(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        h = functional.scaled_dot_product_attention(*qkv, dropout_p=self.rate if self.training else 0.0)
        x = x + self.dropout(self.out(h.transpose(1, 2).reshape(b, t, d)))
        h = self.dropout(functional.gelu(self.up(self.norm_mlp(x))))
        return x + self.dropout(self.down(h))


class ViT(nn.Module):
    """Patches, class token and positions, `depth` blocks, and a linear head on the class token."""

    def __init__(self, params: Params, depth: int, heads: int, patch: int, dropout: float):
        super().__init__()
        self.patch = patch
        self.embed = _linear(params["embed"]["kernel"], params["embed"]["bias"])
        self.class_token, self.positions = _tensor(params["class_token"]), _tensor(params["positions"])
        self.blocks = nn.Sequential(*(Block(params[f"block_{i}"], heads, dropout) for i in range(depth)))
        self.norm, self.head = _norm(params["norm"]), _linear(params["head"]["kernel"], params["head"]["bias"])

    def forward(self, images: Tensor) -> Tensor:
        """Logits of images (batch, rows, columns, channels)."""
        b, rows, columns, c = images.shape
        x = images.view(b, rows // self.patch, self.patch, columns // self.patch, self.patch, c)
        x = self.embed(x.transpose(2, 3).reshape(b, -1, self.patch**2 * c))
        x = torch.cat([self.class_token.expand(b, -1, -1), x], 1) + self.positions
        return self.head(self.norm(self.blocks(x)[:, 0]))


def make_step(
    params: Params,
    *,
    depth: int,
    width: int,
    heads: int,
    mlp: int,
    patch: int,
    classes: int,
    dropout: float,
    learning_rate: float,
    weight_decay: float,
) -> Callable[[np.ndarray, np.ndarray], float]:
    """One training step in PyTorch: a function from images (B, rows, columns, channels) and labels (B,) to the loss.

    The model starts from `params`, a nested dict of arrays; `width`, `mlp` and `classes` are read off their shapes.
    """
    del width, mlp, classes
    model = ViT(params, depth, heads, patch, dropout).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=weight_decay, fused=True)

    def step(images: np.ndarray, labels: np.ndarray) -> float:
        optimizer.zero_grad(set_to_none=True)
        logits = model(torch.from_numpy(images))
        loss = functional.cross_entropy(logits, torch.as_tensor(labels, dtype=torch.int64))
        loss.backward()
        optimizer.step()
        return loss.item()

    return step
