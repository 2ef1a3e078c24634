"""Differential attention: the difference of two softmaxes, which cancels common noise (Ye et al. 2024, 2410.05258)."""

import dataclasses
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jax.nn import initializers

from attention.activations import inverse_rms
from attention.errors import UsageError
from attention.forms import Tokens
from attention.kernels.arrays import precise
from attention.options import Options
from attention.parameters import Parameter, Params, Sizes, lift
from attention.score import Mixer, Traits
from attention.scores.dot import DotProduct
from attention.types import NotNegative, below


@dataclasses.dataclass(frozen=True)
class Differential(Mixer):
    """(softmax(q¹·k¹/√(H/2)) − λ softmax(q²·k²/√(H/2))) v, then a norm of each head (eq. 1 to 3).

    q¹ and q² are the halves of a head's query, and λ = exp(a¹·b¹) − exp(a²·b²) + λ₀ with learned a and b.

    Attributes:
      initial: λ₀ of all layers; 0 means the paper's 0.8 − 0.6 exp(−0.3 (l − 1)) in layer l from 1 on.
    """

    initial: Annotated[NotNegative, below(1)] = 0
    title = "Differential attention"
    normaliser = "softmax"
    traits = Traits(ties_values=False, kernels=("chunked",))  # its values are wider than its halves: cuDNN refuses

    def parameters(self, sizes: Sizes) -> dict[str, Parameter]:
        """Declares a and b of both softmaxes, shared by the heads as in the published code, and the norm's scale."""
        _check_even(sizes.head)
        vectors = Parameter((2, sizes.head // 2), initializers.normal(0.1))
        scale = Parameter((sizes.head,), initializers.ones)
        return {"query_vector": vectors, "key_vector": vectors, "scale": scale}

    def prepare_query(self, params: Params, query: jax.Array, at: Tokens) -> jax.Array:
        """Turns each half of a query or key."""
        return jnp.concatenate([at.turn(half) for half in jnp.split(query, 2, -1)], -1) if at.rotary else query

    prepare_key = prepare_query

    def attend(self, params: Params, query: Any, key: Any, value: Any, options: Options) -> Any:
        """Computes the normed difference, and the difference of the weights if asked for."""
        _check_even(query.shape[-1])
        exact = precise(value)  # the norm magnifies what rounding leaves of a difference
        first, second = (
            DotProduct().attend({}, *halves, exact, options)
            for halves in zip(jnp.split(query, 2, -1), jnp.split(key, 2, -1), strict=True)
        )
        initial = self.initial or 0.8 - 0.6 * jnp.exp(-0.3 * options.layer)
        exponents = jnp.exp(jnp.sum(params["query_vector"] * params["key_vector"], -1))
        factor = exponents[0] - exponents[1] + initial
        difference = jax.tree.map(lambda x, y: x - (factor * y).astype(x.dtype), first, second)
        out = difference[0] if options.return_weights else difference
        scale = (1 - initial) * lift(params["scale"], out.ndim)
        out = (out * inverse_rms(out, 1e-5) * scale).astype(value.dtype)
        return (out, difference[1].astype(value.dtype)) if options.return_weights else out


def _check_even(width: int) -> None:
    if width % 2:
        raise UsageError(f"Differential attention halves its heads, so they cannot be {width} wide.")
