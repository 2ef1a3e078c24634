"""Differential attention: the difference of two softmaxes, which cancels common noise.

The first version is of Ye et al. 2024, 2410.05258; the second is Microsoft's of January 2026, defined in its published
code (`microsoft/unilm`, Diff-Transformer-V2).
"""

import dataclasses
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
from jax.nn import initializers

from attention.activations import inverse_rms
from attention.errors import UsageError
from attention.forms import Tokens
from attention.kernels.arrays import precise
from attention.options import Options
from attention.parameters import Parameter, Params, Sizes, lift
from attention.score import PRODUCTS, Mixer, Traits
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


@dataclasses.dataclass(frozen=True)
class DifferentialV2(Mixer):
    """(softmax(q¹·k/√H) − σ(w·x) softmax(q²·k/√H)) v: two queries a head share its keys and values, without a norm.

    q² is a further projection of the query's token x, and so is the share σ(w·x) of each head.
    """

    title = "Differential attention V2"
    normaliser = "softmax"
    traits = Traits(one_sequence=True, keeps_keys=True, kernels=PRODUCTS)
    KERNELS: ClassVar[tuple[str, ...]] = ("second_kernel", "share_kernel")

    def parameters(self, sizes: Sizes) -> dict[str, Parameter]:
        """Declares the projections of x to q² and to w·x."""
        second = initializers.lecun_normal(in_axis=0, out_axis=(1, 2)), (sizes.model, sizes.heads, sizes.head)
        share = initializers.lecun_normal(), (sizes.model, sizes.heads)
        return {name: Parameter(shape, init) for name, (init, shape) in zip(self.KERNELS, (second, share), strict=True)}

    def prepare_query(self, params: Params, query: jax.Array, at: Tokens) -> Any:
        """Gives both turned queries and the share."""
        second, share = (jnp.tensordot(at.source, params[name].astype(at.source.dtype), 1) for name in self.KERNELS)
        return at.turn(query), at.turn(second.astype(query.dtype)), jax.nn.sigmoid(precise(share))

    def attend(self, params: Params, query: Any, key: Any, value: Any, options: Options) -> Any:
        """Computes the difference, and that of the weights if asked for."""
        *queries, share = query
        first, second = (DotProduct().attend({}, query, key, value, options) for query in queries)
        shares = share[..., None], jnp.swapaxes(share, -1, -2)[..., None]
        if not options.return_weights:
            return (first - shares[0] * second).astype(value.dtype)
        return tuple((x - part * y).astype(value.dtype) for x, y, part in zip(first, second, shares, strict=True))
