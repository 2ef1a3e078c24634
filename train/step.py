"""One training step and one evaluation step, as pure functions of state and batch."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from train import optimizer
from train.config.schema import Config
from train.config.timetable import Timetable
from train.state import Params, TrainState

Batch = dict[str, jax.Array]
Sums = dict[str, jax.Array]
# (params, batch, dropout key or None) -> sums over the batch's examples; "loss" is minimised, "weight" divides.
LossFunction = Callable[[Params, Batch, jax.Array | None], Sums]


class NonFiniteError(FloatingPointError):
    """A loss, a gradient norm or a parameter is not a finite number."""


def step_key(seed: int) -> jax.Array:
    """Returns the key of a run's steps, which differs from the key of its initial values, made of the seed itself."""
    return jax.random.key(seed + 1)


@dataclasses.dataclass(frozen=True)
class Trainer:
    """The loss, optimizer and settings of a training step, which never change.

    Attributes:
      loss: The task's loss function, which returns sums over a batch.
      optimizer: The optimizer, from `train.optimizer`.
      learning_rate: The schedule, which is reported.
      accumulate: How many parts a batch is split into.
      ema: The decay of the parameters' moving average.
      freeze: The pattern of the parameters that are not trained; '' for none.
    """

    loss: LossFunction
    optimizer: optax.GradientTransformation
    learning_rate: optax.Schedule
    accumulate: int
    ema: float
    freeze: str = ""

    @classmethod
    def of(cls, config: Config, task: Any) -> "Trainer":
        """Returns the trainer of a config."""
        timetable = Timetable.of(config, task.train_examples)
        learning_rate = optimizer.schedule(config.optimizer, timetable.warmup, timetable.total)
        return cls(
            loss=task.loss,
            optimizer=optimizer.optimizer(config.optimizer, learning_rate),
            learning_rate=learning_rate,
            accumulate=config.train.accumulate,
            ema=config.train.ema,
            freeze=config.optimizer.frozen,
        )

    def init(self, params: Params) -> TrainState:
        """Returns the state before the first step."""
        average = jax.tree.map(jnp.copy, params) if self.ema else {}
        return TrainState(jnp.zeros((), jnp.int32), params, self.optimizer.init(params), average)

    def shapes(self, task: Any) -> TrainState:
        """Returns the shapes of the state before the first step; nothing is computed."""
        return jax.eval_shape(lambda: self.init(task.init(jax.random.key(0))))

    def train_step(self, state: TrainState, batch: Batch, key: jax.Array) -> tuple[TrainState, dict[str, Any]]:
        """Returns the next state and a report: the batch's `sums`, `gradient_norm` before clipping, `learning_rate`.

        The randomness of every step derives from the key; see `step_key`.
        """
        gradient_of = self._gradient if self.accumulate == 1 else self._accumulated
        gradient, sums = gradient_of(state.params, batch, jax.random.fold_in(key, state.step))
        gradient = jax.tree.map(lambda g: g / sums["weight"], gradient)
        updates, opt_state = self.optimizer.update(gradient, state.opt_state, state.params)
        params = self._thawed(optax.apply_updates(state.params, updates), state.params)
        average = self._thawed(optax.incremental_update(params, state.ema, 1 - self.ema), params) if self.ema else {}
        report = {
            "sums": sums,
            "gradient_norm": optax.tree.norm(gradient),
            "learning_rate": self.learning_rate(state.step),
        }
        return TrainState(state.step + 1, params, opt_state, average), report

    def _gradient(self, params: Params, batch: Batch, key: jax.Array) -> tuple[Params, Sums]:
        """Returns the gradient of the summed loss, and the sums."""

        def summed(params: Params) -> tuple[jax.Array, Sums]:
            sums = self.loss(self._thawed(params, jax.lax.stop_gradient(params)), batch, key)
            return sums["loss"], sums

        return jax.grad(summed, has_aux=True)(params)

    def _thawed(self, params: Params, frozen: Params) -> Params:
        """Returns `params` with the leaves of `frozen` where parameters are not trained."""
        if not self.freeze:
            return params
        chosen = optimizer.matching(self.freeze, params)
        return jax.tree.map(lambda is_frozen, x, y: y if is_frozen else x, chosen, params, frozen)

    def _accumulated(self, params: Params, batch: Batch, key: jax.Array) -> tuple[Params, Sums]:
        """Returns gradient and sums of a batch that is taken in parts, one after another, to save memory."""
        # Every a-th example goes to part a, so that each part lies on all devices as the batch does.
        pieces = jax.tree.map(lambda x: jnp.moveaxis(x.reshape(-1, self.accumulate, *x.shape[1:]), 1, 0), batch)

        def add(total: Any, numbered: tuple[jax.Array, Batch]) -> tuple[Any, None]:
            number, part = numbered
            return jax.tree.map(jnp.add, total, self._gradient(params, part, jax.random.fold_in(key, number))), None

        first = jax.tree.map(lambda x: x[0], pieces)
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(self._gradient, params, first, key))
        return jax.lax.scan(add, zeros, (jnp.arange(self.accumulate), pieces))[0]
