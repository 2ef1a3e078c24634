"""Linear attention and fast weights: a running state instead of scores for all pairs.

Both keep `W = Σ_j u_j φ(k_j)ᵀ` and read `W φ(q)`. Linear attention writes u_j = v_j. The delta rule writes only the
difference from the value that W already stores for k_j, u_j = β_j (v_j − W φ(k_j)).
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.nn import initializers
from jaxtyping import Array, Float

from attention import operations
from attention.activations import unit
from attention.errors import UnsupportedError, UsageError, unknown
from attention.forms import Tokens
from attention.kernels import state
from attention.kernels.call import check_shapes, check_weight
from attention.kernels.reference import precise
from attention.mask import Mask
from attention.options import Options, takes_options
from attention.parameters import Parameter, Params, Sizes
from attention.recurrences.recurrence import HONOURED, Recurrence
from attention.score import attend

FEATURES = {"elu": lambda x: jax.nn.elu(x) + 1, "relu": jax.nn.relu, "identity": lambda x: x}


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
    """Returns Σ_j φ(q)·φ(k_j) v_j / Σ_j φ(q)·φ(k_j) (Katharopoulos et al. 2020, eq. 4; Wikipedia).

    With `feature='identity', normalise=False` it is the fast weight controller of Schmidhuber (1992), also called the
    unnormalised linear Transformer.

    Args:
      query: Queries `(*B, T, N, H)`.
      key: Keys `(*B, S, K, H)`; K divides N.
      value: Values `(*B, S, K, V)`.
      feature: φ: `elu` (elu + 1), `relu` or `identity`.
      normalise: Whether to divide by the sum of the weights; not with `identity`, whose sum may be 0.
      **options: The fields of `attention.options.Options`. Of masks only causal ones and key lengths are honoured.
        There are no bias and no dropout, because there are no scores. Weights are the share of each value in each
        output. The implementations are `auto`, `chunked` (a running state, linear in the length; causal needs T = S),
        `xla` (all pairs at once) and `reference`.

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
      strength: β, in [0, 1], `(*B, S, K)`.
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


class _Parallel(Recurrence):
    """A recurrence whose state is W = Σ_j u_j φ(k_j)ᵀ, which `attention.kernels.state` computes in parallel."""

    parallel = ("xla", "chunked")

    def writes(self, query: jax.Array, key: Any, value: jax.Array, mask: Mask) -> state.Writes:
        """Returns φ(q), φ(k), the values to write and β; keys beyond `key_lengths` write nothing."""
        raise NotImplementedError

    def divided(self, out: jax.Array) -> jax.Array:
        """Returns the output, given the values read from the state."""
        return out

    def in_parallel(
        self, params: Params, query: Any, key: Any, value: Any, mask: Mask, implementation: str
    ) -> jax.Array | None:
        """Returns the output for all pairs at once (`xla`) or chunk by chunk."""
        writes = self.writes(query, key, value, mask)
        stepwise = not mask.causal or mask.in_step(writes.query.shape[-2], writes.key.shape[-2])
        if implementation == "chunked" and not stepwise:
            raise UnsupportedError(
                f"implementation='chunked' of causal {self.title} needs as many queries as keys from position 0; "
                "use 'xla'."
            )
        compute = state.all_pairs if implementation == "xla" or not stepwise else state.in_chunks
        return self.divided(compute(writes, mask))

    def advance(self, params: Params, query: Any, key: Any, value: Any, before: Any, mask: Mask) -> tuple[Any, Any]:
        """Returns the causal output of the next tokens and the state after them."""
        mask.require(HONOURED, by=self.title)
        out, after = state.from_state(self.writes(query, key, value, mask), before)
        return self.divided(out).astype(value.dtype), after

    def begin(self, head: int, value: int) -> jax.Array:
        """Returns an empty W, `(V, H)`."""
        return jnp.zeros((value, head))

    def cost(self, sizes: Sizes, queries: int, keys: int) -> operations.Cost:
        """Returns the cost of an outer product for each key and a product with the state for each query."""
        return operations.running_state(queries, keys, sizes.heads, sizes.head)


@dataclasses.dataclass(frozen=True)
class LinearAttention(_Parallel):
    """Weights φ(q)·φ(k), divided by their sum.

    Attributes:
      feature: φ: `elu` (elu + 1), `relu` or `identity`.
      normalise: Whether to divide by the sum.
    """

    feature: str = "elu"
    normalise: bool = True
    title = "Linear attention"
    ties_values = True

    def __post_init__(self):
        super().__post_init__()
        if self.feature not in tuple(FEATURES):
            raise unknown("feature of linear attention", self.feature, FEATURES)
        if self.normalise and self.feature == "identity":
            raise UsageError("Linear attention with feature='identity' may divide by 0; say normalise=False too.")

    @property
    def normalises(self) -> str:
        """Returns `sum`, or `none` if weights are not divided by their sum."""
        return "sum" if self.normalise else "none"

    def prepare_key(self, params: Params, key: jax.Array, at: Tokens) -> jax.Array:
        """Returns the keys, because no gates are needed."""
        return at.turn(key)

    def begin(self, head: int, value: int) -> jax.Array:
        """Returns an empty W, with a row for the sum of the features."""
        return jnp.zeros((value + self.normalise, head))

    def write(self, params: Params, state: jax.Array, key: jax.Array, value: jax.Array, gates: None) -> jax.Array:
        """Returns W + v φ(k)ᵀ."""
        return state + jnp.outer(self._with_one(value), FEATURES[self.feature](key))

    def read(self, params: Params, state: jax.Array, query: jax.Array) -> jax.Array:
        """Returns W φ(q), divided by the sum of the weights."""
        return self.divided(state @ FEATURES[self.feature](query))

    def writes(self, query: jax.Array, key: Any, value: jax.Array, mask: Mask) -> state.Writes:
        """Writes the values with a column of ones, whose sums are the divisors."""
        feature = FEATURES[self.feature]
        return state.Writes.of(feature(precise(query)), feature(precise(key)), self._with_one(value), None, mask)

    def _with_one(self, value: jax.Array) -> jax.Array:
        ones = jnp.ones((*value.shape[:-1], 1), value.dtype)
        return jnp.concatenate([value, ones], axis=-1) if self.normalise else value

    def divided(self, out: jax.Array) -> jax.Array:
        """Returns the values divided by the sum of weights; zeros where that is 0."""
        if not self.normalise:
            return out
        total = out[..., -1:]
        return out[..., :-1] / jnp.where(total == 0, 1.0, total)

    def cost(self, sizes: Sizes, queries: int, keys: int) -> operations.Cost:
        """Returns the cost with the column of sums and the division."""
        columns = sizes.head + self.normalise
        state = operations.running_state(queries, keys, sizes.heads, sizes.head, columns=columns)
        return state + operations.Cost(pointwise=queries * sizes.heads * sizes.head) * self.normalise


@dataclasses.dataclass(frozen=True)
class Delta(_Parallel):
    """Fast weights written by the delta rule, with β = sigmoid(W_β x + b) for each head."""

    title = "Delta attention"

    def parameters(self, sizes: Sizes) -> dict[str, Parameter]:
        """Returns W_β and its bias."""
        kernel = Parameter((sizes.model, sizes.heads), initializers.lecun_normal())
        return {"strength_kernel": kernel, "strength_bias": Parameter((sizes.heads,), initializers.zeros)}

    def gates(self, params: Params, source: jax.Array) -> jax.Array:
        """Returns β."""
        bias = params["strength_bias"].reshape((1,) * (source.ndim - 1) + (-1,))
        return jax.nn.sigmoid(source @ params["strength_kernel"] + bias)

    def write(self, params: Params, state: jax.Array, key: jax.Array, value: jax.Array, gates: jax.Array) -> jax.Array:
        """Returns W + β (v − W φ(k)) φ(k)ᵀ."""
        feature = _silu_unit(key)
        return state + gates * jnp.outer(value - state @ feature, feature)

    def read(self, params: Params, state: jax.Array, query: jax.Array) -> jax.Array:
        """Returns W φ(q)."""
        return state @ _silu_unit(query)

    def writes(self, query: jax.Array, key: Any, value: jax.Array, mask: Mask) -> state.Writes:
        """Writes each value less the value that W already stores for the key."""
        key, strength = key
        return state.Writes.of(_silu_unit(query), _silu_unit(key), value, strength, mask)

    def cost(self, sizes: Sizes, queries: int, keys: int) -> operations.Cost:
        """Returns the cost with another product with the state for each key, and β."""
        strength = operations.linear(keys, sizes.model, sizes.heads)
        return super().cost(sizes, queries, 2 * keys) + strength


def _silu_unit(x: jax.Array) -> jax.Array:
    return unit(jax.nn.silu(precise(x)))
