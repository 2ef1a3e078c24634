"""DeepSeek sparse attention: a small indexer chooses the tokens that a query attends to (DeepSeek-V3.2, 2512.02556).

The choice has no gradient, so the indexer learns from a loss of its own, how far its scores are from the weights that
attention gives; the rest of the model learns nothing from that.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.nn import initializers
from jaxtyping import Array, Bool, Float, Int

from attention import operations
from attention.activations import inverse_rms
from attention.dropout import RowWords, keep_columns, row_words
from attention.errors import UnsupportedError
from attention.forms import Tokens
from attention.kernels import xla
from attention.kernels.arrays import precise, score_dtype
from attention.kernels.call import Call, check_implementation, common
from attention.mask import Mask
from attention.mesh import platform
from attention.operations import Cost
from attention.options import Options
from attention.parameters import Parameter, Params, Sizes, lift
from attention.score import PRODUCTS, Mixer, Traits
from attention.scores.dot import DotProduct
from attention.types import Count, Positive

EPSILON = 1e-6  # of the norm of the indexer's keys
PAYS = 4  # how many times `top` keys there must be for `auto` to gather them; by timings on a CPU
ON_CPU, ELSEWHERE = 2**21, 2**26  # numbers that a block of queries may hold; the second is not measured
CHOSEN = "chosen keys"


@dataclasses.dataclass(frozen=True)
class DeepSeekSparse(Mixer):
    """softmax(q·k/√H) v over the `top` visible keys j with the highest I_ij, the same for all heads (eq. 1 and 2).

    I_ij = Σ_h w_ih ReLU(q'_ih·k'_j) / √(heads · width), with q', k' and w projected from the layer's inputs without
    biases, a LayerNorm on k', and both turned where the layer has rotary positions. This is the `Indexer` of the
    published code (DeepSeek-V3.2-Exp, inference/model.py) without its Hadamard transform and 8-bit numbers, which leave
    q'·k' as it is; there q' is projected from the latent of the queries. Of equal scores the earlier keys are chosen.

    Attributes:
      heads: The indexer's queries a token; it has one key.
      width: How wide they are.
      top: The keys that a query attends to, fewer where it sees fewer.
      warm_up: Whether a query attends to all keys, and the indexer learns from all of them (the dense warm-up stage).
      weight: Factor of the indexer's loss.
    """

    heads: Count = 4
    width: Count = 32
    top: Count = 64
    warm_up: bool = False
    weight: Positive = 1.0
    title = "DeepSeek sparse attention"
    normaliser = "softmax"

    @property
    def traits(self) -> Traits:
        """Says that all kernels of dot products serve the warm-up."""
        kernels = PRODUCTS if self.warm_up else ("chunked",)
        known = {"one_sequence": True, "reads_source": True, "ties_values": False, "in_parts": False}
        return Traits(**known, own_loss=True, kernels=kernels)

    def parameters(self, sizes: Sizes) -> dict[str, Parameter]:
        """Declares the projections to q', k' and w, and scale and bias of the LayerNorm."""
        wide = initializers.lecun_normal(in_axis=0, out_axis=(1, 2))
        return {
            "index_query_kernel": Parameter((sizes.model, self.heads, self.width), wide),
            "index_key_kernel": Parameter((sizes.model, self.width), initializers.lecun_normal()),
            "index_key_scale": Parameter((self.width,), initializers.ones),
            "index_key_bias": Parameter((self.width,), initializers.zeros),
            "index_weight_kernel": Parameter((sizes.model, self.heads), initializers.lecun_normal()),
        }

    def prepare_query(self, params: Params, query: jax.Array, at: Tokens) -> Any:
        """Turns the queries, and computes q' `(*B, T, heads, width)` and w `(*B, T, heads, 1)` with its factor."""
        source = jax.lax.stop_gradient(at.source)
        index, weight = (
            jnp.tensordot(source, params[f"index_{name}_kernel"].astype(source.dtype), 1)
            for name in ("query", "weight")
        )
        return at.turn(query), at.turn(index), weight[..., None] * (self.heads * self.width) ** -0.5

    def prepare_key(self, params: Params, key: jax.Array, at: Tokens) -> Any:
        """Turns the keys, and computes k' `(*B, S, 1, width)`."""
        source = jax.lax.stop_gradient(at.source)
        wide = precise(source @ params["index_key_kernel"].astype(source.dtype))
        wide -= wide.mean(-1, keepdims=True)
        scale, bias = (lift(params[f"index_key_{name}"], wide.ndim) for name in ("scale", "bias"))
        index = (wide * inverse_rms(wide, EPSILON) * scale + bias).astype(source.dtype)
        return at.turn(key), at.turn(index[..., None, :])

    def attend(self, params: Params, query: Any, key: Any, value: jax.Array, options: Options) -> Any:
        """Computes the output from gathered keys, or from all pairs with a mask, and the weights if asked for."""
        if self._takes_all(value):
            return DotProduct().attend({}, query[0], key[0], value, options)
        name, block = check_implementation(options.implementation, self.implementations, self.title)
        if name == "chunked" and options.return_weights:
            raise UnsupportedError(f"{self.title} returns no weights from tiles; use 'xla' or 'auto'.")
        call = _call(query, key, value, options)
        pays = value.shape[-3] >= PAYS * self.top and not options.return_weights
        if name == "chunked" or (name == "auto" and pays):
            return self._by_blocks(self._attend_chosen, call, block).astype(value.dtype)
        mask = Mask(dense=self._mask(_ranked(_scores(call), call)) & _visible(call))
        name = "reference" if name == "reference" else "xla"
        return DotProduct().attend(
            {}, query[0], key[0], value, dataclasses.replace(options, mask=mask, implementation=name)
        )

    def own_loss(self, params: Params, query: Any, key: Any, options: Options) -> Float[Array, "*B"]:
        """Computes the mean of `indexer_loss` over the queries of each sequence that are no padding, times its weight.

        It is over the chosen keys (eq. 4), and in the warm-up over all that a query sees (eq. 3).
        """
        query, key = ((jax.lax.stop_gradient(main), *index) for main, *index in (query, key))
        call = _call(query, key, precise(key[0]), dataclasses.replace(options, dropout_rate=0.0))
        losses = self._by_blocks(_loss_of_all if self._takes_all(call.value) else self._loss_of_chosen, call)
        if call.mask.key_lengths is None:
            return self.weight * losses.mean(-1)
        real = call.mask.at_queries(call.mask.real_keys(call.value.shape[-3]), losses.shape[-1], -1)
        return self.weight * jnp.where(real, losses, 0).sum(-1) / jnp.maximum(real.sum(-1), 1)

    def cost(self, sizes: Sizes, queries: int, keys: int) -> Cost:
        """Counts the indexer's scores of all pairs, where keys are chosen, and attention to the chosen keys."""
        implementation = f"chunked({queries}, 1)" if queries and keys > self.top else "xla"
        return operations.of_program(self, sizes, queries, keys, implementation)

    def _takes_all(self, value: jax.Array) -> bool:
        return self.warm_up or value.shape[-3] <= self.top

    def _mask(self, ranked: Float[Array, "*B T S"]) -> Bool[Array, "*B 1 T S"]:
        """Marks the keys that `_best` chooses, without an array over them: above the lowest, or as low and no later."""
        # Without the barrier XLA sorts whole rows on a CPU, which takes ten times as long.
        lowest, best = (x[..., -1:] for x in jax.lax.optimization_barrier(jax.lax.top_k(ranked, self.top)))
        earlier = jax.lax.broadcasted_iota(jnp.int32, ranked.shape, ranked.ndim - 1) <= best
        return ((ranked > lowest) | ((ranked == lowest) & earlier))[..., None, :, :]

    def _best(self, ranked: Float[Array, "*B T S"]) -> Int[Array, "*B T top"]:
        """Chooses the keys that rank highest, of equal ones the earlier."""
        return checkpoint_name(jax.lax.top_k(ranked, self.top)[1], CHOSEN)

    def _attend_chosen(self, rows: Call, words: RowWords | None) -> Float[Array, "*B T N V"]:
        """Computes the output of a block of queries; words are those of dropout."""
        best = self._best(_ranked(_scores(rows), rows))
        weights, value = _of_chosen(rows, best)
        if words is not None:
            drawn = jax.tree.map(lambda word: jnp.swapaxes(word, -1, -2)[..., None, None], words)
            kept = keep_columns(drawn, best[..., None, None, :].astype(jnp.uint32), rows.dropout_rate)
            weights = jnp.where(kept, weights / (1 - rows.dropout_rate), jnp.zeros((), weights.dtype))
        return xla.weighted_sum(weights, value)[..., 0, :, :]

    def _loss_of_chosen(self, rows: Call, words: None) -> Float[Array, "*B T"]:
        scores = _scores(rows)
        best = self._best(_ranked(scores, rows))
        weights = jnp.moveaxis(_of_chosen(rows, best)[0][..., 0, :], -2, -3)
        seen = _at(_visible(rows).any(-3, keepdims=True), best)[..., 0, 0, :]
        return indexer_loss(jnp.take_along_axis(scores, best, -1), weights, seen)

    def _by_blocks(self, compute: Callable, call: Call, block: tuple[int, int] | None = None) -> jax.Array:
        """Calls `compute(rows, words)` for blocks of queries, one after another, and joins their first axis after *B.

        The backward pass computes a block again, but for which keys it chose.
        """
        queries, axis, mask = call.scores_shape[-2], len(call.scores_shape) - 3, call.mask
        size = min(block[0] if block else self._rows(call), queries)
        words = row_words(call.dropout_seed, call.scores_shape[:-1]) if call.dropout_rate else None

        def cut(x: Any, axis: int) -> Any:
            return jax.tree.map(lambda x: _cut(_spread(x, queries, axis), axis, size), x)

        of_mask = {"dense": cut(mask.dense, -2), "query_segments": cut(mask.query_segments, -1)}
        firsts = jnp.arange(0, queries, size, dtype=jnp.int32)
        pieces = firsts, cut(call.query, -3), of_mask, cut(call.bias, -2), cut(words, -1)

        def of_rows(piece: tuple[Any, ...]) -> jax.Array:
            first, query, of_mask, bias, words = piece
            here = dataclasses.replace(mask, query_offset=mask.query_offset + first, **of_mask)
            shape = (*call.scores_shape[:-2], size, call.scores_shape[-1])
            return compute(dataclasses.replace(call, query=query, mask=here, bias=bias, scores_shape=shape), words)

        if size == queries:
            return of_rows(jax.tree.map(lambda x: x[0], pieces))
        saved = jax.checkpoint_policies.save_only_these_names(CHOSEN)
        out = jax.lax.map(jax.checkpoint(of_rows, prevent_cse=False, policy=saved), pieces)
        out = jnp.moveaxis(out, 0, axis)  # (*B, blocks, size, …)
        return jax.lax.slice_in_dim(out.reshape(*out.shape[:axis], -1, *out.shape[axis + 2 :]), 0, queries, axis=axis)

    def _rows(self, call: Call) -> int:
        """Gives the queries of a block, which holds what fits the cache of a CPU; elsewhere it bounds the memory."""
        *batch, heads, _, keys = call.scores_shape
        gathered = min(self.top, keys) * (2 * math.prod(call.value.shape[-2:]) + heads)
        numbers = ON_CPU if platform() == "cpu" else ELSEWHERE
        return max(1, numbers // (math.prod(batch) * (gathered + keys * self.heads)))


def indexer_loss(
    scores: Float[Array, "*B T S"], weights: Float[Array, "*B N T S"], seen: Bool[Array, "*#B T S"]
) -> Float[Array, "*B T"]:
    """Computes KL(p ‖ softmax(I)) of each query in nats (eq. 3 and 4); 0 where nothing is seen.

    p is the sum of the heads' weights, divided by its sum over the keys. It has no gradient.

    Args:
      scores: I.
      weights: Those of attention, 0 at keys that are not seen.
      seen: The keys that some head sees.
    """
    together = jax.lax.stop_gradient(weights).sum(-3)
    total = together.sum(-1, keepdims=True)
    shares = together / jnp.where(total > 0, total, 1)
    counted = shares > 0
    logs = jax.nn.log_softmax(scores, where=seen | ~seen.any(-1, keepdims=True))
    terms = shares * (jnp.log(jnp.where(counted, shares, 1)) - jnp.where(counted, logs, 0))
    return terms.sum(-1)


def _loss_of_all(rows: Call, words: None) -> Float[Array, "*B T"]:
    options = Options(rows.mask, rows.bias, return_weights=True, implementation="xla")
    _, weights = DotProduct().attend({}, rows.query[0], rows.key[0], rows.value, options)
    return indexer_loss(_scores(rows), weights, _visible(rows).any(-3))


def _of_chosen(rows: Call, best: Int[Array, "*B T top"]) -> tuple[jax.Array, jax.Array]:
    """Computes the weights `(*B, T, N, 1, top)` of chosen keys, and gathers their values `(*B, T, top, K, V)`."""
    key, value = (_gathered(x, best) for x in (rows.key[0], rows.value))
    bias = None if rows.bias is None else _at(_spread(rows.bias, rows.scores_shape[-1], -1), best)
    options = Options(Mask(dense=_at(_visible(rows), best)), bias, return_weights=True, implementation="xla")
    return DotProduct().attend({}, rows.query[0][..., None, :, :], key, value, options)[1], value


def _call(query: Any, key: Any, value: jax.Array, options: Options) -> Call:
    return Call(query=query, key=key, **common(*query[0].shape[-3:-1], value, options))


def _scores(rows: Call) -> Float[Array, "*B T S"]:
    """Computes I, at least in float32."""
    (_, query, weight), (_, key) = rows.query, rows.key
    products = jnp.einsum("...thw,...sw->...hts", query, key[..., 0, :], preferred_element_type=score_dtype(query))
    return jnp.einsum("...hts,...th->...ts", jax.nn.relu(products), precise(weight[..., 0]))


def _ranked(scores: Float[Array, "*B T S"], rows: Call) -> Float[Array, "*B T S"]:
    """Puts the keys that no head sees last, without a gradient."""
    return jnp.where(_visible(rows).any(-3), jax.lax.stop_gradient(scores), -jnp.inf)


def _visible(rows: Call) -> Bool[Array, "*#B #N T S"]:
    """Makes the mask an array over all pairs, whose other axes may be 1."""
    *lead, queries, keys = rows.scores_shape
    allowed = rows.allowed()
    if allowed is None:
        return jnp.ones((*(1 for _ in lead), queries, keys), bool)
    return jnp.broadcast_to(allowed, (*allowed.shape[:-2], queries, keys))


def _gathered(x: Float[Array, "*B S K H"], best: Int[Array, "*B T top"]) -> Float[Array, "*B T top K H"]:
    flat = x.reshape(*x.shape[:-3], 1, x.shape[-3], -1)
    taken = jnp.take_along_axis(flat, best[..., None], axis=-2)
    return taken.reshape(*taken.shape[:-1], *x.shape[-2:])


def _at(x: jax.Array, best: Int[Array, "*B T top"]) -> jax.Array:
    """Takes pairs `(*#B, #N, T, S)` at the chosen keys, as `(*B, T, #N, 1, top)`."""
    taken = jnp.take_along_axis(x, best[..., None, :, :], axis=-1)
    return jnp.swapaxes(taken, -2, -3)[..., None, :]


def _spread(x: jax.Array, size: int, axis: int) -> jax.Array:
    """Gives an axis of 1 its full size."""
    shape = [*x.shape]
    shape[axis] = size
    return jnp.broadcast_to(x, shape)


def _cut(x: jax.Array, axis: int, size: int) -> jax.Array:
    """Cuts an axis into blocks, the last padded with zeros, and puts the axis that counts them first."""
    axis %= x.ndim
    x = jnp.pad(x, [(0, -n % size if at == axis else 0) for at, n in enumerate(x.shape)])
    return jnp.moveaxis(x.reshape(*x.shape[:axis], -1, size, *x.shape[axis + 1 :]), axis, 0)
