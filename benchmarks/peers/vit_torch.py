"""The ViT of the speed comparison in PyTorch: pre-norm blocks, exact GELU, the class token classified."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.peers.torch_layers import Params, TorchBlock, linear, norm, tensor, training_step
from models.vit import ViT, ViTConfig


class TorchViT(nn.Module):
    """A ViT: patches, class token and positions, blocks, and a linear head on the class token."""

    def __init__(self, params: Params, config: ViTConfig):
        super().__init__()
        self.patch = config.patch
        self.embed = linear(params["embed"])
        self.class_token, self.positions = tensor(params["class_token"]), tensor(params["positions"]["table"])
        blocks = (params[f"block_{layer}"] for layer in range(config.depth))
        self.blocks = nn.Sequential(*(TorchBlock(block, config) for block in blocks))
        self.norm, self.head = norm(params["norm"], config.norm_epsilon), linear(params["head"])

    def forward(self, images: Tensor) -> Tensor:
        """Returns logits of images (batch, rows, columns, channels)."""
        b, rows, columns, c = images.shape
        x = images.view(b, rows // self.patch, self.patch, columns // self.patch, self.patch, c)
        x = self.embed(x.transpose(2, 3).reshape(b, -1, self.patch**2 * c))
        x = torch.cat([self.class_token.expand(b, -1, -1), x], 1) + self.positions
        return self.head(self.norm(self.blocks(x)[:, 0]))


def make_step(
    params: Params, model: ViT, learning_rate: float, weight_decay: float, compiled: bool = False
) -> Callable[[np.ndarray, np.ndarray], float]:
    """Returns a training step in PyTorch: from images (B, rows, columns, channels) and labels (B,) to the loss.

    The model is the twin of `model` and starts from `params`, a nested dict of arrays.
    """
    return training_step(TorchViT(params, model.config).train(), learning_rate, weight_decay, compiled)
