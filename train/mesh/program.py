"""The compiled program of a training: many steps a call, with the number of steps, keys and rates as arguments."""

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from train.config.timetable import Timetable
from train.mesh import compilation
from train.mesh.feeds import Feed, Rows
from train.mesh.replicas import Replicas
from train.optimizer import Rates
from train.state import TrainState
from train.step import Step, step_key

Report = dict[str, Any]  # the reports of a call's steps, `(most, ...)`; see `Step`
Context = Callable[[], contextlib.AbstractContextManager]


class StepProgram:
    """The training steps of all replicas, compiled once for each shape of batches.

    One program serves every seed, rate, length and number of steps in a call, so a step gives the same bits however
    calls are cut. It compiles within the context that `compiling` makes.
    """

    def __init__(
        self,
        step: Step,
        replicas: Replicas,
        feed: Feed,
        timetable: Timetable,
        compiling: Context = contextlib.nullcontext,
    ):
        self._step, self._replicas, self._feed, self._compiling = step, replicas, feed, compiling
        self._of_each = replicas.arguments(
            lambda replica: (
                step_key(replicas.seeds[replica]),
                Rates(jnp.float32(replicas.rates[replica]), jnp.int32(timetable.warmup), jnp.int32(timetable.total)),
                jnp.uint32(replicas.seeds[replica]),
            )
        )
        self._compiled: dict[tuple, Any] = {}

    def compile(self, state: TrainState, rows: Rows) -> jax.stages.Compiled:
        """Compiles for the shapes of a state and batches; see `compilation.compiled`."""
        compiled = self._compiled[_shapes(rows)] = compilation.compiled(lambda: self.lower(state, rows))
        return compiled

    def lower(self, state: TrainState, rows: Rows) -> jax.stages.Lowered:
        """Lowers the program for the shapes of a state and batches."""
        shardings = jax.tree.map(lambda leaf: leaf.sharding, state)

        # A new function each time, so that it is traced.
        def call(state: TrainState, *others: Any) -> tuple[TrainState, Report]:
            return self._call(state, *others)

        call = jax.jit(call, donate_argnums=0, out_shardings=(shardings, None))
        count = jax.ShapeDtypeStruct((), jnp.int32)  # an array would be on the mesh, which may be only described
        return call.lower(state, self._feed.arrays, rows, count, self._of_each)

    def __call__(self, state: TrainState, rows: Rows, count: int) -> tuple[TrainState, Report]:
        """Takes `count` steps without waiting for the result; reuses the state's memory."""
        if _shapes(rows) not in self._compiled:
            with self._compiling():
                self.compile(state, rows)
        return self._compiled[_shapes(rows)](state, self._feed.arrays, rows, jnp.int32(count), self._of_each)

    def _call(
        self, state: TrainState, arrays: Any, rows: Rows, count: jax.Array, of_each: Any
    ) -> tuple[TrainState, Report]:
        def one(state: TrainState, arrays: Any, row: Rows, of_one: Any) -> tuple[TrainState, Report]:
            key, rates, seed = of_one
            return self._step(state, self._feed.batch(arrays, row, seed), key, rates)

        step = self._replicas.over(one, True, False, True, True)

        def body(number: jax.Array, carry: tuple[TrainState, Report]) -> tuple[TrainState, Report]:
            state, reports = carry
            state, report = step(state, arrays, jax.tree.map(lambda x: x[number], rows), of_each)
            return state, jax.tree.map(lambda all, new: all.at[number].set(new), reports, report)

        first = jax.tree.map(lambda x: x[0], rows)
        shapes = jax.eval_shape(step, state, arrays, first, of_each)[1]
        reports = jax.tree.map(lambda x: jnp.zeros((self._feed.most, *x.shape), x.dtype), shapes)
        # To ask at each step whether any replica is alive, devices would have to wait for one another.
        return jax.lax.fori_loop(0, count, body, (state, reports))


def _shapes(rows: Rows) -> tuple:
    return tuple((name, rows[name].shape) for name in sorted(rows))
