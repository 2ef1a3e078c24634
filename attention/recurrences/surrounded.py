"""What published layers have around a recurrence: short convolutions before it, and a gated norm behind it."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.nn import initializers

from attention.activations import inverse_rms
from attention.errors import unknown
from attention.forms import Tokens
from attention.kernels.reference import precise, spread_heads
from attention.mask import Mask
from attention.options import Options
from attention.parameters import Parameter, Params, Positive, Size, Sizes, lift
from attention.recurrences.recurrence import Recurrence

PARTS = ("query", "key", "value")
GATES = ("norm_first", "gate_first")


@dataclasses.dataclass(frozen=True)
class Surrounded(Recurrence):
    """A recurrence with what published layers have around it, where its options ask for that.

    Attributes:
      conv: The tokens of a causal convolution of each number of each head's queries, keys and values, before their
        SiLU; 0 means none. The state then keeps the last tokens too.
      gate: What follows the output o of a head: `norm_first` is norm(o) silu(W x), as in Qwen3-Next; `gate_first` is
        norm(o silu(W x)), as in Mamba-2, with a learned scale of the norm; '' means neither.
      epsilon: ε of that norm.
      skip: Whether the value of the query's token times a learned number of each head is added to the output before
        that, as in Mamba-2.
    """

    conv: Size = dataclasses.field(default=0, kw_only=True)
    gate: str = dataclasses.field(default="", kw_only=True)
    epsilon: Positive = dataclasses.field(default=1e-6, kw_only=True)
    skip: bool = dataclasses.field(default=False, kw_only=True)
    silent: ClassVar[tuple[str, ...]] = ()  # the parts whose SiLU `write` and `read` have
    title = ""

    def __post_init__(self):
        super().__post_init__()
        if self.gate and self.gate not in GATES:
            raise unknown("gate of a recurrence", self.gate, GATES)

    @property
    def cross(self) -> bool:
        """Returns whether it supports cross-attention: not where it looks at the query's own token or those before."""
        return not (self.conv or self.gate or self.skip)

    def surroundings(self, sizes: Sizes) -> dict[str, Parameter]:
        """Returns the arrays of convolutions, gate, norm and skip."""
        width = sizes.heads, sizes.head
        taps = Parameter((self.conv, *width), initializers.variance_scaling(1 / 3, "fan_in", "uniform", 0, (), (1, 2)))
        bias = Parameter(width, initializers.zeros)
        around = {f"{part}_{name}": p for part in PARTS for name, p in (("taps", taps), ("taps_bias", bias))}
        gate = Parameter((sizes.model, *width), initializers.lecun_normal(in_axis=0, out_axis=(1, 2)))
        behind = {"gate_kernel": gate, "gate_scale": Parameter((sizes.head,), initializers.ones)}
        skip = {"skip": Parameter((sizes.heads,), initializers.ones)}
        return (around if self.conv else {}) | (behind if self.gate else {}) | (skip if self.skip else {})

    def prepare_query(self, params: Params, query: jax.Array, at: Tokens) -> Any:
        """Returns the queries, and W x if there is a gate."""
        turned = super().prepare_query(params, query, at)
        if not self.gate:
            return turned
        return turned, jnp.tensordot(at.source, params["gate_kernel"].astype(at.source.dtype), 1)

    def start(self, sizes: Sizes, batch: tuple[int, ...], dtype: Any) -> Any:
        """Returns empty states, and zeros for the tokens before the first."""
        empty = super().start(sizes, batch, dtype)
        if not self.conv:
            return empty
        tokens = jnp.zeros((*batch, self.conv - 1, sizes.heads, sizes.head), jnp.promote_types(dtype, jnp.float32))
        return empty, dict.fromkeys(PARTS, tokens)

    def attend(self, params: Params, query: Any, key: Any, value: jax.Array, options: Options) -> Any:
        """Returns the output, and `weights` of the convolved values, without the skip, if the options ask for them."""
        query, gate = query if self.gate else (query, None)
        if self.conv:
            query, key, value = self._convolved(params, query, key, value, {})[0]
            value = options.mask.without_unreachable(value, query.shape[-3], value.ndim)
        found = super().attend(params, query, key, value, options)
        rows = options.mask.query_offset + jnp.arange(query.shape[-3])
        own = jnp.take(value, rows, axis=-3, mode="fill", fill_value=0) if self.skip else None
        if options.return_weights:
            return self._behind(params, found[0], own, gate), found[1]
        return self._behind(params, found, own, gate)

    def advance(self, params: Params, query: Any, key: Any, value: Any, before: Any, mask: Mask) -> tuple[Any, Any]:
        """Returns the causal output of the next tokens, and the states and last tokens after them."""
        query, gate = query if self.gate else (query, None)
        last = None
        if self.conv:
            before, last = before
            (query, key, value), last = self._convolved(params, query, key, value, last)
        out, after = super().advance(params, query, key, value, before, mask)
        return self._behind(params, out, value, gate), (after, last) if self.conv else after

    def _convolved(
        self, params: Params, query: jax.Array, key: Any, value: jax.Array, last: dict[str, jax.Array]
    ) -> tuple[tuple[Any, ...], dict[str, jax.Array]]:
        """Returns convolved queries, keys with gates, and values, given the tokens before; and the last tokens."""
        keys, gates = key if isinstance(key, tuple) else (key, None)
        done, after = {}, {}
        for part, x in zip(PARTS, (query, keys, value), strict=True):
            x = spread_heads(x, query.shape[-2])
            lead = last.get(part, jnp.zeros((*x.shape[:-3], self.conv - 1, *x.shape[-2:]), x.dtype))
            wide = jnp.concatenate([lead, precise(x)], axis=-3)
            rows = [jax.lax.slice_in_dim(wide, tap, tap + x.shape[-3], axis=-3) for tap in range(self.conv)]
            out = sum(row * lift(tap, x.ndim) for row, tap in zip(rows, params[f"{part}_taps"], strict=True))
            out += lift(params[f"{part}_taps_bias"], x.ndim)
            done[part] = (out if part in self.silent else jax.nn.silu(out)).astype(x.dtype)
            after[part] = wide[..., x.shape[-3] :, :, :]
        return (done["query"], done["key"] if gates is None else (done["key"], gates), done["value"]), after

    def _behind(self, params: Params, out: jax.Array, value: jax.Array | None, gate: jax.Array | None) -> jax.Array:
        """Returns the output of the heads after the skip and the gated norm."""
        wide = precise(out)
        if self.skip:
            wide += lift(params["skip"][:, None], out.ndim) * spread_heads(value, out.shape[-2])
        if gate is None:
            return wide.astype(out.dtype)
        factor = jax.nn.silu(precise(gate))
        wide = wide * factor if self.gate == "gate_first" else wide
        wide = wide * inverse_rms(wide, self.epsilon) * lift(params["gate_scale"], out.ndim)
        return (wide * factor if self.gate == "norm_first" else wide).astype(out.dtype)
