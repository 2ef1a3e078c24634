"""Plain forms of published code, by our names of their mechanisms; gates are given as inputs.

They come from flash-linear-attention (`fla.ops.*.naive`), transformers and PyTorch.
"""

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import numpy as np
import torch
import torch.nn.functional as F
from fla.ops.delta_rule.naive import delta_rule_recurrence
from fla.ops.dsa.naive import naive_dsa
from fla.ops.forgetting_attn.naive import naive_forgetting_attn
from fla.ops.gated_delta_product.naive import naive_recurrent_gated_delta_product
from fla.ops.gated_delta_rule.naive import naive_recurrent_gated_delta_rule
from fla.ops.gdn2.naive import naive_recurrent_gdn2
from fla.ops.generalized_delta_rule.dplr.naive import dplr_recurrence
from fla.ops.gla.naive import naive_recurrent_gla
from fla.ops.kda.naive import naive_recurrent_kda
from fla.ops.linear_attn.naive import naive_recurrent_linear_attn
from fla.ops.log_linear_attn.naive import naive_log_linear_attn
from fla.ops.path_attn.naive import naive_path_attn
from fla.ops.simple_gla.naive import naive_recurrent_simple_gla
from fla.ops.stickbreaking_attn.naive import naive_stickbreaking_attn
from torch import Tensor
from transformers.models.gemma2 import modeling_gemma2
from transformers.models.gpt_oss import modeling_gpt_oss


class PlainCall(NamedTuple):
    """The inputs of a plain form: queries, keys and values `(B, T, N, H)`, our options and weights, and our gates."""

    query: Tensor
    key: Tensor
    value: Tensor
    weights: dict[str, Tensor]
    gates: Any


def _unit(x: Tensor) -> Tensor:
    return F.normalize(F.silu(x), dim=-1)


def _heads_first(function: Callable[..., Any]) -> Callable[..., Tensor]:
    """Lets a function of `(B, N, T, …)` take and return `(B, T, N, …)`."""

    def call(*arrays: Tensor, **options: Any) -> Tensor:
        out = function(*(x.transpose(1, 2) for x in arrays), **options)
        return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)

    return call


def _eager(model: Any, x: PlainCall, **options: Any) -> Tensor:
    """Calls the attention of a model of transformers, which returns `(B, T, N, H)`."""
    length = x.query.shape[1]
    mask = torch.full((length, length), -torch.inf).triu(1)
    module = SimpleNamespace(num_key_value_groups=1, training=False, sinks=x.weights.get("sink"))
    arrays = (part.transpose(1, 2) for part in x[:3])
    return model.eager_attention_forward(module, *arrays, mask, scaling=x.query.shape[-1] ** -0.5, **options)[0]


def _delta(x: PlainCall) -> Tensor:
    query = _unit(x.query) * x.query.shape[-1] ** 0.5  # cancels its scale
    return _heads_first(delta_rule_recurrence)(query, _unit(x.key), x.value, x.gates)


def _gated_delta(x: PlainCall) -> Tensor:
    decay, strength = x.gates
    inputs = _unit(x.query), _unit(x.key), x.value, strength, decay[..., 0]
    return naive_recurrent_gated_delta_rule(*inputs, scale=1.0)[0]


def _gated_delta2(x: PlainCall) -> Tensor:
    decay, (erase, write) = x.gates
    return naive_recurrent_gdn2(_unit(x.query), _unit(x.key), x.value, decay, erase, write)[0]


def _delta_product(x: PlainCall) -> Tensor:
    def in_turn(first: Tensor, more: Tensor) -> Tensor:  # (B, T, N, H) and (B, T, N, n − 1, H)
        return torch.cat([first[..., None, :], more], -2).transpose(2, 3).flatten(1, 2)

    key, value = in_turn(x.key, x.gates["more_keys"]), in_turn(x.value, x.gates["more_values"])
    strength = x.gates["strength"].transpose(2, 3).flatten(1, 2)
    steps = x.gates["strength"].shape[-1]
    inputs = _unit(x.query), _unit(key), value, None, strength, 1.0
    return naive_recurrent_gated_delta_product(*inputs, num_householder=steps)[0]


def _rwkv7(x: PlainCall) -> Tensor:
    (decay, rate), width = x.gates, x.query.shape[-1]
    removed = F.normalize(x.key * x.weights["removal"], dim=-1)
    added = x.key * (1 + (rate - 1) * x.weights["replacement"])
    inputs = x.query * width**0.5, added, x.value, -removed, rate * removed, decay
    return F.layer_norm(_heads_first(dplr_recurrence)(*inputs), (width,), eps=1e-5 * width)


def _state_space(x: PlainCall) -> Tensor:
    decay, step = x.gates
    return naive_recurrent_simple_gla(x.query, x.key, x.value * step, decay[..., 0], scale=1.0)[0]


def _retention(x: PlainCall) -> Tensor:
    decay = F.logsigmoid(-x.weights["decay"]).expand(x.query.shape[:-1])
    out = naive_recurrent_simple_gla(x.query, x.key, x.value, decay)[0]
    return F.rms_norm(out, out.shape[-1:], eps=1e-6)


def _linear(x: PlainCall) -> Tensor:
    features = (F.elu(part) + 1 for part in (x.query, x.key))
    return naive_recurrent_linear_attn(*features, x.value, normalize=True)[0]


def _forgetting(x: PlainCall) -> Tensor:
    sums = x.gates[..., 0]
    return naive_forgetting_attn(x.query, x.key, x.value, torch.diff(sums, dim=1, prepend=0 * sums[:, :1]))


def _deepseek_sparse(x: PlainCall) -> Tensor:
    query, weight, key = x.gates
    return naive_dsa(x.query, x.key, x.value, query, key[..., 0, :], weight[..., 0], topk=x.weights["top"])


def _path(x: PlainCall) -> Tensor:
    (low, strength), taps, length = x.gates, x.weights["taps"], x.query.shape[1]
    wide = F.pad(torch.einsum("btr,rnh->btnh", low[..., 0, :], x.weights["up_kernel"]), (0, 0, 0, 0, len(taps) - 1, 0))
    direction = _unit(sum(tap * wide[:, place : place + length] for place, tap in enumerate(taps)))
    arrays = *x[:3], direction, 2 * torch.sigmoid(strength[..., 0]), torch.zeros(x.query.shape[:-1])
    return naive_path_attn(*arrays, scale=x.query.shape[-1] ** -0.5)


def _log_linear(x: PlainCall) -> Tensor:
    decay, step, weights = x.gates
    return naive_log_linear_attn(x.query, x.key, x.value * step, decay[..., 0], weights)


PUBLISHED: dict[str, Callable[[PlainCall], Tensor]] = {
    "dot_product": lambda x: _heads_first(F.scaled_dot_product_attention)(*x[:3], is_causal=True),
    "sink": lambda x: _eager(modeling_gpt_oss, x),
    "soft_cap": lambda x: _eager(modeling_gemma2, x, softcap=x.weights["cap"]),
    "forgetting": _forgetting,
    "path": _path,
    "stick_breaking": lambda x: naive_stickbreaking_attn(*x[:3], attend_current=True)[0],
    "deepseek_sparse": _deepseek_sparse,
    "linear": _linear,
    "delta": _delta,
    "retention": _retention,
    "gated_linear": lambda x: naive_recurrent_gla(*x[:3], x.gates)[0],
    "gated_delta": _gated_delta,
    "state_space": _state_space,
    "kimi_delta": lambda x: naive_recurrent_kda(_unit(x.query), _unit(x.key), x.value, *x.gates)[0],
    "gated_delta2": _gated_delta2,
    "delta_product": _delta_product,
    "rwkv7": _rwkv7,
    "log_linear": _log_linear,
}


def outcome(
    name: str, score: Any, arrays: tuple[Any, ...], weights: dict[str, Any], gates: list[Any], direction: Any
) -> dict[str, Any]:
    """Computes the output in float32, and the gradients of its product with a direction, by query, key and value.

    Args:
      name: A row of `PUBLISHED`.
      score: Our score or recurrence, which has the options.
      arrays: Queries, keys and values `(B, T, N, H)`.
      weights: Our weights.
      gates: What our prepared queries and keys have besides themselves.
      direction: `(B, T, N, H)`.
    """
    given = [torch.tensor(x, requires_grad=True) for x in arrays]
    gates, weights = jax.tree.map(lambda x: torch.tensor(np.asarray(x, np.float32)), (gates, weights))
    options = {field.name: getattr(score, field.name) for field in dataclasses.fields(score)}
    out = PUBLISHED[name](PlainCall(*given, options | weights, gates[0] if len(gates) == 1 else gates))
    (out * torch.tensor(direction)).sum().backward()
    gradients = {part: x.grad.numpy() for part, x in zip(("query", "key", "value"), given, strict=True)}
    return {"out": out.detach().numpy(), **gradients}
