"""Forgetting attention: dot products less the log forget gates of the tokens between (Lin et al. 2025, 2503.02130)."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.nn import initializers

from attention.errors import UsageError
from attention.forms import At, Dot, Tokens
from attention.kernels.arrays import precise
from attention.normaliser import NORMALISERS
from attention.parameters import Parameter, Params, Sizes, lift
from attention.score import Traits
from attention.scores.dot import DotProduct


@dataclasses.dataclass(frozen=True)
class Forgetting(DotProduct):
    """score = q·k/√H + F_i − F_j, F_i = Σ_{l≤i} log σ(w·x_l + b) for each head; causal, and without F_i for softmax."""

    title = "Forgetting attention"
    traits = Traits(causal=True, reads_source=True, ties_values=False, in_parts=False)

    def __post_init__(self):
        super().__post_init__()
        if not self.weighing.shift_invariant:
            known = [name for name, kind in NORMALISERS.items() if kind.shift_invariant]
            raise UsageError(f"Forgetting attention has a normaliser of {', '.join(known)}, not {self.normaliser}.")

    def parameters(self, sizes: Sizes) -> dict[str, Parameter]:
        """Declares w and b, and those of the dot product."""
        kernel = Parameter((sizes.model, sizes.heads), initializers.lecun_normal())
        gates = {"forget_kernel": kernel, "forget_bias": Parameter((sizes.heads,), initializers.constant(4.0))}
        return super().parameters(sizes) | gates

    def prepare_key(self, params: Params, key: jax.Array, at: Tokens) -> Any:
        """Computes the keys and F_j, `(*B, S, N, 1)`, which goes on from that of the token before."""
        logits = precise(at.source @ params["forget_kernel"].astype(at.source.dtype))
        logits += lift(params["forget_bias"], logits.ndim)
        sums = jnp.cumsum(jax.nn.log_sigmoid(logits), axis=-2)[..., None]
        return super().prepare_key(params, key, at), sums if at.before is None else sums + at.before[1]

    def pair(self, params: Params, query: jax.Array, key: Any, at: At) -> jax.Array:
        """Computes q·k/√H − F_j."""
        return super().pair(params, query, key[0], at) - key[1][0]

    def form(self, params: Params, query: jax.Array, key: Any) -> Dot:
        """Adds −F_j as a bias of each key."""
        bias = -jnp.moveaxis(key[1][..., 0], -1, -2)[..., None, :]
        return super().form(params, query, key[0])._replace(key_bias=bias)
