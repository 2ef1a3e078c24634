"""The GPT of the speed comparison in PyTorch, with dot-product attention."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.peers.torch_layers import Params, TorchBlock, linear, norm, tensor, training_step
from models.gpt import GPT, GPTConfig
from models.layers.positions import sinusoids


class TorchGPT(nn.Module):
    """`models.gpt.GPT` in PyTorch, from the same parameters."""

    def __init__(self, params: Params, config: GPTConfig, length: int):
        super().__init__()
        self.tokens = nn.Embedding.from_pretrained(tensor(params["embed"]["embedding"]), freeze=False)
        self.scale = config.width**0.5 if config.scale_embeddings else 1.0
        self.added, self.rotation = self._positions(params, config, length)
        self.dropout = nn.Dropout(config.embedding_dropout)
        blocks = (params[f"block_{layer}"] for layer in range(config.depth))
        self.blocks = nn.ModuleList(TorchBlock(block, config, causal=True) for block in blocks)
        self.norm = norm(params["norm"], config.norm_epsilon)
        self.head = None if config.tied_output else linear(params["head"])

    def forward(self, tokens: Tensor) -> Tensor:
        """Returns logits of the next token (batch, tokens, vocabulary)."""
        x = self.tokens(tokens) * self.scale
        x = self.dropout(x if self.added is None else x + self.added)
        for block in self.blocks:
            x = block(x, self.rotation)
        x = self.norm(x)
        return nn.functional.linear(x, self.tokens.weight) if self.head is None else self.head(x)

    def _positions(self, params: Params, config: GPTConfig, length: int):
        """Returns what is added to embeddings, and the cosines and sines that rotate queries and keys."""
        if config.rotaries[0]:
            half = config.width // config.heads // 2
            ones = np.concatenate([np.ones((length, 1, half)), np.zeros((length, 1, half))], axis=-1)
            turned = np.asarray(config.rotaries[0].turn(jnp.asarray(ones, jnp.float32), 0))[
                :, 0
            ]  # 1 turned by an angle: its cos, sin
            return None, (torch.from_numpy(turned[:, :half].copy()), torch.from_numpy(turned[:, half:].copy()))
        if config.positions == "sinusoidal":
            return torch.tensor(np.asarray(sinusoids(length, config.width))), None
        return (tensor(params["positions"]["table"]) if config.positions == "learned" else None), None


def make_step(
    params: Params, model: GPT, learning_rate: float, weight_decay: float, compiled: bool = False
) -> Callable[[np.ndarray, np.ndarray], float]:
    """Returns a training step in PyTorch: a function from tokens and the next tokens, both (B, T), to the loss.

    The model is the twin of `model` and starts from `params`, a nested dict of arrays.
    """
    return training_step(TorchGPT(params, model.config, model.length).train(), learning_rate, weight_decay, compiled)
