"""Batches of examples: endless and shuffled for training, complete and in order for evaluation.

Every training example is a function of (seed, position) alone, where the position is its place in the endless stream
over all processes. The stream therefore does not depend on batch size, processes, threads or workers, and a run resumes
by reading on from a position. A recipe of a few integers says which example it is, such as which window of a text;
`train.data.device` follows the same recipes with arrays on a device.
"""

import atexit
import contextlib
import dataclasses
import errno
import functools
import multiprocessing
import os
import resource
import signal
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import grain
import jax
import numpy as np
from absl import flags
from jaxtyping import Integer

from attention.errors import UsageError
from train.data import draws
from train.data.draws import Draws, Word
from train.data.encodings.cache import Lazy
from train.data.section import Batches

T = TypeVar("T")
Batch = dict[str, np.ndarray]
Example = dict[str, Any]  # numpy's arrays and numbers, or traced arrays on a device
Recipe = Mapping[str, Any]  # integers, traced on a device
Recipes = dict[str, Integer[np.ndarray, "..."]]
Raw = Mapping[str, Any]  # what an example is made of, by name

NOTHING = -1  # the index of an example that only fills a batch
ENDLESS = 2**62  # batches
_FILES = 20  # files that each worker opens, and its parent too
_SHORT = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)

# One thread is the fastest: making small examples holds the interpreter, and more threads only contend for it.
_READ = grain.ReadOptions(num_threads=1, prefetch_buffer_size=4)


class BatchIterator(grain.DatasetIterator):
    """Batches from `batches[0]` on. Its state is the number taken, whichever threads or workers make them."""

    def __init__(self, batches: grain.MapDataset, workers: int = 0):
        super().__init__()
        self.batches, self.workers = batches, workers
        self._taken, self._ahead = 0, None

    def __next__(self) -> Batch:
        """Takes the next batch; raises UsageError if a worker was killed, or files or processes run short."""
        self._assert_not_closed()
        try:
            if self._ahead is None:
                self._ahead = self._prefetching()
            batch = next(self._ahead)
        except StopIteration:
            self._stop()
            raise
        except (OSError, RuntimeError) as error:
            with contextlib.suppress(AssertionError):  # from workers that never started
                self._stop()
            raise _explained(error) from error
        self._taken += 1
        return batch

    def get_state(self) -> dict[str, int]:
        """Counts the batches taken: the same in every process, for any number of processes."""
        return {"taken": self._taken}

    def set_state(self, state: dict[str, int]) -> None:
        """Moves to a position that `get_state` gave, here or on another iterator with the same data and seed."""
        self._stop()
        self._taken = state["taken"]

    def close(self) -> None:
        """Stops threads and workers."""
        self._stop()
        super().close()

    def _prefetching(self) -> grain.DatasetIterator:
        ahead = self.batches[self._taken :].to_iter_dataset(_READ)
        if self.workers:
            if not flags.FLAGS.is_parsed():  # Grain's workers read absl flags, which only absl's own main parses
                flags.FLAGS.mark_as_parsed()
            _check_files(self.workers)
            _kill_workers_at_exit()
            options = grain.MultiprocessingOptions(self.workers, per_worker_buffer_size=2)
            ahead = ahead.mp_prefetch(options, worker_init_fn=_depend)
        return iter(ahead)

    def _stop(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.close()


def _depend(index: int, count: int) -> None:
    """Makes a worker end only with its parent, which handles the signals sent to a whole job."""
    del index, count
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


@functools.cache
def _kill_workers_at_exit() -> None:
    """Kills workers at exit, where `multiprocessing` would send a signal that they ignore, and wait for them."""
    atexit.register(lambda: [worker.kill() for worker in multiprocessing.active_children()])


def _explained(error: OSError | RuntimeError) -> Exception:
    """Explains in one sentence what the operating system did to workers; other errors stay as they are."""
    remedy = "continue with the same command and fewer data.workers (0 needs none)"
    if short := [text for text in map(os.strerror, _SHORT) if text in str(error)]:  # a worker's error has no number
        return UsageError(f"The data cannot be prepared ({short[0]}); raise that limit, or {remedy}.")
    if "terminated unexpectedly" in str(error):  # Grain's words
        return UsageError(f"A process that prepares data was killed, perhaps because memory ran out; {remedy}.")
    return error


def _check_files(workers: int) -> None:
    """Raises UsageError if the limit on open files is too low for the workers: Grain would fail half-way."""
    least, limit = _FILES * (workers + 1), resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit != resource.RLIM_INFINITY and (left := limit - len(os.listdir("/dev/fd"))) < least:
        raise UsageError(
            f"data.workers={workers} needs {least} more open files, but the limit of {limit} leaves {left}; raise it "
            f"(ulimit -n {limit - left + least}), or continue with the same command and fewer data.workers."
        )


class Material:
    """A source of what examples are made of: the host reads it piece by piece, a device holds it whole."""

    def why_host(self) -> str:
        """Says why a device cannot hold it; '' if it can."""
        return ""

    def read(self, recipe: Recipe) -> Raw:
        """Reads what one example needs, by name."""

    def shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Describes the arrays of `held` without reading all of them."""

    def held(self) -> dict[str, np.ndarray]:
        """Reads everything that a device holds, by name."""

    def gather(self, held: Mapping[str, jax.Array], recipe: Recipe) -> Raw:
        """Takes what `read` gives from the arrays on a device."""


@dataclasses.dataclass(frozen=True)
class Examples(Lazy):
    """A split cut into examples, and their batches; `len` counts the examples in an epoch of training.

    A subclass defines the recipes and materials, and makes an example from them in numpy and in jax.numpy alike, so
    that it is the same wherever it is made. The split holds images or tokenised rows; its `content` identifies them.
    """

    data: Batches
    split: Any

    whole_batches: ClassVar[bool] = False  # whether an epoch of training leaves out an incomplete batch

    def __len__(self) -> int:
        return len(self.split)

    @property
    def eval_length(self) -> int:
        """The number of examples in evaluation."""
        return len(self)

    @property
    def content(self) -> str:
        """A text that identifies the data."""
        return self.split.content

    @property
    def example_bytes(self) -> int:
        """The bytes that an example takes in a batch."""
        return sum(np.asarray(value).nbytes for value in self.evaluate(0).values())

    @property
    def epoch_length(self) -> int:
        """The number of examples in an epoch of training."""
        return len(self) - (len(self) % self.data.batch_size if self.whole_batches else 0)

    def epoch(self, seed: int, number: int) -> Recipes:
        """Orders the `epoch_length` examples of an epoch."""
        return self.recipes(draws.permutation(len(self), draws.ORDER, seed, number))

    def recipes(self, numbers: Integer[np.ndarray, " n"]) -> Recipes:
        """Describes some examples by integers, among them `index`, in arrays of one shape."""

    def evaluation(self, count: int) -> Recipes:
        """Describes the first `count` examples of evaluation; zeros with the index NOTHING fill the last batch."""
        fill = -count % self.data.eval_batch_size
        return {
            name: np.pad(array, (0, fill), constant_values=NOTHING * (name == "index"))
            for name, array in self.recipes(np.arange(count)).items()
        }

    def materials(self, training: bool) -> Sequence[Material]:
        """Lists what examples are made of, in training or in evaluation; by default nothing."""
        return ()

    def read(self, recipe: Recipe, training: bool) -> Raw:
        """Reads what an example is made of."""
        return merged(material.read(recipe) for material in self._materials[training])

    def example(self, raw: Raw, recipe: Recipe, draw: Draws | None = None) -> Example:
        """Makes an example with its `index`: for training if there are draws, else for evaluation, with `weight`."""

    def blank(self, example: Example, recipe: Recipe) -> Example:
        """Replaces an example that only fills a batch, one whose index is NOTHING, by zeros."""
        index = recipe["index"]
        xp = draws.namespace(index)
        if xp is np and index != NOTHING:
            return example
        zeros = {name: xp.zeros_like(value) for name, value in example.items()} | {"index": index}
        return {name: xp.where(index == NOTHING, zeros[name], value) for name, value in example.items()}

    def make(self, raw: Raw, recipe: Recipe, seed: Word | None = None) -> Example:
        """Makes an example of a batch, for training if there is a seed."""
        if seed is None:
            return self.blank(self.example(raw, recipe), recipe)
        return self.example(raw, recipe, Draws(draws.EXAMPLE, seed, recipe["high"], recipe["low"]))

    def batch(self, recipes: Recipes, row: int, seed: int | None = None) -> Batch:
        """Makes the batch that a row of recipes describes; see `make`."""
        each = _each({name: array[row] for name, array in recipes.items()})
        return _stack([self.make(self.read(recipe, seed is not None), recipe, seed) for recipe in each])

    def evaluate(self, number: int) -> Example:
        """Makes one of the `eval_length` examples of evaluation."""
        [recipe] = _each(self.recipes(np.array([number])))
        return self.example(self.read(recipe, training=False), recipe)

    def why_host(self, training: bool) -> str:
        """Says why a device cannot make the examples; '' if it can."""
        return next(filter(None, (material.why_host() for material in self._materials[training])), "")

    def train_batches(self, seed: int, process_index: int = 0, process_count: int = 1) -> BatchIterator:
        """Makes endless batches of shuffled examples. An epoch has every example once; a batch may span two epochs.

        Seeds differ in order and in draws. A process takes its block of each global batch, so arrays are (B, ...) for
        B = data.batch_size / process_count. `get_state` and `set_state` (or Orbax) resume the iterator exactly, in any
        process; `close` it when done. Raises UsageError unless the processes divide the batch size.
        """
        per_process(self.data.batch_size, process_count, "data.batch_size")
        batch = functools.partial(self._train_batch, seed, process_index, process_count)
        return BatchIterator(grain.MapDataset.range(ENDLESS).map(batch), self.data.workers)

    def train_recipes(
        self, seed: int, first_step: int, count: int, process_index: int = 0, process_count: int = 1
    ) -> Recipes:
        """Describes a process's part of some steps, (count, B), with the position's words `high` and `low`."""
        share = per_process(self.data.batch_size, process_count, "data.batch_size")
        steps = np.arange(first_step, first_step + count, dtype=np.int64)[:, None]
        positions = steps * self.data.batch_size + process_index * share + np.arange(share)
        epochs, places = np.divmod(positions, self.epoch_length)
        epoch = self._epochs(seed)
        recipes = {name: array[places] for name, array in epoch(int(epochs[0, 0])).items()}
        for number in range(int(epochs[0, 0]) + 1, int(epochs[-1, -1]) + 1):
            in_epoch = epochs == number
            for name, array in epoch(number).items():
                recipes[name][in_epoch] = array[places[in_epoch]]
        high, low = draws.words(positions)
        return recipes | {"high": high, "low": low}

    def _train_batch(self, seed: int, process_index: int, process_count: int, step: int) -> Batch:
        return self.batch(self.train_recipes(seed, step, 1, process_index, process_count), 0, seed)

    @functools.cached_property
    def _epochs(self) -> Callable[[int], Callable[[int], Recipes]]:
        """Orders epochs, by seed; two epochs of a seed are kept, since a step may need two."""
        return functools.cache(lambda seed: functools.lru_cache(maxsize=2)(functools.partial(self.epoch, seed)))

    def eval_batches(self, process_index: int = 0, process_count: int = 1, most: int = 0) -> BatchIterator:
        """Makes batches (B, ...) of every example once, in order; every process gets equally many.

        Zeros fill the last batch (so `weight` is 0 there), with `index` -1. With `most`, only the first examples are
        taken. See also `train_batches`.
        """
        recipes = self.eval_recipes(process_index, process_count, most)
        numbers = grain.MapDataset.range(len(recipes["index"]))
        return BatchIterator(numbers.map(functools.partial(self.batch, recipes)), self.data.workers)

    def eval_recipes(self, process_index: int = 0, process_count: int = 1, most: int = 0) -> Recipes:
        """Describes a process's part of all batches of evaluation, (batches, B); see `eval_batches`."""
        share = per_process(self.data.eval_batch_size, process_count, "data.eval_batch_size")
        recipes = self.evaluation(min(self.eval_length, most or self.eval_length))
        columns = slice(process_index * share, (process_index + 1) * share)
        return {name: array.reshape(-1, self.data.eval_batch_size)[:, columns] for name, array in recipes.items()}

    @functools.cached_property
    def _materials(self) -> dict[bool, Sequence[Material]]:
        return {training: self.materials(training) for training in (False, True)}


def merged(dicts: Iterable[Mapping[str, T]]) -> dict[str, T]:
    """Merges dicts that share no name."""
    return {name: value for one in dicts for name, value in one.items()}


def _each(recipes: Recipes) -> list[dict[str, int]]:
    values = zip(*(array.tolist() for array in recipes.values()), strict=True)
    return [dict(zip(recipes, each, strict=True)) for each in values]


def stacked(iterators: Sequence[BatchIterator]) -> BatchIterator:
    """Stacks the batches of R iterators, all of one shape, to (R, B, ...); the iterators advance together."""
    zipped = grain.experimental.ZipMapDataset([iterator.batches for iterator in iterators])
    return BatchIterator(zipped.map(_stack), iterators[0].workers)


def _stack(batches: Sequence[Example]) -> Batch:
    return {name: np.stack([batch[name] for batch in batches]) for name in batches[0]}


def per_process(batch_size: int, process_count: int, field: str) -> int:
    """Divides a batch among processes; raises UsageError if they do not divide it."""
    if batch_size % process_count:
        raise UsageError(f"{field} = {batch_size} does not divide among {process_count} processes; use a multiple.")
    return batch_size // process_count
