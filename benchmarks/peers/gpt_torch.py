"""The GPT of the speed comparison in PyTorch, with dot-product attention."""

import jax.numpy as jnp
import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.peers.torch_layers import Params, TorchBlock, TorchPositions, linear, norm, tensor
from models.gpt import GPT, GPTConfig


class TorchGPT(nn.Module):
    """`models.gpt.GPT` in PyTorch, from the same parameters."""

    def __init__(self, params: Params, config: GPTConfig, length: int):
        super().__init__()
        self.tokens = nn.Embedding.from_pretrained(tensor(params["embed"]["embedding"]), freeze=False)
        self.scale = config.width**0.5 if config.scale_embeddings else 1.0
        self.positions = TorchPositions(params, config.positions, length, config.width)
        for name, table in zip(("cos", "sin"), _rotation(config, length), strict=True):
            self.register_buffer(name, table, persistent=False)
        self.dropout = nn.Dropout(config.embedding_dropout)
        blocks = (params[f"block_{layer}"] for layer in range(config.depth))
        self.blocks = nn.ModuleList(TorchBlock(block, config, causal=True) for block in blocks)
        self.norm = norm(params["norm"], config.norm_epsilon)
        self.head = None if config.tied_output else linear(params["head"])

    def forward(self, tokens: Tensor) -> Tensor:
        """Computes the next token's logits (batch, tokens, vocabulary)."""
        x = self.dropout(self.positions(self.tokens(tokens) * self.scale))
        rotation = None if self.cos is None else (self.cos, self.sin)
        for block in self.blocks:
            x = block(x, rotation)
        x = self.norm(x)
        return nn.functional.linear(x, self.tokens.weight) if self.head is None else self.head(x)


def _rotation(config: GPTConfig, length: int) -> tuple[Tensor | None, Tensor | None]:
    """Computes the cosines and sines that rotate queries and keys, by rotating 1."""
    if not config.rotaries[0]:
        return None, None
    half = config.width // config.heads // 2
    ones = np.concatenate([np.ones((length, 1, half)), np.zeros((length, 1, half))], axis=-1)
    turned = np.asarray(config.rotaries[0].turn(jnp.asarray(ones, jnp.float32), 0))[:, 0]
    return torch.from_numpy(turned[:, :half].copy()), torch.from_numpy(turned[:, half:].copy())


def twin(params: Params, model: GPT) -> nn.Module:
    """Makes a model's twin in training mode, from a nested dict of arrays."""
    return TorchGPT(params, model.config, model.length).train()
