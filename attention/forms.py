"""What a score of one pair is given beside the query and the key, and the forms for which there are special kernels."""

from typing import Any, NamedTuple

import jax

from attention.scores.rotary import Rotary


class At(NamedTuple):
    """The place of a pair: its positions, its head and its layer.

    Attributes:
      query: i, the position of the query among the keys.
      key: j, the position of the key.
      head: n, the query's head.
      heads: N, the number of query heads.
      layer: The number of the layer among those of its stack, from 0 on.
      depth: The number of layers.
    """

    query: jax.Array
    key: jax.Array
    head: jax.Array
    heads: int
    layer: int | jax.Array
    depth: int


class Tokens(NamedTuple):
    """The tokens whose queries or keys are prepared.

    Attributes:
      first: The position of the first.
      source: The layer's inputs `(*B, L, D)` that they were projected from.
      rotary: Rotary positions, or None.
      before: What `prepare_key` gave for the token before the first, with a length of 1, zeros if there is none; None
        where the first token is the first of all.
      layer: The number of the layer among those of its stack, from 0 on.
      depth: The number of layers.
    """

    first: int | jax.Array
    source: jax.Array
    rotary: Rotary | None = None
    before: Any = None
    layer: int | jax.Array = 0
    depth: int = 1

    def turn(self, x: jax.Array) -> jax.Array:
        """Turns queries or keys `(*B, L, N, H)` by their rotary positions, if there are any."""
        return x if self.rotary is None else self.rotary.turn(x, self.first)


class Dot(NamedTuple):
    """Scores that are dot products, q̂·k̂ · scale + b_j.

    Attributes:
      query: `(*B, T, N, H)`.
      key: `(*B, S, K, H)`.
      scale: The factor, a Python number.
      key_bias: b_j, broadcasts to the scores `(*B, N, T, S)`; or None.
      precision: Precision of the products, see `jax.lax.Precision`.
    """

    query: jax.Array
    key: jax.Array
    scale: float
    key_bias: jax.Array | None = None
    precision: jax.lax.PrecisionLike = None


class MLP(NamedTuple):
    """The layers of an MLP on each pair after its first, which has been applied to queries and keys: a_i + b_j.

    Attributes:
      layers: Kernel `(*N, M, M')` and bias `(*N, M')` or None of each layer after the first activation.
      vector: The score vector `(*N, M')`.
      activation: Name of the activation after each layer.
    """

    layers: tuple[tuple[jax.Array, jax.Array | None], ...]
    vector: jax.Array
    activation: str


Form = Dot | MLP | None
