"""A Llama of `transformers`: its greedy decoding as a function of arrays, and its training step."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import CompileConfig, LlamaForCausalLM

from benchmarks.peers.torch_layers import training_step


class TorchLlama(nn.Module):
    """A Llama that returns the logits alone."""

    def __init__(self, folder: str):
        super().__init__()
        self.model = load(folder)

    def forward(self, tokens: Tensor) -> Tensor:
        """Returns logits (B, T, vocabulary) from tokens (B, T)."""
        return self.model(tokens, use_cache=False).logits


def load(folder: str) -> LlamaForCausalLM:
    """Returns a model with PyTorch's fused attention, in float32."""
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")


def make_decoding(folder: str, compiled: bool) -> Callable[[np.ndarray, int], np.ndarray]:
    """Returns a function from prompts `(B, T)` and a number of tokens to that many new ones `(B, tokens)`.

    If it is compiled, the cache has slots of a fixed number, as `transformers` requires; else it grows.
    """
    model, options = load(folder).eval(), _compiled() if compiled else {}

    def decode(prompts: np.ndarray, tokens: int) -> np.ndarray:
        inputs = torch.from_numpy(prompts)
        limits = {"min_new_tokens": tokens, "max_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}
        written = model.generate(inputs, attention_mask=torch.ones_like(inputs), **limits, **options)
        return written[:, prompts.shape[1] :].numpy()

    return decode


def _compiled() -> dict[str, Any]:
    compile_config = CompileConfig(mode="default")
    compile_config._compile_all_devices = True  # else only GPUs compile
    return {"cache_implementation": "static", "compile_config": compile_config}


def make_step(folder: str, learning_rate: float, compiled: bool) -> Callable[[np.ndarray, np.ndarray], float]:
    """Returns a step of AdamW: a function from tokens and the next tokens, both (B, T), to the loss."""
    return training_step(TorchLlama(folder).train(), learning_rate, weight_decay=0.0, compiled=compiled)
