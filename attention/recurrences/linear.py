"""Linear attention and fast weights: a running state instead of scores for all pairs.

Both keep `W = Σ_j u_j φ(k_j)ᵀ` and read `W φ(q)`. Linear attention writes u_j = v_j. The delta rule writes only the
difference from the value that W already stores for k_j, u_j = β_j (v_j − W φ(k_j)).
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.nn import initializers
from jaxtyping import Array, Float, PRNGKeyArray

from attention import operations
from attention import reference as definitions
from attention.errors import UnsupportedError, UsageError, unknown
from attention.kernels import state
from attention.kernels.call import check_implementation, check_shapes, check_weight
from attention.kernels.reference import precise, spread_heads
from attention.mask import Mask
from attention.score import Parameter, Params, Score, Sizes, check_flags

FEATURES = {"elu": definitions.elu_feature, "relu": jax.nn.relu, "identity": lambda x: x}
IMPLEMENTATIONS = ("reference", "xla", "chunked")
HONOURED = {"causal", "key_lengths"}


def linear_attention(
    query: Float[Array, "*B T N H"],
    key: Float[Array, "*B S K H"],
    value: Float[Array, "*B S K V"],
    *,
    feature: str = "elu",
    normalise: bool = True,
    mask: Mask | None = None,
    bias: None = None,
    dropout_rate: float = 0.0,
    dropout_key: PRNGKeyArray | None = None,
    return_weights: bool = False,
    implementation: str = "auto",
) -> Float[Array, "*B T N V"]:
    """Returns Σ_j φ(q)·φ(k_j) v_j / Σ_j φ(q)·φ(k_j) (Katharopoulos et al. 2020, eq. 4; Wikipedia).

    With `feature='identity', normalise=False` it is the fast weight controller of Schmidhuber (1992), also called the
    unnormalised linear Transformer.

    Args:
      query: Queries `(*B, T, N, H)`.
      key: Keys `(*B, S, K, H)`; K divides N.
      value: Values `(*B, S, K, V)`.
      feature: φ: `elu` (elu + 1), `relu` or `identity`.
      normalise: Whether to divide by the sum of the weights; not with `identity`, whose sum may be 0.
      mask: Only causal masks and key lengths are honoured. Without causal, all keys are written before any query reads.
      bias: Must be None, because there are no scores.
      dropout_rate: Must be 0, because there are no weights.
      dropout_key: Unused.
      return_weights: Must be False.
      implementation: `auto`, `chunked` (a running state, linear in the length; causal needs T = S), `xla` (all
        pairs at once) or `reference`.

    Returns:
      The output `(*B, T, N, V)`.

    Raises:
      UsageError: the shapes do not fit, a name is unknown, the mask is of another kind, or the sum may be 0.
      UnsupportedError: a bias, dropout or weights are requested, or the implementation does not support this call.
    """
    check_shapes(query, key, value)
    score = LinearAttention(feature, normalise)
    key, value = _reached(query, key, value, mask)
    options = {"bias": bias, "dropout_rate": dropout_rate, "return_weights": return_weights}
    options |= {"mask": mask, "implementation": implementation, "dropout_key": dropout_key}
    return score.attend({}, query, score.prepare_key({}, key, key, implementation), value, **options)


def delta_attention(
    query: Float[Array, "*B T N H"],
    key: Float[Array, "*B S K H"],
    value: Float[Array, "*B S K V"],
    strength: Float[Array, "*B S K"],
    *,
    mask: Mask | None = None,
    bias: None = None,
    dropout_rate: float = 0.0,
    dropout_key: PRNGKeyArray | None = None,
    return_weights: bool = False,
    implementation: str = "auto",
) -> Float[Array, "*B T N V"]:
    """Updates W ← W + β (v − W φ(k)) φ(k)ᵀ key by key and returns W φ(q) (Schlag et al. 2021, eq. 23 to 25).

    φ is SiLU divided by its norm (Yang et al. 2024), so β = 1 replaces the value that W stores for a key and β = 0
    keeps it.

    Args:
      query: Queries `(*B, T, N, H)`.
      key: Keys `(*B, S, K, H)`; K divides N.
      value: Values `(*B, S, K, V)`.
      strength: β, in [0, 1], `(*B, S, K)`.
      mask: Only causal masks and key lengths are honoured. Without causal, all keys are written before any query reads.
      bias: Must be None, because there are no scores.
      dropout_rate: Must be 0, because there are no weights.
      dropout_key: Unused.
      return_weights: Must be False.
      implementation: `auto`, `chunked` (a running state, linear in the length; causal needs T = S), `xla` (all
        pairs at once) or `reference`.

    Returns:
      The output `(*B, T, N, V)`.

    Raises:
      UsageError: the shapes do not fit, a name is unknown, or the mask is of another kind.
      UnsupportedError: a bias, dropout or weights are requested, or the implementation does not support this call.
    """
    check_shapes(query, key, value)
    check_weight("strength", strength, key.shape[:-1])
    key, value = _reached(query, key, value, mask)
    strength = (mask or Mask()).without_unreachable(strength, query.shape[-3], query.ndim)
    options = {"bias": bias, "dropout_rate": dropout_rate, "return_weights": return_weights}
    options |= {"mask": mask, "implementation": implementation, "dropout_key": dropout_key}
    return Delta().attend({}, query, (key, strength), value, **options)


def _reached(query: jax.Array, key: jax.Array, value: jax.Array, mask: Mask | None) -> tuple[jax.Array, jax.Array]:
    return tuple((mask or Mask()).without_unreachable(x, query.shape[-3], query.ndim) for x in (key, value))


class Recurrence(Score):
    """Base of linear attention and the delta rule."""

    title: ClassVar[str]  # its name in errors
    normaliser = "none"
    implementations = IMPLEMENTATIONS

    def writes(self, query: jax.Array, key: Any, value: jax.Array, mask: Mask) -> state.Writes:
        """Returns φ(q), φ(k), the values to write and β; keys beyond `key_lengths` write nothing."""
        raise NotImplementedError

    def define(self, query: jax.Array, key: Any, value: jax.Array, mask: Mask) -> jax.Array:
        """Returns the output `(*B, T, N, V)` of the definition in `attention.reference`."""
        raise NotImplementedError

    def attend(
        self,
        params: Params,
        query: Any,
        key: Any,
        value: Any,
        *,
        mask: Mask | None,
        implementation: str,
        bias: Any = None,
        dropout_rate: float = 0.0,
        dropout_key: Any = None,
        return_weights: bool = False,
    ) -> jax.Array:
        """Returns the output `(*B, T, N, V)`."""
        _, block = check_implementation(implementation, IMPLEMENTATIONS, self.title)
        if block:
            raise UnsupportedError(
                f"{self.title} has no tiles of queries and keys; give the implementation 'chunked' alone."
            )
        asked = {"bias": bias is not None, "attention dropout": dropout_rate > 0, "weights": return_weights}
        for what, is_asked in asked.items():
            if is_asked:
                raise UnsupportedError(
                    f"{self.title} has no {what}: it keeps a running state and never scores a pair; ask for none."
                )
        mask = mask or Mask()
        mask.require(HONOURED, by=self.title)
        if implementation == "reference":
            return self.define(query, key, value, mask).astype(value.dtype)
        writes = self.writes(query, key, value, mask)
        stepwise = not mask.causal or mask.in_step(writes.query.shape[-2], writes.key.shape[-2])
        if implementation == "chunked" and not stepwise:
            raise UnsupportedError(
                f"implementation='chunked' of causal {self.title} needs as many queries as keys from position 0; "
                "use 'xla'."
            )
        compute = state.all_pairs if implementation == "xla" or not stepwise else state.in_chunks
        return self.read(compute(writes, mask)).astype(value.dtype)

    def advance(
        self, params: Params, query: Any, key: Any, value: Any, before: Any, mask: Mask
    ) -> tuple[jax.Array, Any]:
        """Returns the causal output of the next tokens and the state after them."""
        mask.require(HONOURED, by=self.title)
        out, after = state.from_state(self.writes(query, key, value, mask), before)
        return self.read(out).astype(value.dtype), after

    def read(self, out: jax.Array) -> jax.Array:
        """Returns the output, given the values read from the state."""
        return out

    def start(self, sizes: Sizes, batch: tuple[int, ...], dtype: Any) -> jax.Array:
        """Returns an empty W, `(*B, N, V, H)`, at least in float32."""
        return jnp.zeros((*batch, sizes.heads, sizes.head, sizes.head), jnp.promote_types(dtype, jnp.float32))

    def cost(self, sizes: Sizes, queries: int, keys: int) -> operations.Cost:
        """Returns the cost of an outer product for each key and a product with the state for each query."""
        return operations.running_state(queries, keys, sizes.heads, sizes.head)


@dataclasses.dataclass(frozen=True)
class LinearAttention(Recurrence):
    """Weights φ(q)·φ(k), divided by their sum.

    Attributes:
      feature: φ: `elu` (elu + 1), `relu` or `identity`.
      normalise: Whether to divide by the sum.
    """

    feature: str = "elu"
    normalise: bool = True
    title = "Linear attention"

    def __post_init__(self):
        if self.feature not in tuple(FEATURES):
            raise unknown("feature of linear attention", self.feature, FEATURES)
        check_flags(self, "normalise")
        if self.normalise and self.feature == "identity":
            raise UsageError("Linear attention with feature='identity' may divide by 0; say normalise=False too.")

    @property
    def normaliser(self) -> str:
        """Returns `sum`, or `none` if weights are not divided by their sum."""
        return "sum" if self.normalise else "none"

    def writes(self, query: jax.Array, key: Any, value: jax.Array, mask: Mask) -> state.Writes:
        """Writes the values with a column of ones, whose sums are the divisors."""
        feature = FEATURES[self.feature]
        if self.normalise:
            value = jnp.concatenate([value, jnp.ones((*value.shape[:-1], 1), value.dtype)], axis=-1)
        return state.Writes.of(feature(precise(query)), feature(precise(key)), value, None, mask)

    def read(self, out: jax.Array) -> jax.Array:
        """Returns the values divided by the sum of weights; zeros where that is 0."""
        if not self.normalise:
            return out
        total = out[..., -1:]
        return out[..., :-1] / jnp.where(total == 0, 1.0, total)

    def define(self, query: jax.Array, key: Any, value: jax.Array, mask: Mask) -> jax.Array:
        """Computes `attention.reference.linear_head` for each head."""
        query, key, value = state.by_head(query, key, value)
        *batch, queries, _ = query.shape
        allowed = mask.materialise(queries, key.shape[-2], query.ndim)
        allowed = jnp.broadcast_to(True if allowed is None else allowed, (*batch, queries, key.shape[-2]))

        def head(query, key, value, allowed):
            return definitions.linear_head(query, key, value, allowed, FEATURES[self.feature], self.normalise)

        for _ in batch:
            head = jax.vmap(head)
        return jnp.moveaxis(head(query, key, value, allowed), -3, -2)

    def cost(self, sizes: Sizes, queries: int, keys: int) -> operations.Cost:
        """Returns the cost with the column of sums and the division."""
        columns = sizes.head + self.normalise
        state = operations.running_state(queries, keys, sizes.heads, sizes.head, columns=columns)
        return state + operations.Cost(pointwise=queries * sizes.heads * sizes.head) * self.normalise

    def start(self, sizes: Sizes, batch: tuple[int, ...], dtype: Any) -> jax.Array:
        """Returns an empty W, with a row for the sum of the features."""
        shape = (*batch, sizes.heads, sizes.head + self.normalise, sizes.head)
        return jnp.zeros(shape, jnp.promote_types(dtype, jnp.float32))


@dataclasses.dataclass(frozen=True)
class Delta(Recurrence):
    """Fast weights written by the delta rule, with β = sigmoid(W_β x + b) for each head."""

    title = "Delta attention"
    ties_values = False

    def parameters(self, sizes: Sizes) -> dict[str, Parameter]:
        """Returns W_β and its bias."""
        kernel = Parameter((sizes.model, sizes.heads), initializers.lecun_normal())
        return {"strength_kernel": kernel, "strength_bias": Parameter((sizes.heads,), initializers.zeros)}

    def prepare_key(self, params: Params, key: jax.Array, source: jax.Array, implementation: str) -> Any:
        """Returns the key and its β."""
        bias = params["strength_bias"].reshape((1,) * (source.ndim - 1) + (-1,))
        return key, jax.nn.sigmoid(source @ params["strength_kernel"] + bias)

    def writes(self, query: jax.Array, key: Any, value: jax.Array, mask: Mask) -> state.Writes:
        """Writes each value less the value that W already stores for the key."""
        key, strength = key
        return state.Writes.of(_silu_unit(query), _silu_unit(key), value, strength, mask)

    def define(self, query: jax.Array, key: Any, value: jax.Array, mask: Mask) -> jax.Array:
        """Computes `attention.reference.delta_head` for each head."""
        key, strength = key
        query, key, value = state.by_head(query, key, value)
        *batch, queries, _ = query.shape
        keys = key.shape[-2]
        strength = spread_heads(precise(strength)[..., None], query.shape[-3])[..., 0]
        if mask.key_lengths is not None:
            strength = jnp.where(mask.real_keys(keys)[..., None], strength, 0.0)
        written = (
            jnp.clip(mask.query_offset + jnp.arange(queries) + 1, 0, keys) if mask.causal else jnp.full(queries, keys)
        )
        head = definitions.delta_head
        for _ in batch:
            head = jax.vmap(head, in_axes=(0, 0, 0, 0, None))
        return jnp.moveaxis(head(query, key, value, jnp.moveaxis(strength, -1, -2), written), -3, -2)

    def cost(self, sizes: Sizes, queries: int, keys: int) -> operations.Cost:
        """Returns the cost with another product with the state for each key, and β."""
        strength = operations.linear(keys, sizes.model, sizes.heads)
        return super().cost(sizes, queries, 2 * keys) + strength


def _silu_unit(x: jax.Array) -> jax.Array:
    return definitions.unit(jax.nn.silu(precise(x)))
