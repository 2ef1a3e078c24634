"""The MLP of a tile of pairs on a GPU, one unit after another, so that a tile's arrays fit in a thread's registers.

A loop visits the units of the first layer, whose sums a_m + b_m are made anew in each pass over them; only outputs of
the second layer are held, at most `TOGETHER` of them. A loop is compiled once, and not once for each unit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import JaxprEqn
from jax.extend.core.primitives import add_jaxvals_p

from attention.kernels.fused.programs import PLAIN, bind, run
from attention.kernels.mlp.network import IN_KERNELS, Network

TOGETHER = 8  # outputs of the second layer that are held at a time
UNROLLED = 4  # so many units need no loop


@dataclasses.dataclass(frozen=True)
class Layers:
    """The MLP of the pairs of one tile, in which the weights of all layers are numbered as they lie in memory.

    Attributes:
      network: One or two layers.
      sums: Gives a_m + b_m of a unit for the tile's pairs, `(R, C)`.
      weight: Gives a weight by its number, a scalar.
      empty: Makes zeros `(R, C)`.
    """

    network: Network
    sums: Callable[[Any], jax.Array]
    weight: Callable[[Any], Any]
    empty: Callable[[], jax.Array]

    def scores(self) -> tuple[jax.Array, list[jax.Array] | None]:
        """Computes the scores, and the second layer's sums if they are few enough to be held."""
        if len(self.network.units) == 1:
            add = lambda m, total: total + self.weight(m) * self._activation(self.sums(m))  # noqa: E731
            return loop(self.network.units[0], add, self.empty()), None
        if self._groups == 1:
            held = self._second(0)
            return self._add_scores(0, held, self.empty()), held
        add = lambda group, total: self._add_scores(group, self._second(group), total)  # noqa: E731
        return loop(self._groups, add, self.empty()), None

    def gradients(
        self, d_scores: jax.Array, held: list[jax.Array] | None, unit: Callable[..., None], weight: Callable[..., None]
    ) -> None:
        """Hands on the gradients of units and weights for each pair, from those of the scores.

        What is the same for all pairs is left out where the last layer has one unit: `factors_of` has it.

        Args:
          held: What `scores` returned.
          unit: Is given the number of a unit of the first layer, and its gradient `(R, C)`.
          weight: The same for weights.
        """
        if len(self.network.units) == 1:
            loop(self.network.units[0], lambda m, _: self._of_unit(m, d_scores, unit, weight), None)
        elif self._groups == 1:
            self._of_group(0, held or [], d_scores, unit, weight)
        else:
            of = lambda group, _: self._of_group(group, self._second(group), d_scores, unit, weight)  # noqa: E731
            loop(self._groups, of, None)

    def _of_unit(self, m: Any, d_scores: jax.Array, unit: Callable, weight: Callable) -> None:
        activated, pull = self._pull(self.sums(m))
        weight(m, d_scores * activated)
        unit(m, pull(d_scores))

    def _of_group(
        self, group: Any, held: list[jax.Array], d_scores: jax.Array, unit: Callable, weight: Callable
    ) -> None:
        d_held = [self._of_output(k, x, d_scores, weight) for k, x in self._numbered(group, held)]

        def of_first(m: Any, _: None) -> None:
            activated, pull = self._pull(self.sums(m))
            for k, x in self._numbered(group, d_held):
                weight(self._mixing(k, m), x * activated)
            if factored(self.network):
                return unit(m, pull(d_held[0]))
            d_activated = self.empty()
            for k, x in self._numbered(group, d_held):
                d_activated = d_activated + self.weight(self._mixing(k, m)) * x
            unit(m, pull(d_activated))

        loop(self.network.units[0], of_first, None)

    def _of_output(self, k: Any, x: jax.Array, d_scores: jax.Array, weight: Callable) -> jax.Array:
        """Computes the gradient of the sum of the second layer's output k."""
        activated, pull = self._pull(x)
        weight(self._last(k), d_scores * activated)
        gradient = pull(d_scores if factored(self.network) else d_scores * self.weight(self._last(k)))
        if self.network.biased[0]:
            weight(self._bias(k), gradient)
        return gradient

    def _second(self, group: Any) -> list[jax.Array]:
        """Computes the sums of a group of the second layer's outputs."""
        numbers = [group * self._size + index for index in range(self._size)]

        def add(m: Any, totals: list[jax.Array]) -> list[jax.Array]:
            activated = self._activation(self.sums(m))
            return [x + self.weight(self._mixing(k, m)) * activated for k, x in zip(numbers, totals, strict=True)]

        start = [self.empty() + (self.weight(self._bias(k)) if self.network.biased[0] else 0.0) for k in numbers]
        return loop(self.network.units[0], add, start)

    def _add_scores(self, group: Any, held: list[jax.Array], total: jax.Array) -> jax.Array:
        for k, x in self._numbered(group, held):
            total = total + self.weight(self._last(k)) * self._activation(x)
        return total

    def _numbered(self, group: Any, held: list[jax.Array]) -> list[tuple[Any, jax.Array]]:
        return [(group * self._size + index, x) for index, x in enumerate(held)]

    @property
    def _size(self) -> int:
        """The outputs of a group: the most that divide all."""
        return next(size for size in range(TOGETHER, 0, -1) if self.network.units[1] % size == 0)

    @property
    def _groups(self) -> int:
        return self.network.units[1] // self._size

    def _mixing(self, k: Any, m: Any) -> Any:
        return k * self.network.units[0] + m

    def _bias(self, k: Any) -> Any:
        return self.network.units[0] * self.network.units[1] + k

    def _last(self, k: Any) -> Any:
        return self.network.size - self.network.units[1] + k

    def _activation(self, x: jax.Array) -> jax.Array:
        return IN_KERNELS[self.network.activation](x)

    def _pull(self, x: jax.Array) -> tuple[jax.Array, Callable]:
        """Applies the activation, and gives the function from its result's gradient to its argument's."""
        activated, pull = jax.vjp(self._activation, x)

        def plain(gradient: jax.Array) -> jax.Array:
            program = jax.make_jaxpr(pull)(gradient)
            return run(program.jaxpr, program.consts, [gradient], PLAIN, _with_sums)[0]

        return activated, plain


def factored(network: Network) -> bool:
    """Tells whether `factors_of` are not 1: the last layer has one unit, or there is no layer after the first."""
    return len(network.units) == 1 or network.units[1] == 1


def factors_of(network: Network, flat: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Gives what the gradients of units `(N, M)` and of weights `(N, P)` are multiplied by, of all weights `(N, P)`."""
    units, ones = network.units[0], jnp.ones_like(flat)
    if not factored(network):
        return ones[:, :1], ones
    if len(network.units) == 1:
        return flat, ones
    last = flat[:, -1:]
    return flat[:, :units] * last, ones.at[:, :-1].multiply(last)


def loop(count: int, step: Callable[[Any, Any], Any], carry: Any) -> Any:
    """Repeats `carry = step(number, carry)`, and gives the last carry."""
    if count > UNROLLED:
        return jax.lax.fori_loop(0, count, step, carry)
    for number in range(count):
        carry = step(number, carry)
    return carry


def _with_sums(equation: JaxprEqn, inputs: Sequence[Any]) -> list[jax.Array]:
    """Computes an equation; sums of gradients are ordinary ones: Mosaic GPU does not support JAX's primitive."""
    return [jax.lax.add(*inputs)] if equation.primitive is add_jaxvals_p else bind(equation, inputs)
