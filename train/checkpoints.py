"""Checkpoints with Orbax: asynchronous, the newest few and the best kept, damaged ones passed over."""

import dataclasses
import logging
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
from orbax.checkpoint import v1 as ocp

from attention.errors import UsageError
from train.state import Params, TrainState

_policies = ocp.training.preservation_policies


@dataclasses.dataclass
class _KeepBest(_policies.PreservationPolicy):
    """Preserves the best steps, whichever they are at the time."""

    steps: frozenset[int] = frozenset()

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> Sequence[bool]:
        return [checkpoint.step in self.steps for checkpoint in checkpoints]


class Checkpoints:
    """The checkpoints of one work directory; a context manager that finishes what it is writing.

    Args:
      workdir: The run's folder; checkpoints stand in `checkpoints/<step>`.
      keep: How many of the newest stay.
    """

    def __init__(self, workdir: Path, keep: int):
        logging.getLogger("absl").setLevel(logging.CRITICAL)
        self._workdir = workdir.absolute()
        self._best = _KeepBest()
        policy = _policies.AnyPreservationPolicy([_policies.LatestN(keep), self._best])
        self._orbax = ocp.training.Checkpointer(self._workdir / "checkpoints", preservation_policy=policy)

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *exception: object) -> None:
        self._orbax.close()

    def steps(self) -> list[int]:
        """Steps that have a checkpoint, in order."""
        return sorted(checkpoint.step for checkpoint in self._orbax.checkpoints)

    def save(self, step: int, state: TrainState, batches: Any, progress: dict, best: Iterable[int]) -> None:
        """Starts writing state, data iterator and progress (plain JSON values); `best` are the best steps so far.

        Raises:
          UsageError: what was being written before could not be, as on a full disk.
        """
        self._best.steps = frozenset(best)
        try:
            items = {"state": state, "data": batches}
            # Without force, Orbax skips a save while the one before is still being written.
            self._orbax.save_checkpointables_async(step, items, force=True, custom_metadata=progress)
        except OSError as error:
            raise self._unwritable(error) from error

    def wait(self) -> None:
        """Until all that was saved is on disk."""
        try:
            self._orbax.wait()
        except OSError as error:
            raise self._unwritable(error) from error

    def restore(self, abstract: TrainState, batches: Any) -> tuple[TrainState, dict] | None:
        """The newest readable checkpoint's state and progress; `batches` is set to where it was.

        Damaged checkpoints on the way are moved to `damaged/` with a line saying so.

        Args:
          abstract: Shapes, dtypes and shardings of the state.
          batches: A fresh data iterator of the same config.

        Returns:
          State and progress, or None where no checkpoint was ever written.

        Raises:
          UsageError: there are checkpoints, but none can be read.
        """
        damaged: dict[int, Exception] = {}
        _ignore_late_callbacks()
        for step in reversed(self.steps()):
            try:
                loaded = self._orbax.load_checkpointables(step, {"state": abstract, "data": batches})
                progress = self._orbax.checkpointables_metadata(step).custom_metadata
                restored = loaded["state"], dict(progress)
            except Exception as error:
                damaged[step] = error
            else:
                self._set_aside(damaged)
                return restored
        if damaged:
            raise UsageError(
                f"None of the checkpoints in {self._workdir / 'checkpoints'} can be read (steps {sorted(damaged)}; "
                f"{_first_line(damaged[max(damaged)])}); choose another --workdir to start afresh."
            )
        return None

    def load(self, step: int, abstract: Any) -> Any:
        """The state of one step.

        Raises:
          UsageError: it cannot be read.
        """
        try:
            return self._orbax.load(step, abstract)
        except Exception as error:
            raise UsageError(
                f"The checkpoint of step {step} cannot be read ({_first_line(error)}); there are {self.steps()}."
            ) from error

    def load_params(self, step: int, abstract: Params, averaged: bool) -> Params:
        """The parameters of one step alone, without what the optimizer keeps.

        Args:
          step: One of `steps`.
          abstract: Their shapes, dtypes and shardings.
          averaged: Whether to load their moving average.

        Raises:
          UsageError: they cannot be read.
        """
        name = "ema" if averaged else "params"
        context = ocp.Context()
        context.pytree.loading.partial_load = True
        with context:
            return self.load(step, {name: abstract})[name]

    def shape(self, step: int, *path: str) -> tuple[int, ...]:
        """The shape of one array of one step, such as `params`, `embed`, `embedding`; nothing is loaded.

        Raises:
          UsageError: it cannot be read.
        """
        try:
            leaf = self._orbax.metadata(step).metadata
            for name in path:
                leaf = leaf[name]
            return tuple(leaf.shape)
        except Exception as error:
            raise UsageError(
                f"The checkpoint of step {step} cannot be read ({_first_line(error)}); there are {self.steps()}."
            ) from error

    def choose(self, step: str, best: Callable[[], int]) -> int:
        """The step that `last`, `best` or a number names.

        Args:
          step: As a person writes it.
          best: Says which is the best.

        Raises:
          UsageError: it has no checkpoint.
        """
        steps = self.steps()
        if not steps:
            raise UsageError(f"{self._workdir} has no checkpoint yet.")
        if step == "last":
            return steps[-1]
        if step == "best":
            return best()
        if step not in map(str, steps):
            raise UsageError(f"--step={step} has no checkpoint; choose last, best or one of {steps}.")
        return int(step)

    def _set_aside(self, damaged: dict[int, Exception]) -> None:
        for step, error in damaged.items():
            print(f"Checkpoint {step} is damaged ({_first_line(error)}); moved to damaged/, the one before is used.")
            if jax.process_index() == 0:
                target = self._workdir / "damaged"
                target.mkdir(exist_ok=True)
                shutil.rmtree(target / str(step), ignore_errors=True)
                shutil.move(self._workdir / "checkpoints" / str(step), target / str(step))
        if damaged:
            self._orbax.reload()

    def _unwritable(self, error: OSError) -> UsageError:
        return UsageError(
            f"A checkpoint could not be written to {self._workdir / 'checkpoints'} ({error.strerror or error}); "
            f"the last good one is step {max(self.steps(), default=0)}: free space and run the same command again."
        )


def _first_line(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {str(error).strip()[:100]}".splitlines()[0]


def _ignore_late_callbacks() -> None:
    """Reads that were under way when a load failed still report to its closed event loop: nobody wants to know."""
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    before = sys.unraisablehook

    def hook(late: Any) -> None:
        if str(late.exc_value) != "Event loop is closed":
            before(late)

    sys.unraisablehook = hook


def abstract_state(state: TrainState) -> TrainState:
    """Shapes, dtypes and shardings of a state, for `restore` and `load`."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)
