"""Mamba-3: a state space whose state is complex, and whose steps look at the token before too."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.nn import initializers

from attention.activations import inverse_rms
from attention.kernels.arrays import precise, spread_heads
from attention.mask import Mask
from attention.parameters import Parameter, Params, Sizes, lift, trail
from attention.recurrences.gated import projection, sigmoid
from attention.recurrences.selective import step_parameters, step_size
from attention.recurrences.state import Marks, from_state, last_token, turned
from attention.recurrences.surrounded import Surrounded

EPSILON, LEAST_RATE = 1e-5, 1e-4  # of the norms of keys and queries, and of what a step forgets


@dataclasses.dataclass(frozen=True)
class Mamba3(Surrounded):
    """W ← α (W + (1 − λ) Δ v' k'ᵀ) R(−Δθ) + λ Δ v kᵀ and W q, with the value v' and the key k' of the token before.

    Mamba-3 with one input and one output (Lahoti et al. 2026, arXiv:2603.15569), as the authors' published code has it:
    the rule is exponential-trapezoidal, and R turns half the columns in pairs, which is a complex state. α = exp(−Δ a)
    with a = max(softplus(w_a·x), 10⁻⁴), Δ as in `state_space` and λ = σ(w_λ·x) are of each head; the rates
    θ = π tanh(W_θ x) of the pairs are of all. Keys and queries are over their root mean square, with a learned scale,
    and a learned bias of each head. The published layer has `groups=1, state=128, skip=True`, and
    `gate='norm_first', epsilon=1e-5` where it norms; otherwise its gate has no norm.
    """

    title = "Mamba-3"
    quick_steps = False

    def parameters(self, sizes: Sizes) -> dict[str, Parameter]:
        """Declares the projections of Δ, a, λ and θ, and scales and biases of keys and queries."""
        wide = self.state or sizes.head
        turns = Parameter((sizes.model, min(max(1, wide // 4), wide // 2)), initializers.lecun_normal())
        gates = {"forget_kernel": projection(sizes), "before_kernel": projection(sizes), "turn_kernel": turns}
        norms = {f"{part}_scale": Parameter((wide,), initializers.ones) for part in ("query", "key")}
        biases = {n: Parameter((sizes.heads, wide), initializers.ones, ("heads",)) for n in ("query_bias", "key_bias")}
        return step_parameters(sizes) | gates | norms | biases | self.surroundings(sizes)

    def gates(self, params: Params, source: jax.Array) -> dict[str, jax.Array]:
        """Computes log α, λ Δ and (1 − λ) Δ, `(*B, S, N, 1)`, and Δθ, `(*B, S, N, at most H/2)`."""
        step = step_size(params, source)[..., None]
        rate = jnp.maximum(jax.nn.softplus(source @ params["forget_kernel"]), LEAST_RATE)[..., None]
        share = jax.nn.sigmoid(source @ params["before_kernel"])[..., None]
        turn = step * jnp.pi * jnp.tanh(source @ params["turn_kernel"])[..., None, :]
        return {"decay": -step * rate, "now": share * step, "before": (1 - share) * step, "turn": turn}

    def _normed(self, params: Params, part: str, x: jax.Array) -> jax.Array:
        """Norms keys or queries, of one head or `(*B, S, N, H)`, and adds their bias."""
        scale, bias = (lift(params[f"{part}_{of}"], x.ndim) for of in ("scale", "bias"))
        return x * inverse_rms(x, EPSILON) * scale + bias

    def begin(self, head: int, value: int) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Makes an empty W, with zeros for a token before the first."""
        return jnp.zeros((value, head)), jnp.zeros(head), jnp.zeros(value)

    def write(self, params: Params, state: Any, key: jax.Array, value: jax.Array, gates: Any) -> Any:
        """Writes the value of the token before once more, turns and fades W, and writes the value."""
        (kept, last_key, last_value), key = state, self._normed(params, "key", key)
        kept = turned(kept + jnp.outer(gates["before"] * last_value, last_key), -gates["turn"][None])
        return jnp.exp(gates["decay"])[None] * kept + jnp.outer(gates["now"] * value, key), key, value

    def read(self, params: Params, state: Any, query: jax.Array) -> jax.Array:
        """Computes W q."""
        return state[0] @ self._normed(params, "query", query)

    def writes(self, params: Params, query: jax.Array, key: Any, value: jax.Array) -> tuple[Any, ...]:
        """Writes each value once for its own query, and once more, for the next token's step, after that has read."""
        key, gates = key
        key, value = spread_heads((key, value), gates["decay"].shape[-2])
        following = jnp.pad(gates["before"][..., 1:, :, :], [(0, 0)] * (value.ndim - 3) + [(0, 1), (0, 0), (0, 0)])
        query, key = self._normed(params, "query", query), self._normed(params, "key", key)
        return query, key, gates["now"] * value, None, gates["decay"], following * value, gates["turn"]

    def _go_on(
        self, params: Params, query: Any, key: Any, value: Any, mask: Mask, first: Any, state: Any = None
    ) -> tuple[jax.Array, Any]:
        """Computes in chunks from a state that has the last token's value once more; see `Recurrence`."""
        kept, *last = self._empty(query, value) if state is None else state
        real, gates = Marks.of(mask, first, value.shape[-3]).real, key[1]
        before = gates["before"][..., 0, :, :, None]
        before = before if real is None else jnp.where(trail(real[..., 0], before.ndim), before, 0)
        kept += before * last[1][..., :, None] * last[0][..., None, :]
        out, after = from_state(self._writes(params, query, key, value, mask, first), kept)
        new = spread_heads((precise(key[0]), precise(value)), kept.shape[-3])
        new = self._normed(jax.tree.map(precise, params), "key", new[0]), new[1]
        return out, (after, *(last_token(x, y, real) for x, y in zip(new, last, strict=True)))

    def oracle(self, weights: Any, head: int, state: Any, source: Any, key: Any, value: Any, query: Any) -> Any:
        """Takes a step in NumPy as the published code does, with keys and queries turned by the sum of all angles."""
        kept, last_key, last_value, *angles = state
        step = np.log1p(np.exp(source @ weights["step_kernel"][:, head] + weights["step_bias"][head]))
        rate = max(np.log1p(np.exp(source @ weights["forget_kernel"][:, head])), 1e-4)
        share = sigmoid(source @ weights["before_kernel"][:, head])
        turn = (sum(angles) + step * np.pi * np.tanh(source @ weights["turn_kernel"])) % (2 * np.pi)
        normed = []
        for x, part in ((key, "key"), (query, "query")):
            x = x / np.sqrt(np.mean(x**2) + 1e-5) * weights[f"{part}_scale"] + weights[f"{part}_bias"][head]
            pairs = (x[: 2 * len(turn) : 2] + 1j * x[1 : 2 * len(turn) : 2]) * np.exp(1j * turn)
            normed.append(np.concatenate([np.stack([pairs.real, pairs.imag], -1).ravel(), x[2 * len(turn) :]]))
        alpha = np.exp(-step * rate)
        kept = alpha * kept + (1 - share) * step * alpha * np.outer(last_value, last_key)
        kept += share * step * np.outer(value, normed[0])
        return (kept, normed[0], value, turn), kept @ normed[1]
