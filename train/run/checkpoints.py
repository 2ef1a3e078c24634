"""Checkpoints with Orbax: written asynchronously; the newest and the best are kept, and damaged ones are skipped.

Orbax writes `<step>.orbax-checkpoint-tmp` and renames it when it is complete, so a folder named by a step was complete
once. `train.run.digest` notices later damage.
"""

import contextlib
import errno
import functools
import logging
import re
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
from flax.traverse_util import flatten_dict
from orbax.checkpoint import v1 as ocp

from attention.errors import UsageError, printable
from train.cli import files
from train.mesh import processes
from train.run import digest, workdir
from train.state import Params, TrainState
from train.step import NonFiniteError

FOLDER = "checkpoints"
PARAMS, AVERAGED = "params", "ema"  # the parts of a state that can be evaluated
_STEP = re.compile(r"0|[1-9]\d*")
_UNFINISHED = ".orbax-checkpoint-tmp"
_METADATA = "_CHECKPOINT_METADATA"  # a file of Orbax's that every checkpoint has
_NOT_THERE = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EINVAL}  # the system's errors for missing files


class Checkpoints(contextlib.AbstractContextManager):
    """The checkpoints of a work directory, in `checkpoints/<step>`; the newest `keep` and the best stay.

    A context manager that finishes what it is writing.
    """

    def __init__(self, directory: Path, keep: int):
        logging.getLogger("absl").setLevel(logging.CRITICAL)
        self._directory = directory.absolute()
        if printable(str(self._directory)) != str(self._directory):
            raise UsageError(f"Checkpoints need a folder whose name is in UTF-8; rename {self._directory}.")
        self._folder = self._directory / FOLDER
        self._keep, self._best = keep, frozenset[int]()
        self._writing: tuple[Any, int] | None = None  # Orbax's response, and the step

    def __exit__(self, kind: type | None, *exception: object) -> None:
        try:
            self.wait()
        except UsageError:
            if kind is None:  # else the error that ended the run is reported
                raise

    @contextlib.contextmanager
    def explaining_a_full_disk(self, step: int | None = None) -> Iterator[None]:
        """Turns the error of a full disk into a UsageError, and removes the unfinished checkpoint of `step`."""
        try:
            yield
        except Exception as error:
            what = f"{self._directory} cannot be written"
            first = "raise the limit (ulimit -n)" if files.error_number(error) in files.SCARCE else "free space"
            remedy = f"{first} and continue the run in {self._directory}"
            if step is not None:
                _rmtree(self._folder / f"{step}{_UNFINISHED}")
                what = f"The checkpoint of step {step} could not be written to {self._folder}"
            if isinstance(error, UsageError) or not (reason := files.why_unwritable(error)):
                raise
            raise UsageError(f"{what} ({reason}); {self.kept()}: {remedy}.") from error

    def steps(self) -> list[int]:
        """Lists the steps that have a checkpoint, in order."""
        return [step for step in self.numbered() if (self._folder / str(step) / _METADATA).is_file()]

    def numbered(self) -> list[int]:
        """Lists the steps that have a folder, in order, even if its checkpoint is incomplete."""
        if not self._folder.is_dir():
            return []
        return sorted(int(path.name) for path in self._folder.iterdir() if _STEP.fullmatch(path.name) and path.is_dir())

    def kept(self) -> str:
        """Says in words which checkpoint a run can continue from."""
        last = max(filter(self._resumes, self.steps()), default=0)
        return f"the last good checkpoint is step {last}" if last else "no checkpoint was saved yet"

    def last_good(self) -> str:
        """Finishes what is being written, then says what `kept` says; all processes must call it."""
        self.wait()
        return self.kept()

    def save(self, step: int, tree: Any, progress: dict[str, Any] | None, best: Iterable[int]) -> None:
        """Starts writing a checkpoint; raises a NonFiniteError if a number is not finite.

        Args:
          step: The number of steps taken.
          tree: The state, or the part of it that is evaluated; see `evaluated`.
          progress: What the run continues with besides the state, as JSON values; None for a part of the state.
          best: The best steps so far, which are kept.
        """
        last = self.last_good()
        if broken := digest.not_finite(tree):
            raise NonFiniteError(
                f"After step {step}, {len(broken)} arrays of the state are not finite, such as {broken[0]}, so it is "
                f"not saved; {last}. In another --workdir, try a lower optimizer.learning_rate, a longer "
                "optimizer.warmup or a larger optimizer.epsilon."
            )
        self._best = frozenset(best)
        content = {"step": step, "progress": progress, "digests": digest.digests(tree)}
        with self.explaining_a_full_disk(step):
            path = self._folder / str(step)
            self._writing = ocp.save_async(path, tree, custom_metadata=digest.seal(content)), step

    def wait(self) -> None:
        """Waits until the checkpoint is on disk, then removes those that are no longer needed."""
        if self._writing:
            (response, step), self._writing = self._writing, None
            with self.explaining_a_full_disk(step):
                response.result()
            steps = self.steps()
            resuming = [*filter(self._resumes, steps)]
            self._remove(set(steps) - set(resuming[-self._keep :]) - self._best)

    def restore(self, abstract: TrainState) -> tuple[int, TrainState, dict[str, Any]] | None:
        """Reads the newest checkpoint that a run can continue from: step, state and progress; None if there is none.

        Newer checkpoints that are damaged are moved to `damaged/`, with a printed line for each; newer best steps are
        removed, since the run will reach them again. If all are damaged, it raises a UsageError.
        """
        damaged: dict[int, digest.DamagedError] = {}
        self._tidy()
        steps = self.numbered()[::-1]
        steps, resuming = processes.of_first([steps, [*filter(self._resumes, steps)]])
        for step in resuming:
            try:
                state, content = self._read(step, abstract)
            except digest.DamagedError as error:
                damaged[step] = error
            else:
                self._set_aside(damaged)
                self._remove({later for later in steps if later > step} - damaged.keys())
                return step, state, content["progress"]
        if damaged:
            raise UsageError(
                f"None of the checkpoints in {self._folder} can be read (steps {sorted(damaged)}; "
                f"{damaged[max(damaged)]}); choose another --workdir to start afresh."
            )
        return None

    def clear(self) -> None:
        """Removes all checkpoints."""
        self._remove(self.numbered())

    def load_params(self, step: int, abstract: Params, averaged: bool) -> Params:
        """Loads only the parameters of one of `steps`, or only their moving average."""
        name = AVERAGED if averaged else PARAMS
        with self._explaining_damage(step):
            return self._read(step, {name: abstract}, partial=True)[0][name]

    def load_evaluated(self, step: int) -> dict[str, Params]:
        """Loads onto the CPU the parameters of a step, their moving average, or both, whichever it has."""
        here = jax.sharding.SingleDeviceSharding(jax.local_devices(backend="cpu")[0])
        with self._explaining_damage(step):
            describe = functools.partial(jax.ShapeDtypeStruct, sharding=here)
            abstract = jax.tree.map(lambda leaf: describe(leaf.shape, leaf.dtype), self._parts(step))
            return self._read(step, abstract, partial=True)[0]

    def shapes(self, step: int) -> dict[str, tuple[int, ...]]:
        """Lists the shape of every parameter of a step by its path, without loading it."""
        with self._explaining_damage(step):
            params, *_ = self._parts(step).values()  # a best step may have only the average
            return {path: tuple(leaf.shape) for path, leaf in flatten_dict(params, sep="/").items()}

    def _parts(self, step: int) -> dict[str, Any]:
        """Describes the arrays of a step that can be evaluated."""
        there = ocp.metadata(self._folder / str(step)).metadata
        return {name: there[name] for name in (PARAMS, AVERAGED) if there.get(name)}

    def choose(self, step: str, replica: int) -> int:
        """Finds the step that a user writes as `last`, as `best`, the replica's, or as a number."""
        steps = self.steps()
        if not steps:
            raise UsageError(f"{self._directory} has no checkpoint yet.")
        if step == "last":
            return steps[-1]
        number = str(workdir.read_result(self._directory, replica).get("best_step")) if step == "best" else step
        if number not in map(str, steps):
            raise UsageError(f"--step={step} has no checkpoint; choose last, best or one of {steps}.")
        return int(number)

    @contextlib.contextmanager
    def _explaining_damage(self, step: int) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if isinstance(error, UsageError) and not isinstance(error, digest.DamagedError):
                raise
            raise digest.DamagedError(
                f"The checkpoint of step {step} cannot be read ({_first_line(error)}); there are {self.steps()}."
            ) from error

    def _resumes(self, step: int) -> bool:
        """Tells whether a run can continue from a checkpoint; one that cannot be read here counts, and fails later."""
        try:
            sealed = ocp.checkpointables_metadata(self._folder / str(step)).custom_metadata
            return digest.unseal(sealed)["progress"] is not None
        except Exception:  # `_read` will say what is wrong
            return True

    def _read(self, step: int, abstract: Any, partial: bool = False) -> tuple[Any, dict[str, Any]]:
        """Reads state and content; if one process cannot read the checkpoint, all fail."""
        path, tree, content, failure = self._folder / str(step), None, {}, None
        _ignore_late_callbacks()
        try:
            content = digest.unseal(ocp.checkpointables_metadata(path).custom_metadata)
            if "step" not in content:
                raise UsageError(
                    f"The checkpoints in {self._directory} are of an older version; choose another --workdir."
                )
            if content["step"] != step:
                raise digest.DamagedError(f"it is of step {content['step']}, though its folder is named {step}")
            with _reading(partial):
                tree = ocp.load(path, abstract)
        except Exception as error:
            if isinstance(error, UsageError) and not isinstance(error, digest.DamagedError):
                raise  # in all processes alike
            failure = {"says": _first_line(error), "damage": _is_damage(error)}
        failures = [failed for failed in processes.exchange(failure) if failed]
        for failed in failures:
            if not failed["damage"]:
                raise UsageError(
                    f"The checkpoint of step {step} cannot be read now ({failed['says']}), but it may be whole; fix "
                    "that, and run the same command again."
                )
        if failures:
            raise digest.DamagedError(failures[0]["says"])
        digest.verify(tree, content["digests"])
        return tree, content

    def _tidy(self) -> None:
        """Removes unfinished checkpoints of killed processes; refuses files that are named like a checkpoint."""
        for path in self._folder.iterdir() if self._folder.is_dir() else ():
            if _STEP.fullmatch(path.name) and not path.is_dir():
                raise UsageError(f"{path} is a file, but a checkpoint of that name is a folder; move it elsewhere.")
            if path.name.endswith(_UNFINISHED) and processes.is_first():
                shutil.rmtree(path, ignore_errors=True)

    def _remove(self, steps: Iterable[int]) -> None:
        """Removes checkpoints. Each is renamed first, so that no folder named by a step is ever incomplete."""
        for step in steps if processes.is_first() else ():
            path = self._folder / str(step)
            shutil.rmtree(path.rename(path.with_name(path.name + _UNFINISHED)), ignore_errors=True)

    def _set_aside(self, damaged: dict[int, digest.DamagedError]) -> None:
        if processes.is_first():
            for step, error in damaged.items():
                print(f"Checkpoint {step} is damaged ({error}); moved to damaged/; an earlier one is used.")
                target = self._directory / "damaged"
                target.mkdir(exist_ok=True)
                shutil.rmtree(target / str(step), ignore_errors=True)
                shutil.move(self._folder / str(step), target / str(step))


def _rmtree(folder: Path) -> None:
    """Removes a folder to which threads may still write for a moment."""
    for _ in range(20):
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.1)
        if not folder.exists():
            return


def evaluated(state: TrainState) -> dict[str, Params]:
    """Takes the part of a state that is evaluated, under the name by which `load_params` finds it."""
    return {AVERAGED: state.ema} if state.ema else {PARAMS: state.params}


def _reading(partial: bool) -> ocp.Context:
    """Makes a context that loads without Orbax's barriers, since no process may wait for one that cannot read."""
    context = ocp.Context()
    context.pytree.loading.partial_load = partial
    context.multiprocessing.primary_host = jax.process_index()
    context.multiprocessing.active_processes = {jax.process_index()}
    return context


def _first_line(error: BaseException) -> str:
    if isinstance(error, digest.DamagedError):
        return str(error)
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {str(error).strip()[:100]}".splitlines()[0]


def _is_damage(error: BaseException | None) -> bool:
    """Tells whether an error means damage; errors of memory, disk or network do not."""
    while error is not None:
        passing = isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error)
        if passing or files.error_number(error) not in (None, *_NOT_THERE):
            return False
        error = error.__cause__
    return True


@functools.cache
def _ignore_late_callbacks() -> None:
    """Hides errors of unfinished reads of a failed load, which report to its closed event loop."""
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    before = sys.unraisablehook

    def hook(late: Any) -> None:
        if str(late.exc_value) != "Event loop is closed":
            before(late)

    sys.unraisablehook = hook
