"""The three scores of Luong et al. (2015): dot, general and concat."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.nn import initializers
from jaxtyping import Array, Float

from attention.errors import UsageError, check_known
from attention.forms import At, Dot, Tokens
from attention.kernels.call import check_shapes, check_weight
from attention.options import takes_options
from attention.parameters import Parameter, Params, Sizes
from attention.score import PRODUCTS, Score, Traits, attend
from attention.scores.dot import dot_product_attention
from attention.scores.pairwise import neural_attention

FORMS = ("dot", "general", "concat")


@takes_options
def luong_attention(
    query: Float[Array, "*B T N H"],
    key: Float[Array, "*B S K H"],
    value: Float[Array, "*B S K V"],
    form: str = "dot",
    kernel: Float[Array, "..."] | None = None,
    hidden_bias: Float[Array, "*N M"] | None = None,
    vector: Float[Array, "*N M"] | None = None,
    **options: Any,
) -> Float[Array, "*B T N V"] | tuple[Float[Array, "*B T N V"], Float[Array, "*B N T S"]]:
    """Computes softmax(score + bias) v with a score of Luong et al. (2015), eq. 8; Wikipedia describes them too.

    `dot` is q·k, without 1/√H; `general` is qᵀ W_a k; `concat` is vᵀ tanh(W_a [q; k] + b).

    Args:
      query: Queries `(*B, T, N, H)`.
      key: Keys `(*B, S, K, H)`; K divides N.
      value: Values `(*B, S, K, V)`.
      form: `dot`, `general` or `concat`.
      kernel: W_a: `(H, H)` for `general`, `(2H, M)` for `concat`; a leading axis N gives each head its own weights.
      hidden_bias: b of `concat`, `(M,)`; zero by default.
      vector: v of `concat`, `(M,)`.
      **options: The fields of `attention.options.Options`; for the implementations of `concat` see `neural_attention`.

    Returns:
      The output, and the weights if `return_weights` is set.

    Raises:
      UsageError: the form is unknown, weights are missing or not the form's, or the shapes do not fit.
      UnsupportedError: the named implementation does not support this call.
    """
    _check_weights(form, kernel, hidden_bias, vector)
    if form == "dot":
        return dot_product_attention(query, key, value, scale=1.0, **options)
    if form == "concat":
        layers = ((kernel, hidden_bias), (vector[..., None], None))
        return neural_attention(query, key, value, layers, activation="tanh", **options)
    check_shapes(query, key, value)
    heads, width = query.shape[-2:]
    check_weight("kernel", kernel, (width, width), (heads, width, width))
    return attend(Bilinear(per_head=kernel.ndim == 3), {"kernel": kernel}, query, key, value, **options)


def _check_weights(form: str, kernel: Any, hidden_bias: Any, vector: Any) -> None:
    check_known("form of Luong attention", form, FORMS)
    given = {"kernel": kernel is not None, "hidden_bias": hidden_bias is not None, "vector": vector is not None}
    needed = {"dot": (), "general": ("kernel",), "concat": ("kernel", "vector")}[form]
    allowed = (*needed, "hidden_bias") if form == "concat" else needed
    for name, is_given in given.items():
        if is_given != (name in needed) and not (is_given and name in allowed):
            verb = "takes no" if is_given else "needs a"
            raise UsageError(f"Luong's {form!r} score {verb} {name}; it takes {', '.join(allowed) or 'no weights'}.")


@dataclasses.dataclass(frozen=True)
class Bilinear(Score):
    """score = qᵀ W_a k, with W_a folded into the queries.

    Attributes:
      per_head: Whether each head has its own W_a; if not, all heads share one.
    """

    per_head: bool = False
    title = "Luong attention"
    traits = Traits(keeps_keys=True, kernels=PRODUCTS)

    def parameters(self, sizes: Sizes) -> dict[str, Parameter]:
        """Declares W_a, initialised so that scores have the variance of scaled dot products."""
        heads = {"heads": sizes.heads} if self.per_head else {}
        shape = (*heads.values(), sizes.head, sizes.head)
        return {"kernel": Parameter(shape, initializers.normal(1.0 / sizes.head), tuple(heads))}

    def prepare_query(self, params: Params, query: jax.Array, at: Tokens) -> jax.Array:
        """Computes W_aᵀ q."""
        kernel = params["kernel"].astype(query.dtype)
        return jnp.einsum(f"...nh,{'n' if self.per_head else ''}hk->...nk", at.turn(query), kernel)

    def pair(self, params: Params, query: jax.Array, key: jax.Array, at: At) -> jax.Array:
        """Multiplies a prepared query and a key."""
        return query @ key

    def form(self, params: Params, query: jax.Array, key: jax.Array) -> Dot:
        """Gives the scores as they are."""
        return Dot(query, key, 1.0)
