"""The recurrences of flash-linear-attention on a GPU, by our names; gates are given as inputs."""

from collections.abc import Callable

import torch
from fla.ops.delta_rule import chunk_delta_rule
from fla.ops.gated_delta_rule import chunk_gated_delta_rule
from fla.ops.gla import chunk_gla
from fla.ops.kda import chunk_kda
from fla.ops.retention import chunk_retention
from fla.ops.simple_gla import chunk_simple_gla
from torch import Tensor

# Functions of queries, keys and values `(B, T, N, H)`, and the names of their gates.
OPERATIONS: dict[str, tuple[Callable, tuple[str, ...]]] = {
    "gated_delta": (chunk_gated_delta_rule, ("g", "beta")),
    "kimi_delta": (chunk_kda, ("g of columns", "beta")),
    "gated_linear": (chunk_gla, ("g of columns",)),
    "state_space": (chunk_simple_gla, ("g",)),
    "retention": (chunk_retention, ()),
    "delta": (chunk_delta_rule, ("beta",)),
}


def operation(name: str) -> Callable[..., Tensor]:
    """Makes a recurrence, a function of queries, keys, values and gates that returns `(B, T, N, H)`."""
    function, gates = OPERATIONS[name]
    names = [gate.split()[0] for gate in gates]

    def attend(query: Tensor, key: Tensor, value: Tensor, *given: Tensor) -> Tensor:
        return function(query, key, value, **dict(zip(names, given, strict=True)))[0]

    return attend


def gates(name: str, query: Tensor) -> list[Tensor]:
    """Draws the gates for queries `(B, T, N, H)`: logarithms of decays near 1, and strengths in (0, 1)."""
    draw = {
        "g": lambda: torch.nn.functional.logsigmoid(torch.randn_like(query[..., 0]).float()) / 16,
        "g of columns": lambda: torch.nn.functional.logsigmoid(torch.randn_like(query).float()) / 16,
        "beta": lambda: torch.rand_like(query[..., 0]),
    }
    return [draw[gate]() for gate in OPERATIONS[name][1]]
