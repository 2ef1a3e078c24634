"""Linear attention and fast weights: a running state instead of scores for all pairs.

Both keep `W = Σ_j u_j φ(k_j)ᵀ` and read `W φ(q)`. Linear attention writes u_j = v_j. The delta rule writes only the
difference from the value that W already stores for k_j, u_j = β_j (v_j − W φ(k_j)).
"""

import dataclasses
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jax.nn import initializers
from jaxtyping import Array, Float

from attention.activations import unit
from attention.errors import UsageError
from attention.forms import Tokens
from attention.kernels.call import check_shapes, check_weight
from attention.options import Options, takes_options
from attention.parameters import Parameter, Params, Sizes, lift
from attention.recurrences.recurrence import CHUNKED, Recurrence
from attention.score import attend
from attention.types import Names, Number, above, at_most

FEATURES = {"elu": lambda x: jax.nn.elu(x) + 1, "relu": jax.nn.relu, "identity": lambda x: x}
Strongest = Annotated[Number, above(0), at_most(2)]  # of β: a state grows beyond bounds above 2


@takes_options
def linear_attention(
    query: Float[Array, "*B T N H"],
    key: Float[Array, "*B S K H"],
    value: Float[Array, "*B S K V"],
    *,
    feature: str = "elu",
    normalise: bool = True,
    **options: Any,
) -> Float[Array, "*B T N V"] | tuple[Float[Array, "*B T N V"], Float[Array, "*B N T S"]]:
    """Computes Σ_j φ(q)·φ(k_j) v_j / Σ_j φ(q)·φ(k_j) (Katharopoulos et al. 2020, eq. 4; Wikipedia).

    With `feature='identity', normalise=False` it is the fast weight controller of Schmidhuber (1992), also called the
    unnormalised linear Transformer.

    Args:
      query: Queries `(*B, T, N, H)`.
      key: Keys `(*B, S, K, H)`; K divides N.
      value: Values `(*B, S, K, V)`.
      feature: φ: `elu` (elu + 1), `relu` or `identity`.
      normalise: Whether to divide by the sum of the weights; not with `identity`, whose sum may be 0.
      **options: The fields of `attention.options.Options`. Of masks only causal ones, key lengths and segments are
        honoured. There are no bias and no dropout, because there are no scores. Weights are the share of each value in
        each output. The implementations are `auto`, `chunked` (a running state, linear in the length; causal needs
        T = S), `xla` (all pairs at once) and `reference`.

    Returns:
      The output `(*B, T, N, V)`, and the weights `(*B, N, T, S)` if `return_weights` is set.

    Raises:
      UsageError: the shapes do not fit, a name is unknown, the mask is of another kind, or the sum may be 0.
      UnsupportedError: a bias or dropout is requested, or the implementation does not support this call.
    """
    return attend(LinearAttention(feature, normalise), {}, query, key, value, **options)


@takes_options
def delta_attention(
    query: Float[Array, "*B T N H"],
    key: Float[Array, "*B S K H"],
    value: Float[Array, "*B S K V"],
    strength: Float[Array, "*B S K"],
    **options: Any,
) -> Float[Array, "*B T N V"] | tuple[Float[Array, "*B T N V"], Float[Array, "*B N T S"]]:
    """Updates W ← W + β (v − W φ(k)) φ(k)ᵀ key by key and returns W φ(q) (Schlag et al. 2021, eq. 23 to 25).

    φ is SiLU divided by its norm (Yang et al. 2024), so β = 1 replaces the value that W stores for a key and β = 0
    keeps it.

    Args:
      query: Queries `(*B, T, N, H)`.
      key: Keys `(*B, S, K, H)`; K divides N.
      value: Values `(*B, S, K, V)`.
      strength: β, in [0, 1], or up to 2 where what is stored may change its sign, `(*B, S, K)`.
      **options: The fields of `attention.options.Options`, as of `linear_attention`.

    Returns:
      The output `(*B, T, N, V)`, and the weights `(*B, N, T, S)` if `return_weights` is set.

    Raises:
      UsageError: the shapes do not fit, a name is unknown, or the mask is of another kind.
      UnsupportedError: a bias or dropout is requested, or the implementation does not support this call.
    """
    check_shapes(query, key, value)
    check_weight("strength", strength, key.shape[:-1])
    checked = Options(**options)
    key, value, strength = (
        checked.mask.without_unreachable(x, query.shape[-3], query.ndim) for x in (key, value, strength)
    )
    return Delta().attend({}, query, (key, strength), value, checked)


@dataclasses.dataclass(frozen=True)
class LinearAttention(Recurrence):
    """Weights φ(q)·φ(k), divided by their sum.

    Attributes:
      feature: φ: `elu` (elu + 1), `relu` or `identity`.
      normalise: Whether to divide by the sum.
    """

    feature: Annotated[str, Names(FEATURES)] = "elu"
    normalise: bool = True
    title = "Linear attention"
    traits = dataclasses.replace(CHUNKED, ties_values=True)

    def __post_init__(self):
        super().__post_init__()
        if self.normalise and self.feature == "identity":
            raise UsageError("Linear attention with feature='identity' may divide by 0; say normalise=False too.")

    @property
    def normaliser(self) -> str:
        """Names `sum`, or `none` if weights are not divided by their sum."""
        return "sum" if self.normalise else "none"

    def prepare_key(self, params: Params, key: jax.Array, at: Tokens) -> jax.Array:
        """Turns the keys; no gates are needed."""
        return at.turn(key)

    def begin(self, head: int, value: int) -> jax.Array:
        """Makes an empty W, with a row for the sum of the features."""
        return jnp.zeros((value + self.normalise, head))

    def write(self, params: Params, state: jax.Array, key: jax.Array, value: jax.Array, gates: None) -> jax.Array:
        """Computes W + v φ(k)ᵀ."""
        return state + jnp.outer(self._with_one(value), FEATURES[self.feature](key))

    def read(self, params: Params, state: jax.Array, query: jax.Array) -> jax.Array:
        """Computes W φ(q), divided by the sum of the weights."""
        return self.finish(state @ FEATURES[self.feature](query))

    def writes(self, params: Params, query: jax.Array, key: jax.Array, value: jax.Array) -> tuple[Any, ...]:
        """Writes the values with a column of ones, whose sums are the divisors."""
        feature = FEATURES[self.feature]
        return feature(query), feature(key), self._with_one(value), None, None

    def _with_one(self, value: jax.Array) -> jax.Array:
        ones = jnp.ones((*value.shape[:-1], 1), value.dtype)
        return jnp.concatenate([value, ones], axis=-1) if self.normalise else value

    def finish(self, out: jax.Array) -> jax.Array:
        """Divides the values by the sum of weights; zeros where that is 0."""
        if not self.normalise:
            return out
        total = out[..., -1:]
        return out[..., :-1] / jnp.where(total == 0, 1.0, total)


@dataclasses.dataclass(frozen=True)
class Delta(Recurrence):
    """Fast weights written by the delta rule, with β = s·sigmoid(W_β x + b) for each head.

    Attributes:
      strongest: s. Above 1 the state can change its sign (Grazzi et al. 2024, arXiv:2411.12537), up to 2.
    """

    strongest: Strongest = 1.0
    title = "Delta attention"
    traits = CHUNKED

    def parameters(self, sizes: Sizes) -> dict[str, Parameter]:
        """Declares W_β and its bias."""
        kernel = Parameter((sizes.model, sizes.heads), initializers.lecun_normal())
        return {"strength_kernel": kernel, "strength_bias": Parameter((sizes.heads,), initializers.zeros)}

    def gates(self, params: Params, source: jax.Array) -> jax.Array:
        """Computes β."""
        logits = source @ params["strength_kernel"] + lift(params["strength_bias"], source.ndim)
        return self.strongest * jax.nn.sigmoid(logits)

    def write(self, params: Params, state: jax.Array, key: jax.Array, value: jax.Array, gates: jax.Array) -> jax.Array:
        """Computes W + β (v − W φ(k)) φ(k)ᵀ."""
        feature = unit(jax.nn.silu(key))
        return state + gates * jnp.outer(value - state @ feature, feature)

    def read(self, params: Params, state: jax.Array, query: jax.Array) -> jax.Array:
        """Computes W φ(q)."""
        return state @ unit(jax.nn.silu(query))

    def writes(self, params: Params, query: jax.Array, key: Any, value: jax.Array) -> tuple[Any, ...]:
        """Writes each value less the value that W already stores for the key."""
        return unit(jax.nn.silu(query)), unit(jax.nn.silu(key[0])), value, key[1], None
