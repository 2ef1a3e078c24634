"""Tiles on devices that share the tokens of each sequence: the mesh axis `context` gives each an equal stretch.

Keys and values visit the other devices, which compute tiles meanwhile (Ring Attention: Liu et al. 2023,
arXiv:2310.01889). Under a causal mask the keys of device d − t visit device d, for t up to half the devices. The first
t devices have no such keys before them. In their place they compute for the queries of the last t, which visit them,
so that none waits (DistFlashAttn: Li et al. 2023, arXiv:2310.03294). Tokens stay in order, and results and gradients
of what visits are sent home.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from attention.dropout import Seed, words_of
from attention.kernels import flash, loops
from attention.kernels.arrays import precise
from attention.kernels.call import Call
from attention.kernels.flash import Carry
from attention.kernels.loops.plan import Rules, Tensors, TilePlan, rule, zeros
from attention.kernels.loops.scores import of_tiles
from attention.mesh import CONTEXT, devices

AXIS = CONTEXT[0]
NAMES = ("auto", "chunked")  # implementations that are a ring where the mesh splits tokens


class RingRules(NamedTuple):
    """The rules for whole sequences; see `Rules`.

    Attributes:
      lengths: `(B,)` or None.
      query_segments: `(B, T)` or None.
      key_segments: `(B, S)` or None.
      seed: The seed of dropout, or None.
      layer: The number of the layer.
      here: The number of the device, `(1,)`; XLA does not partition `axis_index` beside axes that it splits itself.
    """

    lengths: jax.Array | None
    query_segments: jax.Array | None
    key_segments: jax.Array | None
    seed: Seed | None
    layer: jax.Array
    here: jax.Array


class Visit(NamedTuple):
    """What each device sends to the one `distance` further on, around the ring.

    Attributes:
      distance: The distance t; 0 is each device's own keys.
      count: Number of devices.
      hosts: The devices that keys visit.
      helpers: The devices that queries visit.
      own: The queries that a host computes of its own.
      guests: The queries that visit a helper.
    """

    distance: int
    count: int
    hosts: range
    helpers: range = range(0)
    own: slice = slice(None)
    guests: slice = slice(None)

    def send(self, tree: Any, to: range, home: bool = False) -> Any:
        """Sends the tree on, or with `home` back, and gives what the device receives; zeros if nothing comes."""
        if not self.distance:
            return tree
        pairs = [((device - self.distance) % self.count, device) for device in to]
        pairs = [pair[::-1] for pair in pairs] if home else pairs
        return jax.tree.map(lambda x: jax.lax.ppermute(x, AXIS, pairs), tree)

    def meet(self, rows: Any, columns: Any, here: jax.Array) -> tuple[Any, Any, jax.Array, jax.Array]:
        """Gives the queries and keys that the device computes, and the positions of the first of both."""
        queries, keys = (jax.tree.leaves(tree)[0].shape[1] for tree in (rows, columns))
        home = (here - self.distance) % self.count
        of_host = (
            _cut(rows, self.own),
            self.send(columns, self.hosts),
            here * queries + (self.own.start or 0),
            home * keys,
        )
        if not self.helpers:
            return of_host
        of_helper = self.send(_cut(rows, self.guests), self.helpers), columns, home * queries, here * keys
        return jax.tree.map(functools.partial(jnp.where, _among(self.helpers, here)), of_helper, of_host)


def visits(plan: TilePlan, count: int) -> Iterator[Visit]:
    """Yields the visits for all that the mask lets queries see, the devices' own keys first."""
    everyone = range(count)
    furthest = -(-(plan.window - 1) // plan.queries) if plan.window else count  # stretch that a query may see
    for distance in range(count // 2 + 1 if plan.causal else count):
        around, hosts = count - distance, everyone[distance:] if plan.causal else everyone
        if min(distance, around) > furthest:
            continue
        if not distance or not plan.causal or around > furthest or (distance == around and plan.queries % 2):
            yield Visit(distance, count, hosts)
        elif distance < around:
            yield Visit(distance, count, hosts, everyone[:distance])
        else:  # hosts and helpers could compute the same pairs: each takes half of the queries
            half = plan.queries // 2
            yield Visit(distance, count, hosts, everyone[:distance], slice(half, None), slice(half))


def why_not(call: Call) -> str:
    """Tells why devices cannot share the call's tokens, as part of a sentence; '' if they can."""
    if devices(*CONTEXT) == 1:
        return "no axis of the mesh splits tokens"
    if reason := loops.why_not(call):
        return reason
    count, mask, (queries, keys) = devices(*CONTEXT), call.mask, call.scores_shape[-2:]
    ordered = mask.causal or mask.window > 0
    reasons = {
        f"{queries} queries and {keys} keys do not divide over {count} devices": queries % count or keys % count,
        "it adds no bias": call.bias is not None,
        "it takes no dense mask": mask.dense is not None,
        "queries and keys start together and are as many": ordered and not mask.in_step(queries, keys),
        "it counts no keys": call.normaliser.counts,
        "it has no tables over positions": bool(jax.tree.leaves(of_tiles(call)[0].tables)),
    }
    return "; ".join(reason for reason, holds in reasons.items() if holds)


def attend(call: Call) -> tuple[jax.Array, None]:
    """Computes the output `(*B, T, N, V)`, without weights, of a call for which `why_not` has no reason."""
    call = loops.arranged(call)
    weights, score, units = of_tiles(call)
    *batch, heads, queries, keys = call.scores_shape
    count, size, mask = devices(*CONTEXT), math.prod(batch), call.mask
    stretch = dataclasses.replace(call, scores_shape=(*batch, heads, queries // count, keys // count))
    form = mask.causal, mask.window, call.dropout_rate
    plan = TilePlan(score, call.normaliser, rule(stretch, score, units), queries // count, heads, *form)
    flat = lambda x: x.reshape(size, *x.shape[len(batch) :])  # noqa: E731
    tensors = Tensors(*jax.tree.map(flat, (call.query, call.key, call.value)), None, weights)
    segments = call.flat(mask.query_segments, 1), call.flat(mask.key_segments, 1)
    layer, here = jnp.asarray(call.layer, jnp.int32), jnp.arange(count, dtype=jnp.int32)
    rules = RingRules(call.flat(mask.key_lengths, 0), *segments, call.dropout_seed, layer, here)
    tokens = P(None, AXIS)
    local = jax.shard_map(
        functools.partial(_attend, plan),
        in_specs=(Tensors(tokens, tokens, tokens, None, P()), RingRules(P(), tokens, tokens, P(), P(), P(AXIS))),
        out_specs=tokens,
        axis_names={AXIS},
        check_vma=False,
    )
    out = jax.jit(local)(tensors, rules)
    return out.reshape(*batch, *out.shape[1:]), None


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(plan: TilePlan, tensors: Tensors, rules: RingRules) -> jax.Array:
    return _forward(plan, tensors, rules)[0]


def _forward(plan: TilePlan, tensors: Tensors, rules: RingRules) -> tuple[jax.Array, Any]:
    rows, columns = (tensors.query, rules.query_segments), (tensors.key, tensors.value, rules.key_segments)

    def compute(visit: Visit, met: Any) -> Any:
        return loops.partial(*_tiles(plan, visit, rules, tensors.weights, *met))

    def home(visit: Visit, part: Any) -> Any:
        return visit.send(part, visit.helpers, home=True) if visit.helpers else None

    (_, total, _), *further = _results(plan, rows, columns, rules.here[0], compute, home)
    for visit, part, back in further:
        total = _merge(plan, total, part, visit.own, _among(visit.hosts, rules.here[0]))
        if visit.helpers:
            total = _merge(
                plan, total, back, visit.guests, _among(range(visit.count)[-visit.distance :], rules.here[0])
            )
    out, row = flash.finish(plan.normaliser, total, plan.rate)
    out = out.astype(tensors.value.dtype)
    return out, (tensors, rules, out, row[..., 0])


def _backward(plan: TilePlan, residuals: Any, gradient: jax.Array) -> tuple[Tensors, None]:
    # Without the barrier XLA would keep from the forward pass whatever visited a device.
    (tensors, rules, out, row), gradient = jax.lax.optimization_barrier((residuals, gradient))
    through_sum = jnp.sum(precise(gradient) * precise(out), -1)
    rows = tensors.query, rules.query_segments, through_sum, row, gradient
    columns = tensors.key, tensors.value, rules.key_segments

    def compute(visit: Visit, met: Any) -> Tensors:
        through_sum, row, gradient = met[0][2:]
        given = _tiles(plan, visit, rules, tensors.weights, *met)
        return loops.gradients(*given, through_sum, row.swapaxes(1, 2), gradient)

    def home(visit: Visit, d: Tensors) -> tuple[Any, Any]:
        helped = visit.send(d.query, visit.helpers, home=True) if visit.helpers else None
        return visit.send((d.key, d.value), visit.hosts, home=True), helped

    d_query, d_columns, d_weights = zeros((tensors.query, (tensors.key, tensors.value), tensors.weights))
    for visit, d, (hosted, helped) in _results(plan, rows, columns, rules.here[0], compute, home):
        hosts, helpers = (_among(some, rules.here[0]) for some in (visit.hosts, visit.helpers))
        d_weights = _sum(d_weights, _only(hosts | helpers, d.weights))
        d_query = _add(d_query, _only(hosts, d.query), visit.own)
        d_columns = _sum(d_columns, hosted)
        if visit.helpers:
            d_columns = _sum(d_columns, _only(helpers, (d.key, d.value)))
            d_query = _add(d_query, helped, visit.guests)
    d_tensors = Tensors(d_query, *d_columns, None, d_weights)
    return jax.tree.map(lambda d, x: d.astype(x.dtype), d_tensors, tensors), None


_attend.defvjp(_forward, _backward)


def _results(
    plan: TilePlan, rows: Any, columns: Any, here: jax.Array, compute: Callable, home: Callable
) -> Iterator[Any]:
    """Yields every visit, what `compute` returns for it, and what `home` sends back.

    The barriers say when: during the tiles of one visit the next visitors come and the last results go home, and no
    others, so that a device never holds more.
    """
    journey = list(visits(plan, jax.lax.axis_size(AXIS)))
    met, last = journey[0].meet(rows, columns, here), None
    for before, visit, following in zip([None, *journey], journey, [*journey[1:], None], strict=False):
        coming = following and following.meet(rows, columns, here)
        result = compute(visit, met)
        result, last, met, rows, columns = jax.lax.optimization_barrier((result, last, coming, rows, columns))
        if last:
            yield before, *last
        last = result, home(visit, result)
    yield journey[-1], *last


def _tiles(plan, visit, rules, weights, rows, columns, first_row, first_column) -> tuple[TilePlan, Tensors, Rules]:
    """Lays out the plan, tensors and rules for the tiles of the queries and keys that meet."""
    query, query_segments, *_ = rows
    key, value, key_segments = columns
    size, queries = jax.tree.leaves(query)[0].shape[:2]
    words = None
    if plan.rate:
        heads = jnp.arange(size * plan.heads, dtype=jnp.uint32).reshape(size, plan.heads, 1)
        positions = first_row.astype(jnp.uint32) + jnp.arange(queries, dtype=jnp.uint32)
        words = words_of(rules.seed, heads * (plan.queries * visit.count) + positions[None, None])
    if visit.distance:  # under a causal mask these keys are all before the queries
        plan = dataclasses.replace(plan, queries=queries, causal=False, normaliser=plan.normaliser.further)
    lengths = None if rules.lengths is None else rules.lengths - first_column
    where = first_row - first_column, lengths, query_segments, key_segments, None, words, first_column
    given = Rules(*where, rules.layer)
    return plan, Tensors(query, key, value, None, weights), given


def _merge(plan: TilePlan, total: Carry, part: Carry, rows: slice, where: jax.Array) -> Carry:
    """Merges sums over further keys, of some rows, into the totals, on some devices."""
    before = _cut(total, rows)
    state, factor, further = plan.normaliser.merge(before.state, part.state)
    merged = Carry(state, before.out * factor + part.out * further)
    merged = jax.tree.map(functools.partial(jnp.where, where), merged, before)
    update = lambda x, y: jax.lax.dynamic_update_slice_in_dim(x, y, rows.start or 0, 1)  # noqa: E731
    return jax.tree.map(update, total, merged)


def _add(total: Any, part: Any, rows: slice) -> Any:
    """Adds to some of the rows; XLA would gather whole batches to scatter into them."""
    first, last, _ = rows.indices(jax.tree.leaves(total)[0].shape[1])
    ends = lambda x: [(0, 0), (first, x.shape[1] - last), *[(0, 0)] * (x.ndim - 2)]  # noqa: E731
    return jax.tree.map(lambda x, y: x + jnp.pad(y, ends(x)), total, part)


def _sum(first: Any, second: Any) -> Any:
    return jax.tree.map(jnp.add, first, second)


def _cut(tree: Any, rows: slice) -> Any:
    return jax.tree.map(lambda x: x[:, rows], tree)


def _only(where: jax.Array, tree: Any) -> Any:
    return jax.tree.map(lambda x: jnp.where(where, x, 0), tree)


def _among(some: range, here: jax.Array) -> jax.Array:
    """Tells whether this device is one of `some` consecutive ones."""
    return (here >= some.start) & (here < some.stop)
