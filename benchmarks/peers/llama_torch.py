"""A Llama of `transformers`: greedy decoding as a function of arrays, and a training step."""

import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import CompileConfig, LlamaForCausalLM

from benchmarks.peers.torch_layers import Params, training_step
from models.gpt import GPT
from models.published import pretrained


class TorchLlama(nn.Module):
    """A Llama that returns the logits alone."""

    def __init__(self, model: LlamaForCausalLM):
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        """Computes logits (B, T, vocabulary) from tokens (B, T)."""
        return self.model(tokens, use_cache=False).logits


def loaded(params: Params, model: GPT, dtype: torch.dtype = torch.float32) -> LlamaForCausalLM:
    """Makes the same model with PyTorch's fused attention, passing the parameters through a folder."""
    with tempfile.TemporaryDirectory() as folder:
        pretrained.export(f"{folder}/llama", model.config, params, length=model.length)
        return LlamaForCausalLM.from_pretrained(f"{folder}/llama", dtype=dtype, attn_implementation="sdpa")


def twin(params: Params, model: GPT) -> nn.Module:
    """Makes a model's twin in training mode."""
    return TorchLlama(loaded(params, model)).train()


def decoding_of(model: LlamaForCausalLM, compiled: bool) -> Callable[[np.ndarray, int], np.ndarray]:
    """Makes a model's greedy decoding on its device: from prompts `(B, T)` to new tokens `(B, tokens)`.

    If it is compiled, the cache has a fixed number of slots, as `transformers` requires; otherwise it grows.
    """
    model, options = model.eval(), _compiled(model.device.type) if compiled else {}

    def decode(prompts: np.ndarray, tokens: int) -> np.ndarray:
        inputs = torch.from_numpy(prompts).to(model.device)
        limits = {"min_new_tokens": tokens, "max_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}
        written = model.generate(inputs, attention_mask=torch.ones_like(inputs), **limits, **options)
        return written[:, prompts.shape[1] :].cpu().numpy()

    return decode


def _compiled(device: str) -> dict[str, Any]:
    how = {"mode": "reduce-overhead", "dynamic": False} if device == "cuda" else {"mode": "default"}
    compile_config = CompileConfig(**how)
    compile_config._compile_all_devices = True  # otherwise only GPUs compile
    return {"cache_implementation": "static", "compile_config": compile_config}


def make_step(
    params: Params, model: GPT, learning_rate: float, compiled: bool
) -> Callable[[np.ndarray, np.ndarray], float]:
    """Makes a step of AdamW: a function of tokens and next tokens, both (B, T), that returns the loss."""
    return training_step(twin(params, model), learning_rate, weight_decay=0.0, compiled=compiled)
