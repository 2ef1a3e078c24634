"""The ViT of the speed comparison in PyTorch: pre-norm blocks, exact GELU, the class token classified."""

import torch
from torch import Tensor, nn

from benchmarks.peers.torch_layers import Params, TorchBlock, TorchPositions, linear, norm, tensor
from models.vit import ViT, ViTConfig


class TorchViT(nn.Module):
    """A ViT: patches, class token and positions, blocks, and a linear head on the class token."""

    def __init__(self, params: Params, config: ViTConfig, length: int):
        super().__init__()
        self.patch = config.patch
        self.embed = linear(params["embed"])
        self.class_token = tensor(params["class_token"])
        self.positions = TorchPositions(params, config.positions, length, config.width)
        self.dropout = nn.Dropout(config.embedding_dropout)
        blocks = (params[f"block_{layer}"] for layer in range(config.depth))
        self.blocks = nn.Sequential(*(TorchBlock(block, config) for block in blocks))
        self.norm, self.head = norm(params["norm"], config.norm_epsilon), linear(params["head"])

    def forward(self, images: Tensor) -> Tensor:
        """Computes logits of images (batch, rows, columns, channels)."""
        b, rows, columns, c = images.shape
        x = images.view(b, rows // self.patch, self.patch, columns // self.patch, self.patch, c)
        x = self.embed(x.transpose(2, 3).reshape(b, -1, self.patch**2 * c))
        x = self.dropout(self.positions(torch.cat([self.class_token.expand(b, -1, -1), x], 1)))
        return self.head(self.norm(self.blocks(x)[:, 0]))


def twin(params: Params, model: ViT) -> nn.Module:
    """Makes a model's twin in training mode, from a nested dict of arrays."""
    return TorchViT(params, model.config, model.length).train()
