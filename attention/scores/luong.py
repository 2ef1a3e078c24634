"""The three scores of Luong et al. (2015): dot, general and concat."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.nn import initializers
from jaxtyping import Array, Float, PRNGKeyArray

from attention import operations
from attention import reference as definitions
from attention.errors import UsageError, unknown
from attention.kernels import reference
from attention.kernels.call import SoftmaxCall, check_shapes, check_weight, common
from attention.mask import Mask
from attention.score import Parameter, Params, Score, Sizes, check_flags
from attention.scores.dot import DotProduct, dot_product_attention
from attention.scores.pairwise import neural_attention

FORMS = ("dot", "general", "concat")


def luong_attention(
    query: Float[Array, "*B T N H"],
    key: Float[Array, "*B S K H"],
    value: Float[Array, "*B S K V"],
    form: str = "dot",
    kernel: Float[Array, "..."] | None = None,
    hidden_bias: Float[Array, "*N M"] | None = None,
    vector: Float[Array, "*N M"] | None = None,
    *,
    mask: Mask | None = None,
    bias: Float[Array, "*#B #N #T #S"] | None = None,
    dropout_rate: float = 0.0,
    dropout_key: PRNGKeyArray | None = None,
    return_weights: bool = False,
    implementation: str = "auto",
) -> Float[Array, "*B T N V"] | tuple[Float[Array, "*B T N V"], Float[Array, "*B N T S"]]:
    """Returns softmax(score + bias) v with a score of Luong et al. (2015), eq. 8; Wikipedia describes them too.

    `dot` is q·k, without 1/√H; `general` is qᵀ W_a k; `concat` is vᵀ tanh(W_a [q; k] + b).

    Args:
      query: Queries `(*B, T, N, H)`.
      key: Keys `(*B, S, K, H)`; K divides N.
      value: Values `(*B, S, K, V)`.
      form: `dot`, `general` or `concat`.
      kernel: W_a: `(H, H)` for `general`, `(2H, M)` for `concat`; a leading axis N gives each head its own weights.
      hidden_bias: b of `concat`, `(M,)`; zero by default.
      vector: v of `concat`, `(M,)`.
      mask: Which query may attend to which key.
      bias: Added to the scores; broadcasts to `(*B, N, T, S)`.
      dropout_rate: Fraction of the weights that are zeroed, in [0, 1).
      dropout_key: Random key of dropout; needed unless the rate is 0.
      return_weights: Whether to return the weights before dropout too.
      implementation: See `dot_product_attention`, and for `concat` see `neural_attention`.

    Returns:
      The output, and the weights if `return_weights` is set.

    Raises:
      UsageError: the form is unknown, weights are missing or not the form's, or the shapes do not fit.
      UnsupportedError: the named implementation does not support this call.
    """
    _check_weights(form, kernel, hidden_bias, vector)
    options = {"mask": mask, "bias": bias, "dropout_rate": dropout_rate, "dropout_key": dropout_key}
    options |= {"return_weights": return_weights, "implementation": implementation}
    if form == "dot":
        return dot_product_attention(query, key, value, scale=1.0, **options)
    if form == "concat":
        layers = ((kernel, hidden_bias), (vector[..., None], None))
        return neural_attention(query, key, value, layers, activation="tanh", **options)
    check_shapes(query, key, value)
    heads, width = query.shape[-2:]
    check_weight("kernel", kernel, (width, width), (heads, width, width))
    score = Bilinear(per_head=kernel.ndim == 3)
    params = {"kernel": kernel}
    return score.attend(params, score.prepare_query(params, query, implementation), key, value, **options)


def _check_weights(form: str, kernel: Any, hidden_bias: Any, vector: Any) -> None:
    if form not in FORMS:
        raise unknown("form of Luong attention", form, FORMS)
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
    implementations = DotProduct.implementations

    def __post_init__(self):
        check_flags(self, "per_head")

    def parameters(self, sizes: Sizes) -> dict[str, Parameter]:
        """Returns W_a, initialised so that scores have the variance of scaled dot products."""
        heads = (sizes.heads,) if self.per_head else ()
        return {"kernel": Parameter((*heads, sizes.head, sizes.head), initializers.normal(1.0 / sizes.head))}

    def prepare_query(self, params: Params, query: jax.Array, implementation: str) -> jax.Array:
        """Returns W_aᵀ q, or the query unchanged for the reference."""
        if implementation == "reference":
            return query
        kernel = params["kernel"].astype(query.dtype)
        return jnp.einsum(f"...nh,{'n' if self.per_head else ''}hk->...nk", query, kernel)

    def attend(self, params: Params, query: Any, key: Any, value: Any, *, implementation: str, **options: Any) -> Any:
        """Returns the unscaled `dot_product_attention` of prepared queries."""
        if implementation != "reference":
            return dot_product_attention(query, key, value, scale=1.0, implementation=implementation, **options)
        call = SoftmaxCall(**common(*query.shape[-3:-1], value, **options))
        key = call.mask.without_unreachable(key, query.shape[-3], query.ndim)
        weights = (params["kernel"],)
        scores = reference.scores(definitions.luong_score, query, key, weights, per_head=self.per_head)
        out, weights = reference.weigh_values(call, scores)
        return (out, weights) if call.return_weights else out

    def cost(self, sizes: Sizes, queries: int, keys: int) -> operations.Cost:
        """Returns the cost of W_a on each query, then of dot products."""
        prepare = operations.matmul(queries * sizes.heads, sizes.head, sizes.head)
        return prepare + operations.dot_product(queries, keys, sizes.heads, sizes.head)
