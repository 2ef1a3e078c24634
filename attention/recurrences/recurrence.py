"""What a recurrence is: a function of one step, which writes a key with its value into a state that queries read."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attention import operations
from attention.errors import UnsupportedError, UsageError
from attention.forms import Tokens
from attention.kernels.arrays import precise, spread_heads
from attention.kernels.call import check_implementation
from attention.mask import BY_TOKEN, Mask
from attention.mesh import platform
from attention.options import Options
from attention.parameters import Params, Sizes, trail
from attention.recurrences.state import Marks, Writes, after_all, all_pairs, from_state
from attention.score import Mixer, Traits


class Recurrence(Mixer):
    """A state for each head, written by one key after another; it never scores a pair.

    A subclass must define `write` and `read` for one head, and `begin` where the state is no matrix. A causal step is
    write, then read; without causality all keys are written in order before any query reads. Keys beyond `key_lengths`
    write nothing, and the state is empty where a segment begins. From these follow all passes as a scan, and decoding.
    A subclass whose state is a matrix W may offer `writes`, with `traits = CHUNKED`; from it all pairs at once (`xla`)
    and chunks of tokens follow, which are faster and equal.
    """

    title = ""
    traits = Traits(ties_values=False, in_parts=False, kernels=())  # prepared keys come with their gates
    alike: ClassVar[bool] = True  # whether all numbers of a value are written alike, and nothing but values is
    quick_steps: ClassVar[bool] = True  # whether a scan is faster than chunks on a CPU where no gradient is wanted

    def gates(self, params: Params, source: jax.Array) -> Any:
        """Computes what `write` needs of a token beside key and value, from its input: a tree of `(*B, S, N, …)`."""
        return None

    def begin(self, head: int, value: int) -> Any:
        """Makes the empty state of one head, for keys and values of these widths: W, `(V, H)`, unless overridden.

        Its arrays are of real or complex numbers, and stay so.
        """
        return jnp.zeros((value, head))

    def write(self, params: Params, state: Any, key: jax.Array, value: jax.Array, gates: Any) -> Any:
        """Writes one key `(H,)` with its value `(V,)` to the state; params over heads are this head's."""
        raise NotImplementedError

    def read(self, params: Params, state: Any, query: jax.Array) -> jax.Array:
        """Reads the output `(V,)` of one query `(H,)` from the state."""
        raise NotImplementedError

    def recall(self, params: Params, state: Any, query: jax.Array) -> jax.Array:
        """Reads the output before a norm, which is linear in the values; a subclass whose `read` norms defines it."""
        return self.read(params, state, query)

    def writes(self, params: Params, query: jax.Array, key: Any, value: jax.Array) -> tuple[Any, ...]:
        """Gives what makes and reads a state W, of arrays `(*B, L, N, H)` that are at least in float32.

        W ← W diag(α), then W ← W + β (v − W φ(k)) φ(k)ᵀ, or W ← W + v φ(k)ᵀ if β is None, and W φ(q) is read. A vector
        e in the place of β says W ← W + (v − W e) φ(k)ᵀ. A token that writes n times has n keys, values, β and α.

        Returns:
          φ(q), φ(k) and v, then β `(*B, S, N)` or e `(*B, S, N, H)` or None, and log α `(*B, S, N, 1 or H)` or None if
          nothing fades; all but φ(q) with n·S for S, token after token, if each writes n times. Two more are allowed:
          what is written with φ(k) after the token's query has read, `(*B, S, N, V)`, without β; and angles
          `(*B, S, N, at most H/2)` by which pairs of columns of W turn back as they fade, see `state.turned`.
        """
        raise NotImplementedError

    def finish(self, out: jax.Array) -> jax.Array:
        """Finishes the output, given the values that are read from a state W."""
        return out

    def prepare_key(self, params: Params, key: jax.Array, at: Tokens) -> Any:
        """Turns the keys, and computes their gates."""
        return at.turn(key), self.gates(params, at.source)

    def start(self, sizes: Sizes, batch: tuple[int, ...], dtype: Any) -> Any:
        """Makes empty states, `(*B, N, …)`, at least in float32."""
        _, wide = self.widths(sizes.heads, sizes.heads, sizes.head)["key"]
        return self._start((*batch, sizes.heads), wide, sizes.head, dtype)

    def _start(self, lead: tuple[int, ...], head: int, value: int, dtype: Any) -> Any:
        def spread(x):
            if not jnp.issubdtype(x.dtype, jnp.inexact):
                raise UsageError(f"A state holds real or complex numbers, but {self.title} begins with {x.dtype}.")
            least = jnp.complex64 if jnp.iscomplexobj(x) else jnp.float32
            return jnp.broadcast_to(x, (*lead, *x.shape)).astype(jnp.promote_types(dtype, least))

        return jax.tree.map(spread, self.begin(head, value))

    def attend(self, params: Params, query: Any, key: Any, value: Any, options: Options) -> Any:
        """Computes the output `(*B, T, N, V)`, and `weights` if the options ask for them."""
        name, block = check_implementation(options.implementation, self.implementations, self.title)
        if block:
            raise UnsupportedError(
                f"{self.title} has no tiles of queries and keys; give the implementation 'chunked' alone."
            )
        self._check(options, jax.tree.leaves(query)[0].shape[-3], value.shape[-3])
        inputs = (params, query, key, value, options.mask)
        out = self._read(self._output(name, *inputs), value)
        return (out, self._read(self.weights(*inputs), value)) if options.return_weights else out

    def _output(self, name: str, params: Params, query: Any, key: Any, value: jax.Array, mask: Mask) -> jax.Array:
        """Computes the output by the scan, by all pairs at once, or by chunks."""
        queries, keys = jax.tree.leaves(query)[0].shape[-3], value.shape[-3]
        stepwise = not mask.causal or mask.in_step(queries, keys)
        if name == "chunked" and not stepwise:
            raise UnsupportedError(
                f"implementation='chunked' of causal {self.title} needs as many queries as keys from position 0; "
                "use 'xla'."
            )
        inputs = params, query, key, value, mask
        if name == "reference" or "chunked" not in self.implementations:
            return self._scan_all(*inputs)
        writes, whole = self._writes(*inputs), name == "xla" or not stepwise
        if whole and (writes.decay is not None or writes.key.shape[-2] > keys):
            return self._scan_all(*inputs)
        if name == "auto" and mask.causal and self.quick_steps and platform() == "cpu":
            return _unless_differentiated(self._scan_all, self._chunked)(*inputs)
        return self.finish(all_pairs(writes, mask)) if whole else self._chunked(*inputs)

    def _chunked(self, *inputs: Any) -> jax.Array:
        return self.finish(self._go_on(*inputs, 0)[0] if inputs[-1].causal else after_all(self._writes(*inputs)))

    def _go_on(
        self, params: Params, query: Any, key: Any, value: Any, mask: Mask, first: Any, state: Any = None
    ) -> tuple[jax.Array, Any]:
        """Computes in chunks what the queries from position `first` on read, and the state after them."""
        return from_state(self._writes(params, query, key, value, mask, first), state)

    def _writes(self, params: Params, query: Any, key: Any, value: Any, mask: Mask, first: Any = 0) -> Writes:
        made, tokens = self.writes(*jax.tree.map(precise, (params, query, key, value))), value.shape[-3]
        return Writes.of(*made, marks=Marks.of(mask, first, tokens).repeated(made[1].shape[-3] // tokens))

    def weights(
        self, params: Params, query: Any, key: Any, value: Float[Array, "*B S K V"], mask: Mask
    ) -> Float[Array, "*B N T S"]:
        """Computes how much of each value is in each output before a norm, with a sign: the derivative by the value.

        The output is linear in the values, so it shows their shares where the values are the rows of an identity; but
        where it is not `alike`, they are the means over a value's numbers, and take as many times as long.
        """
        places = jnp.eye(value.shape[-3], dtype=value.dtype)
        if self.alike:
            origins = jnp.broadcast_to(places[:, None], (*value.shape[:-1], len(places)))
            return jnp.moveaxis(self._scan_all(params, query, key, origins, mask, self.recall), -2, -3)

        def output(value: jax.Array) -> jax.Array:
            return self._scan_all(params, query, key, value, mask, self.recall)

        def shares(place: jax.Array) -> jax.Array:
            one = jnp.broadcast_to(place[:, None, None], value.shape)
            return jax.jvp(output, (value,), (one,))[1].mean(-1)

        return jnp.moveaxis(jax.vmap(shares, out_axes=-1)(places), -2, -3)

    def _check(self, options: Options, queries: int, keys: int) -> None:
        asked = {"bias": options.bias is not None, "attention dropout": options.dropout_rate > 0}
        for what, is_asked in asked.items():
            if is_asked:
                raise UnsupportedError(
                    f"{self.title} has no {what}: it keeps a running state and never scores a pair; ask for none."
                )
        options.mask.require(BY_TOKEN, by=self.title)
        if "segments" in options.mask.parts() and not (options.mask.causal and options.mask.in_step(queries, keys)):
            raise UsageError(f"{self.title} has segments in causal self-attention alone; say causal=True in the mask.")

    def advance(self, params: Params, query: Any, key: Any, value: Any, state: Any, mask: Mask) -> tuple[Any, Any]:
        """Computes the causal output of the next tokens and the states after them; see `Mixer`."""
        mask.require(BY_TOKEN, by=self.title)
        if "chunked" in self.implementations:
            out, after = self._go_on(params, query, key, value, mask, mask.query_offset, state)
            return self._read(self.finish(out), value), after
        state = self._empty(query, value) if state is None else state
        marks = Marks.of(mask, mask.query_offset, value.shape[-3])
        out, after = self._scan(params, query, key, value, state, marks)
        return self._read(out, value), after

    def _empty(self, query: Any, value: jax.Array) -> Any:
        *batch, _, heads, head = jax.tree.leaves(query)[0].shape
        return self._start((*batch, heads), head, value.shape[-1], value.dtype)

    def _scan_all(
        self, params: Params, query: Any, key: Any, value: Any, mask: Mask, read: Callable | None = None
    ) -> jax.Array:
        """Reads by queries at the mask's offset, or by queries when all keys are written; see `_scan`."""
        *batch, keys, _, _ = value.shape
        queries, heads, _ = jax.tree.leaves(query)[0].shape[-3:]
        state, marks = self._empty(query, value), Marks.of(mask, 0, keys)
        if mask.causal and mask.in_step(queries, keys):
            return self._scan(params, query, key, value, state, marks, read=read)[0]
        after, last = self._scan(params, None, key, value, state, marks, every=mask.causal)
        if mask.causal:
            written = jnp.clip(mask.query_offset + jnp.arange(queries) + 1, 0, keys)
            states = jax.tree.map(lambda empty, x: jnp.concatenate([empty[None], x])[written], state, after)
        else:
            states = jax.tree.map(lambda x: jnp.broadcast_to(x, (queries, *x.shape)), last)
        read = self._over_heads(read or self.read, params, len(batch), (0, 0), heads)
        out = jax.vmap(read)(states, jax.tree.map(lambda x: jnp.moveaxis(precise(x), len(batch), 0), query))
        return jnp.moveaxis(out, 0, len(batch))

    def _scan(
        self,
        params: Params,
        query: Any,
        key: Any,
        value: Any,
        state: Any,
        marks: Marks,
        *,
        every: bool = False,
        read: Callable | None = None,
    ) -> tuple[Any, Any]:
        """Computes what each query reads after its key is written, `(*B, T, N, V)`, and the last states.

        Without queries it returns all states, `(S, *B, N, …)`, if `every` is set, in place of what is read. `read` may
        take the place of the method.
        """
        rank, heads = value.ndim - 3, jax.tree.leaves(state)[0].shape[value.ndim - 3]
        key, gates = key if isinstance(key, tuple) else (key, None)
        by_token = lambda x: jnp.moveaxis(precise(spread_heads(x, heads, rank + 1)), rank, 0)  # noqa: E731
        tokens = jax.tree.map(by_token, (query, key, value, gates))
        write = self._over_heads(self.write, params, rank, (0, 0, 0, 0), heads)
        read = self._over_heads(read or self.read, params, rank, (0, 0), heads)
        marks = jax.tree.map(lambda x: jnp.moveaxis(x, -1, 0), marks)
        empty = self._start((1,) * (rank + 1), tokens[1].shape[-1], value.shape[-1], value.dtype)

        def step(state, token):
            (query, key, value, gates), (real, starts) = token
            state = _chosen(starts, empty, state)
            after = jax.tree.map(self._kept, write(state, key, value, gates), state)
            after = after if real is None else _chosen(real, after, state)
            if query is None:
                return after, after if every else None
            return after, read(after, query)

        state, out = jax.lax.scan(step, state, (tokens, marks))
        return (out if query is None else jnp.moveaxis(out, 0, rank)), state

    def _kept(self, after: jax.Array, before: jax.Array) -> jax.Array:
        if jnp.iscomplexobj(after) and not jnp.iscomplexobj(before):
            raise UsageError(f"{self.title} writes complex numbers to a real state; let `begin` make complex zeros.")
        return after.astype(before.dtype)

    def _read(self, out: jax.Array, value: jax.Array) -> jax.Array:
        if jnp.iscomplexobj(out):
            raise UsageError(f"{self.title} reads complex numbers; let `read` and `finish` give their real part.")
        return out.astype(value.dtype)

    def _over_heads(self, function: Any, params: Params, rank: int, axes: tuple, heads: int) -> Any:
        """Makes a function of one head one of arrays `(*B, N, …)`."""
        over = {name: declared.over for name, declared in self.parameters(Sizes(1, heads, 1, 1)).items()}
        own = {name: precise(x) for name, x in params.items() if over.get(name)}
        shared = {name: precise(x) for name, x in params.items() if name not in own}
        one = lambda own, *arrays: function(shared | own, *arrays)  # noqa: E731
        mapped = jax.vmap(one, (0, *axes), axis_size=heads)
        for _ in range(rank):
            mapped = jax.vmap(mapped, (None, *axes))
        return lambda *arrays: mapped(own, *arrays)

    def cost(self, sizes: Sizes, queries: int, keys: int) -> operations.Cost:
        """Counts the cost of a step for each key, of a reading for each query, and of the gates."""
        return operations.of_program(self, sizes, queries, keys, "reference")


CHUNKED = dataclasses.replace(Recurrence.traits, kernels=("chunked",))  # of a recurrence that defines `writes`


def _chosen(which: jax.Array | None, first: Any, second: Any) -> Any:
    """Chooses states by sequence, the second where there is nothing to choose by."""
    if which is None:
        return second
    return jax.tree.map(lambda x, y: jnp.where(trail(which, y.ndim), x, y).astype(y.dtype), first, second)


def _unless_differentiated(alone: Callable, differentiated: Callable) -> Callable:
    """Makes a function of `alone` that is computed by `differentiated`, its equal, where its gradient is wanted."""
    function = jax.custom_vjp(lambda *inputs: alone(*inputs))  # not the method itself, whose defaults JAX would add
    function.defvjp(lambda *inputs: jax.vjp(differentiated, *inputs), lambda pull, gradient: pull(gradient))
    return function
