"""The ViT of the speed comparison in PyTorch: pre-norm blocks, exact GELU, the class token classified."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.peers.torch_layers import Params, TorchBlock, linear, norm, tensor, training_step


class TorchViT(nn.Module):
    """A ViT: patches, class token and positions, `depth` blocks, and a linear head on the class token."""

    def __init__(self, params: Params, depth: int, heads: int, patch: int, dropout: float):
        super().__init__()
        self.patch = patch
        self.embed = linear(params["embed"]["kernel"], params["embed"]["bias"])
        self.class_token, self.positions = tensor(params["class_token"]), tensor(params["positions"])
        self.blocks = nn.Sequential(*(TorchBlock(params[f"block_{i}"], heads, dropout, dropout) for i in range(depth)))
        self.norm, self.head = norm(params["norm"]), linear(params["head"]["kernel"], params["head"]["bias"])

    def forward(self, images: Tensor) -> Tensor:
        """Returns logits of images (batch, rows, columns, channels)."""
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
    compiled: bool = False,
) -> Callable[[np.ndarray, np.ndarray], float]:
    """Returns a training step in PyTorch: from images (B, rows, columns, channels) and labels (B,) to the loss.

    The model starts from `params`, a nested dict of arrays; `width`, `mlp` and `classes` are read off their shapes.
    """
    del width, mlp, classes
    model = TorchViT(params, depth, heads, patch, dropout).train()
    return training_step(model, learning_rate, weight_decay, compiled)
