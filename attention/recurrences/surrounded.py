"""What published layers have around a recurrence: short convolutions before it, and a gated norm behind it."""

import dataclasses
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
from jax.nn import initializers

from attention.activations import inverse_rms
from attention.errors import UsageError
from attention.forms import Tokens
from attention.kernels.arrays import precise, spread_heads
from attention.kernels.call import check_shapes
from attention.mask import Mask
from attention.options import Options
from attention.parameters import Parameter, Params, Sizes, lift
from attention.recurrences.recurrence import CHUNKED, Recurrence
from attention.recurrences.state import Marks
from attention.score import Traits
from attention.types import Names, Positive, Sentinel, Size

PARTS = ("query", "key", "value")
GATES = ("norm_first", "gate_first")


@dataclasses.dataclass(frozen=True)
class Surrounded(Recurrence):
    """A recurrence with what published layers have around it, where its options ask for that.

    Attributes:
      conv: The tokens of a causal convolution of each number of each head's queries, keys and values, before their
        SiLU; 0 means none. The state then keeps the last tokens too.
      gate: What follows the output o of a head: `norm_first` is norm(o) silu(W x), as in Qwen3-Next; `gate_first` is
        norm(o silu(W x)), as in Mamba-2, with a learned scale of the norm; '' means neither. The norm is of a head; of
        all heads of a group, if `gate_first` has groups.
      epsilon: ε of that norm.
      skip: Whether the value of the query's token times a learned number of each head is added to the output before
        that, as in Mamba-2.
      groups: G, how many queries and keys a token has, each for the values of N/G heads, as in Mamba-2 and Qwen3-Next;
        0 means one for each head.
      state: P, how wide queries and keys are; 0 means as wide as values.
    """

    conv: Size = dataclasses.field(default=0, kw_only=True)
    gate: Annotated[str, Names(GATES), Sentinel("", "none")] = dataclasses.field(default="", kw_only=True)
    epsilon: Positive = dataclasses.field(default=1e-6, kw_only=True)
    skip: bool = dataclasses.field(default=False, kw_only=True)
    groups: Size = dataclasses.field(default=0, kw_only=True)
    state: Size = dataclasses.field(default=0, kw_only=True)
    silent: ClassVar[tuple[str, ...]] = ()  # the parts whose SiLU `write` and `read` have
    title = ""

    @property
    def traits(self) -> Traits:
        """Restricts it to one sequence if it looks at the query's own token or those before."""
        return dataclasses.replace(CHUNKED, one_sequence=bool(self.conv or self.gate or self.skip))

    def widths(self, heads: int, groups: int, head: int) -> dict[str, tuple[int, int]]:
        """See `Mixer`.

        Raises:
          UsageError: the groups do not divide the heads, or there are fewer heads of values.
        """
        if self.groups and heads % self.groups:
            raise UsageError(f"groups={self.groups} does not divide {heads} heads; choose a divisor.")
        if self.groups and groups != heads:
            raise UsageError(f"groups={self.groups} are of queries and keys with a value a head; leave out kv_heads.")
        wide = self.state or head
        return {"query": (self.groups or heads, wide), "key": (self.groups or groups, wide)}

    def check_shapes(self, query: jax.Array, key: jax.Array, value: jax.Array) -> None:
        """Raises UsageError unless the arrays fit together, values `(*B, S, N, V)` with keys of their groups."""
        check_shapes(query, key, key if self.groups else value)
        heads, head = value.shape[-2:]
        alone = query.shape[-2], self.state or query.shape[-1]
        wanted = self.widths(heads, heads, head)["query"] if self.groups else alone
        if query.shape[-2:] != wanted or key.shape[-3] != value.shape[-3]:
            shapes = f"query {query.shape}, key {key.shape}, value {value.shape}"
            raise UsageError(f"Queries and keys must end in {wanted}, and keys be as many as values: {shapes}.")

    def surroundings(self, sizes: Sizes) -> dict[str, Parameter]:
        """Declares the arrays of convolutions, gate, norm and skip."""
        width = sizes.heads, sizes.head
        around = {}
        for part, wide in self._convolves(sizes).items():
            init = initializers.variance_scaling(1 / 3, "fan_in", "uniform", 0, (), (1, 2))
            around |= {f"{part}_taps": Parameter((self.conv, *wide), init)}
            around |= {f"{part}_taps_bias": Parameter(wide, initializers.zeros)}
        gate = Parameter((sizes.model, *width), initializers.lecun_normal(in_axis=0, out_axis=(1, 2)))
        scale = Parameter(width if self._norms_groups else width[1:], initializers.ones)
        behind = {"gate_kernel": gate, "gate_scale": scale}
        skip = {"skip": Parameter((sizes.heads,), initializers.ones)}
        return (around if self.conv else {}) | (behind if self.gate else {}) | (skip if self.skip else {})

    def _convolves(self, sizes: Sizes) -> dict[str, tuple[int, int]]:
        """Lists what is convolved, with the number of its heads and their width."""
        return self.widths(sizes.heads, sizes.heads, sizes.head) | {"value": (sizes.heads, sizes.head)}

    @property
    def _norms_groups(self) -> bool:
        return self.gate == "gate_first" and self.groups > 0

    def prepare_query(self, params: Params, query: jax.Array, at: Tokens) -> Any:
        """Gives the queries, and W x if there is a gate."""
        turned = super().prepare_query(params, query, at)
        if not self.gate:
            return turned
        return turned, jnp.tensordot(at.source, params["gate_kernel"].astype(at.source.dtype), 1)

    def start(self, sizes: Sizes, batch: tuple[int, ...], dtype: Any) -> Any:
        """Makes empty states, and zeros for the tokens before the first."""
        empty = super().start(sizes, batch, dtype)
        if not self.conv:
            return empty
        kind = jnp.promote_types(dtype, jnp.float32)
        wide = self._convolves(sizes).items()
        return empty, {part: jnp.zeros((*batch, self.conv - 1, *shape), kind) for part, shape in wide}

    def attend(self, params: Params, query: Any, key: Any, value: jax.Array, options: Options) -> Any:
        """Computes the output, and `weights` of the convolved values, without the skip, if the options ask for them."""
        query, gate = query if self.gate else (query, None)
        if self.conv:
            marks = Marks.of(options.mask, 0, value.shape[-3])
            query, key, value = self._convolved(params, query, key, value, {}, marks)[0]
            value = options.mask.without_unreachable(value, query.shape[-3], value.ndim)
        query = self._spread(query, value)
        found = super().attend(params, query, key, value, options)
        own = options.mask.at_queries(value, query.shape[-3], -3) if self.skip else None
        if options.return_weights:
            return self._behind(params, found[0], own, gate), found[1]
        return self._behind(params, found, own, gate)

    def advance(self, params: Params, query: Any, key: Any, value: Any, state: Any, mask: Mask) -> tuple[Any, Any]:
        """Computes the causal output of the next tokens, and the states and last tokens after them."""
        query, gate = query if self.gate else (query, None)
        last = None
        if self.conv:
            state, last = state or (None, {})
            marks = Marks.of(mask, mask.query_offset, value.shape[-3])
            (query, key, value), last = self._convolved(params, query, key, value, last, marks)
        query = self._spread(query, value)
        out, after = super().advance(params, query, key, value, state, mask)
        return self._behind(params, out, value, gate), (after, last) if self.conv else after

    def _spread(self, query: jax.Array, value: jax.Array) -> jax.Array:
        return spread_heads(query, value.shape[-2]) if self.groups else query

    def _convolved(
        self, params: Params, query: Any, key: Any, value: jax.Array, last: dict[str, jax.Array], marks: Marks
    ) -> tuple[tuple[Any, ...], dict[str, jax.Array]]:
        """Convolves queries, keys with gates, and values, given the tokens before; also gives the last tokens."""
        keys, gates = key
        done, after = {}, {}
        runs = marks.runs(self.conv - 1)
        for part, x in zip(PARTS, (query, keys, value), strict=True):
            x = spread_heads(x, params[f"{part}_taps"].shape[-2])
            lead = last.get(part, jnp.zeros((*x.shape[:-3], self.conv - 1, *x.shape[-2:]), x.dtype))
            wide = jnp.concatenate([lead, precise(x)], axis=-3)
            out = convolved(wide, params[f"{part}_taps"], runs) + lift(params[f"{part}_taps_bias"], x.ndim)
            done[part] = (out if part in self.silent else jax.nn.silu(out)).astype(x.dtype)
            after[part] = _seen(wide, x.shape[-3], self.conv - 1, runs, slice(-1, None))
        return (done["query"], (done["key"], gates), done["value"]), after

    def _behind(self, params: Params, out: jax.Array, value: jax.Array | None, gate: jax.Array | None) -> jax.Array:
        """Adds the skip to the heads' output, and applies the gated norm."""
        wide = precise(out)
        if self.skip:
            wide += lift(params["skip"][:, None], out.ndim) * spread_heads(value, out.shape[-2])
        if gate is None:
            return wide.astype(out.dtype)
        factor = jax.nn.silu(precise(gate))
        wide = wide * factor if self.gate == "gate_first" else wide
        normed = wide.reshape(*wide.shape[:-2], self.groups, -1) if self._norms_groups else wide
        wide = (normed * inverse_rms(normed, self.epsilon)).reshape(wide.shape)
        wide *= lift(params["gate_scale"], out.ndim)
        return (wide * factor if self.gate == "norm_first" else wide).astype(out.dtype)


def convolved(wide: jax.Array, taps: jax.Array, runs: jax.Array | None) -> jax.Array:
    """Convolves each number of tokens `(*B, L, N, H)` with taps `(n, N, H)`, which gives L − n + 1 tokens.

    Of the n tokens, those outside the last one's run of its segment count as zeros.
    """
    before = len(taps) - 1
    rows = (_seen(wide, tap, wide.shape[-3] - before, runs, slice(before, None)) for tap in range(len(taps)))
    return sum(row * lift(tap, wide.ndim) for row, tap in zip(rows, taps, strict=True))


def _seen(wide: jax.Array, first: int, tokens: int, runs: jax.Array | None, now: slice) -> jax.Array:
    """Takes tokens of `(*B, L, N, H)`, as zeros where their run of one segment is not that of the tokens `now`."""
    part = jax.lax.slice_in_dim(wide, first, first + tokens, axis=-3)
    if runs is None:
        return part
    same = runs[..., first : first + tokens] == runs[..., now]
    return jnp.where(same[..., None, None], part, 0)
