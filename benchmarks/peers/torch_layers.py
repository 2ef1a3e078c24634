"""PyTorch parts that the compared models share: layers from our parameters, a block, and a training step."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from models.layers.positions import sinusoids
from models.transformer import TransformerConfig

Params = Mapping[str, Any]
ACTIVATIONS = {"gelu": functional.gelu, "relu": functional.relu}


def tensor(array: np.ndarray) -> nn.Parameter:
    """Makes a parameter in float32."""
    return nn.Parameter(torch.tensor(np.asarray(array, np.float32)))


def linear(params: Params) -> nn.Linear:
    """Makes a linear layer from a kernel (inputs, outputs) and its bias, if there is one."""
    layer = nn.utils.skip_init(nn.Linear, *params["kernel"].shape, bias="bias" in params)
    layer.weight = tensor(params["kernel"].T)
    if "bias" in params:
        layer.bias = tensor(params["bias"])
    return layer


def norm(params: Params, epsilon: float) -> nn.LayerNorm:
    """Makes a LayerNorm from its scale and bias."""
    layer = nn.LayerNorm(params["scale"].shape, eps=epsilon)
    layer.weight, layer.bias = tensor(params["scale"]), tensor(params["bias"])
    return layer


class TorchBlock(nn.Module):
    """A Transformer block with `scaled_dot_product_attention`, and one product for query, key and value."""

    def __init__(self, params: Params, config: TransformerConfig, causal: bool = False):
        super().__init__()
        attention, mlp, width = params["attention"], params["mlp"], params["norm_mlp"]["scale"].size
        inputs = [attention[name] for name in ("query", "key", "value")]
        joined = {leaf: np.concatenate([layer[leaf] for layer in inputs], axis=-2) for leaf in inputs[0]}
        self.qkv = linear({leaf: array.reshape(*array.shape[:-2], -1) for leaf, array in joined.items()})
        self.out = linear(attention["out"] | {"kernel": attention["out"]["kernel"].reshape(-1, width)})
        self.up, self.down = linear(mlp["up"]), linear(mlp["down"])
        self.norm_attention = norm(params["norm_attention"], config.norm_epsilon)
        self.norm_mlp = norm(params["norm_mlp"], config.norm_epsilon)
        self.heads, self.rate, self.dropout = config.heads, config.attention_dropout, nn.Dropout(config.dropout)
        self.activation, self.pre_norm, self.causal = ACTIVATIONS[config.activation], config.norm == "pre", causal

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """Computes the block's output; x is (batch, tokens, width), rotation the cosines and sines of rotary."""
        if self.pre_norm:
            x = x + self._attention(self.norm_attention(x), rotation)
            return x + self._mlp(self.norm_mlp(x))
        x = self.norm_attention(x + self._attention(x, rotation))
        return self.norm_mlp(x + self._mlp(x))

    def _attention(self, x: Tensor, rotation: tuple[Tensor, Tensor] | None) -> Tensor:
        b, t, d = x.shape
        query, key, value = self.qkv(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if rotation is not None:
            query, key = _rotated(query, *rotation), _rotated(key, *rotation)
        rate = self.rate if self.training else 0.0
        h = functional.scaled_dot_product_attention(query, key, value, dropout_p=rate, is_causal=self.causal)
        return self.dropout(self.out(h.transpose(1, 2).reshape(b, t, d)))

    def _mlp(self, x: Tensor) -> Tensor:
        return self.dropout(self.down(self.dropout(self.activation(self.up(x)))))


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.chunk(2, dim=-1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)


class TorchPositions(nn.Module):
    """The positions added to embeddings: learned, sinusoidal or none."""

    def __init__(self, params: Params, kind: str, length: int, width: int):
        super().__init__()
        self.learned = tensor(params["positions"]["table"]) if kind == "learned" else None
        table = torch.tensor(np.asarray(sinusoids(length, width))) if kind == "sinusoidal" else None
        self.register_buffer("fixed", table, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Adds positions to embeddings (batch, tokens, width)."""
        table = self.fixed if self.learned is None else self.learned
        return x if table is None else x + table


def cross_entropy(model: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Makes a model's mean cross-entropy, a function of inputs and labels."""
    return lambda inputs, labels: functional.cross_entropy(model(inputs).flatten(0, -2), labels.flatten())


def step_of(
    loss: Callable[[Tensor, Tensor], Tensor], model: nn.Module, learning_rate: float, weight_decay: float
) -> Callable[[Tensor, Tensor], Tensor]:
    """Makes a training step with fused AdamW, a function of inputs and labels that does not wait for its loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=weight_decay, fused=True)

    def step(inputs: Tensor, labels: Tensor) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        found = loss(inputs, labels)
        found.backward()
        optimizer.step()
        return found.detach()

    return step


def training_step(
    model: nn.Module, learning_rate: float, weight_decay: float, compiled: bool
) -> Callable[[np.ndarray, np.ndarray], float]:
    """Makes a training step in float32, a function of inputs and labels that returns the mean cross-entropy."""
    loss = cross_entropy(torch.compile(model) if compiled else model)
    step = step_of(loss, model, learning_rate, weight_decay)
    return lambda inputs, labels: step(torch.from_numpy(inputs), torch.as_tensor(labels, dtype=torch.int64)).item()


def step_in_bfloat16(
    model: nn.Module, learning_rate: float, weight_decay: float, compiled: bool
) -> Callable[[Tensor, Tensor], Tensor]:
    """Makes a training step with autocast to bfloat16 and float32 parameters, for inputs and labels on the device.

    The model is compiled with its loss, so that logits need not be written in float32.
    """
    loss = torch.compile(cross_entropy(model), dynamic=False) if compiled else cross_entropy(model)
    device = next(model.parameters()).device.type

    def mixed(inputs: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast(device, torch.bfloat16):
            return loss(inputs, labels)

    return step_of(mixed, model, learning_rate, weight_decay)
