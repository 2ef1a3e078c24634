"""One training step, a pure function of state, batch, key and rates."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from train import optimizer
from train.config.schema import Config
from train.optimizer import Rates
from train.state import Params, TrainState

Batch = dict[str, jax.Array]
Sums = dict[str, jax.Array]
# (params, batch, dropout key or None) -> sums over the batch's examples. "loss" is minimised, and so is "own_loss", of
# layers that have one; "weight" divides the sums.
LossFunction = Callable[[Params, Batch, jax.Array | None], Sums]


class NonFiniteError(FloatingPointError):
    """A loss, a gradient norm or a parameter is not a finite number."""


def step_key(seed: int) -> jax.Array:
    """Makes the key of a run's steps; the seed itself makes the key of its initial values."""
    return jax.random.key(seed + 1)


@dataclasses.dataclass(frozen=True)
class Step:
    """A training step. Its arguments include the key and the rates, which differ between runs of one shape.

    Attributes:
      loss: The task's loss function, which gives sums over a batch.
      optimizer: The optimizer, whose updates the learning rate multiplies.
      learning_rate: The schedule, a function of the rates and the step.
      accumulate: The number of parts that a batch is split into.
      ema: The decay of the parameters' moving average.
      freeze: The pattern of the parameters that are not trained; '' for none.
    """

    loss: LossFunction
    optimizer: optax.GradientTransformation
    learning_rate: Callable[[Rates, jax.Array], jax.Array]
    accumulate: int = 1
    ema: float = 0.0
    freeze: str = ""

    @classmethod
    def of(cls, config: Config, loss: LossFunction) -> "Step":
        """Makes the step that a config asks for."""
        return cls(
            loss=loss,
            optimizer=optimizer.optimizer(config.optimizer),
            learning_rate=lambda rates, step: optimizer.learning_rate(config.optimizer, rates, step),
            accumulate=config.train.accumulate,
            ema=config.train.ema,
            freeze=config.optimizer.frozen,
        )

    def init(self, params: Params) -> TrainState:
        """Makes the state before the first step."""
        average = jax.tree.map(jnp.copy, params) if self.ema else {}
        return TrainState(jnp.zeros((), jnp.int32), params, self.optimizer.init(params), average, jnp.array(True))

    def __call__(
        self, state: TrainState, batch: Batch, key: jax.Array, rates: Rates
    ) -> tuple[TrainState, dict[str, Any]]:
        """Takes one step, unless the state is not alive or the loss or gradient is not finite.

        Args:
          state: The state.
          batch: The batch.
          key: The run's key, from which every step's key derives; see `step_key`.
          rates: The learning rate's peak, warm-up and end.

        Returns:
          The next state, and a report: the batch's `sums`, the `gradient_norm` before clipping, the `learning_rate`,
          and whether the step was `taken`.
        """
        gradient_of = self._gradient if self.accumulate == 1 else self._accumulated
        gradient, sums = gradient_of(state.params, batch, jax.random.fold_in(key, state.step))
        gradient = jax.tree.map(lambda g: g / sums["weight"], gradient)
        norm, rate = optax.tree.norm(gradient), self.learning_rate(rates, state.step)
        updates, opt_state = self.optimizer.update(gradient, state.opt_state, state.params)
        updates = jax.tree.map(lambda update: -rate * update, updates)
        params = self._thawed(optax.apply_updates(state.params, updates), state.params)
        average = self._thawed(optax.incremental_update(params, state.ema, 1 - self.ema), params) if self.ema else {}
        taken = state.alive & jnp.isfinite(sums["loss"]) & jnp.isfinite(norm)
        new = TrainState(state.step + 1, params, opt_state, average, taken)
        state = jax.tree.map(lambda new, old: jnp.where(taken, new, old), new, state.replace(alive=taken))
        return state, {"sums": sums, "gradient_norm": norm, "learning_rate": rate, "taken": taken}

    def _gradient(self, params: Params, batch: Batch, key: jax.Array) -> tuple[Params, Sums]:
        def summed(params: Params) -> tuple[jax.Array, Sums]:
            sums = self.loss(self._thawed(params, jax.lax.stop_gradient(params)), batch, key)
            return sums["loss"] + sums.get("own_loss", 0.0), sums

        return jax.grad(summed, has_aux=True)(params)

    def _thawed(self, params: Params, frozen: Params) -> Params:
        """Replaces parameters that are not trained by their leaves in `frozen`."""
        if not self.freeze:
            return params
        chosen = optimizer.matching(self.freeze, params)
        return jax.tree.map(lambda is_frozen, x, y: y if is_frozen else x, chosen, params, frozen)

    def _accumulated(self, params: Params, batch: Batch, key: jax.Array) -> tuple[Params, Sums]:
        """Computes the gradient of a batch part by part, to save memory."""
        # Every a-th example goes to part a, so that each part lies on all devices as the batch does.
        parts = jax.tree.map(lambda x: jnp.moveaxis(x.reshape(-1, self.accumulate, *x.shape[1:]), 1, 0), batch)

        def add(total: Any, numbered: tuple[jax.Array, Batch]) -> tuple[Any, None]:
            number, part = numbered
            return jax.tree.map(jnp.add, total, self._gradient(params, part, jax.random.fold_in(key, number))), None

        first = jax.tree.map(lambda x: x[0], parts)
        zeros = optax.tree.zeros_like(jax.eval_shape(self._gradient, params, first, key))
        return jax.lax.scan(add, zeros, (jnp.arange(self.accumulate), parts))[0]
