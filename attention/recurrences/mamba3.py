"""Mamba-3 (Lahoti et al. 2026, arXiv:2603.15569): a state that turns, and writes half of a token with the next."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.nn import initializers

from attention.activations import inverse_rms
from attention.parameters import Parameter, Params, Sizes, lift
from attention.recurrences.recurrence import Recurrence
from attention.recurrences.selective import first_steps

EPSILON = 1e-5  # of the norms of queries and keys
SLOWEST = 1e-4  # the least rate at which a state fades


@dataclasses.dataclass(frozen=True)
class Mamba3(Recurrence):
    """W ← α W + (1 − λ) Δ α v′ k′ᵀ + λ Δ v kᵀ and W q: the trapezoidal rule, with the token before, v′ and k′.

    Queries and keys are normed, get a bias of each head, and half of each head is then turned by the sum of Δ θ so far.
    Δ = softplus(w_Δ·x + b), α = exp(−Δ max(softplus(w_a·x), 10⁻⁴)) and λ = σ(w_λ·x) are of each token and head,
    θ = π tanh(W_θ x) of each token, for all heads. So it is with one input and one output (SISO) in the published code,
    without what its layer has around: a skip and an output gate.
    """

    title = "Mamba-3"

    def parameters(self, sizes: Sizes) -> dict[str, Parameter]:
        """Declares w_Δ, b, w_a, w_λ, W_θ, and the scales and biases of queries and keys."""
        kernel = Parameter((sizes.model, sizes.heads), initializers.lecun_normal())
        sides = {
            f"{side}_{name}": Parameter(shape, initializers.ones)
            for side in ("query", "key")
            for name, shape in (("scale", (sizes.head,)), ("bias", (sizes.heads, sizes.head)))
        }
        biases = {name: dataclasses.replace(p, over=("heads",)) for name, p in sides.items() if "bias" in name}
        return {
            "step_kernel": kernel,
            "step_bias": Parameter((sizes.heads,), first_steps),
            "fade_kernel": kernel,
            "share_kernel": kernel,
            "angle_kernel": Parameter((sizes.model, max(1, sizes.head // 4)), initializers.lecun_normal()),
            **(sides | biases),
        }

    def gates(self, params: Params, source: jax.Array) -> tuple[jax.Array, ...]:
        """Computes Δ, log α and λ, `(*B, S, N)`, and Δ θ, `(*B, S, N, any)`."""
        step = jax.nn.softplus(source @ params["step_kernel"] + lift(params["step_bias"], source.ndim))
        fading = -step * jnp.maximum(jax.nn.softplus(source @ params["fade_kernel"]), SLOWEST)
        angle = math.pi * jnp.tanh(source @ params["angle_kernel"])
        return step, fading, jax.nn.sigmoid(source @ params["share_kernel"]), step[..., None] * angle[..., None, :]

    def begin(self, head: int, value: int) -> Any:
        """Makes an empty W, no angles, and no token before."""
        return jnp.zeros((value, head)), jnp.zeros(max(1, head // 4)), jnp.zeros(head), jnp.zeros(value)

    def write(self, params: Params, state: Any, key: jax.Array, value: jax.Array, gates: Any) -> Any:
        """Fades W, and adds the rest of the token before and a share of this one."""
        (matrix, angle, key_before, value_before), (step, fading, share, turn) = state, gates
        angle, fade = angle + turn, jnp.exp(fading)
        key = _turned(key, params["key_scale"], params["key_bias"], angle)
        before = (1 - share) * step * fade * jnp.outer(value_before, key_before)
        return fade * matrix + before + share * step * jnp.outer(value, key), angle, key, value

    def read(self, params: Params, state: Any, query: jax.Array) -> jax.Array:
        """Computes W q."""
        return state[0] @ _turned(query, params["query_scale"], params["query_bias"], state[1])

    def oracle(self, weights: Any, head: int, state: Any, source: Any, key: Any, value: Any, query: Any) -> Any:
        """Takes a step in NumPy, with complex numbers in the place of what is turned."""
        matrix, angle, key_before, value_before = state
        logits = {name: source @ weights[f"{name}_kernel"][:, head] for name in ("step", "fade", "share")}
        step = np.log1p(np.exp(logits["step"] + weights["step_bias"][head]))
        fade = np.exp(-step * max(np.log1p(np.exp(logits["fade"])), SLOWEST))
        share = 1 / (1 + np.exp(-logits["share"]))
        angle = angle + step * np.pi * np.tanh(source @ weights["angle_kernel"])

        def turned(x: Any, side: str) -> Any:
            x = x / np.sqrt(np.mean(x**2) + EPSILON) * weights[f"{side}_scale"] + weights[f"{side}_bias"][head]
            part = 2 * len(angle)
            pairs = (x[:part:2] + 1j * x[1:part:2]) * np.exp(1j * angle)
            return np.concatenate([np.stack([pairs.real, pairs.imag], -1).ravel(), x[part:]])

        key = turned(key, "key")
        matrix = fade * (matrix + (1 - share) * step * np.outer(value_before, key_before))
        matrix = matrix + share * step * np.outer(value, key)
        return (matrix, angle, key, value), matrix @ turned(query, "query")


def _turned(x: jax.Array, scale: jax.Array, bias: jax.Array, angle: jax.Array) -> jax.Array:
    """Norms a query or key `(H,)`, adds its bias, and turns its first pairs of numbers by the angles."""
    x, part = x * inverse_rms(x, EPSILON) * scale + bias, 2 * len(angle)
    first, second, cosine, sine = x[:part:2], x[1:part:2], jnp.cos(angle), jnp.sin(angle)
    pairs = jnp.stack([first * cosine - second * sine, first * sine + second * cosine], -1)
    return jnp.concatenate([pairs.reshape(-1), x[part:]])
