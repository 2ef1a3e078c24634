"""A Marian of `transformers`: search as a function of arrays, and a training step."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from transformers import MarianMTModel

from benchmarks.peers.torch_layers import training_step


class TorchMarian(nn.Module):
    """A Marian that returns the logits of targets, from sources and targets side by side in one array."""

    def __init__(self, folder: str, source: int):
        super().__init__()
        self.model = MarianMTModel.from_pretrained(folder)
        self.source = source

    def forward(self, pairs: Tensor) -> Tensor:
        """Computes logits (B, T, vocabulary) from tokens (B, S + T)."""
        source, target = pairs[:, : self.source], pairs[:, self.source :]
        mask = torch.ones_like(source)
        return self.model(source, attention_mask=mask, decoder_input_ids=target, use_cache=False).logits


def make_search(folder: str) -> Callable[[np.ndarray, int, int], np.ndarray]:
    """Makes a function of sources `(B, S)`, beams and a number of tokens that returns targets of that length."""
    model = MarianMTModel.from_pretrained(folder).eval()

    def search(source: np.ndarray, beams: int, tokens: int) -> np.ndarray:
        inputs = torch.from_numpy(source)
        written = model.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            num_beams=beams,
            do_sample=False,
            min_new_tokens=tokens,
            max_new_tokens=tokens,
        )
        return written[:, 1:].numpy()

    return search


def make_step(folder: str, source: int, learning_rate: float) -> Callable[[np.ndarray, np.ndarray], float]:
    """Makes a step of AdamW: a function of sources beside targets, and the next tokens, that returns the loss."""
    return training_step(TorchMarian(folder, source).train(), learning_rate, weight_decay=0.0, compiled=False)
