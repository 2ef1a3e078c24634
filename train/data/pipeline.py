"""Batches of examples: endless and shuffled for training, in order and whole for evaluation.

Every training example is a function of (seed, position) alone, where the position is its place in the endless stream
over all processes. Batch size, processes, threads and workers thus do not change what the stream holds, and a run
resumes by reading from a position.
"""

import atexit
import dataclasses
import functools
import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from typing import Any

import grain
import numpy as np
from absl import flags

from attention.errors import UsageError
from train.data.section import Section

Batch = dict[str, np.ndarray]
Example = dict[str, Any]

# One thread is the fastest: making small examples holds the interpreter, and more threads only contend for it.
_READ = grain.ReadOptions(num_threads=1, prefetch_buffer_size=4)


class BatchIterator(grain.DatasetIterator):
    """Batches from `batches[0]` on. The state is how many were taken, whichever threads or workers make them."""

    def __init__(self, batches: grain.MapDataset, workers: int = 0):
        super().__init__()
        self.batches, self.workers = batches, workers
        self._taken, self._ahead = 0, None

    def __next__(self) -> Batch:
        self._assert_not_closed()
        if self._ahead is None:
            self._ahead = self._prefetching()
        try:
            batch = next(self._ahead)
        except StopIteration:
            self._stop()
            raise
        self._taken += 1
        return batch

    def get_state(self) -> dict[str, int]:
        """Returns how many batches were taken, which is the same in every process and for any number of processes."""
        return {"taken": self._taken}

    def set_state(self, state: dict[str, int]) -> None:
        """Moves to the position of a `get_state`, of this iterator or another of the same data and seed."""
        self._stop()
        self._taken = state["taken"]

    def close(self) -> None:
        """Stops threads and workers."""
        self._stop()
        super().close()

    def _prefetching(self) -> grain.DatasetIterator:
        ahead = self.batches[self._taken :].to_iter_dataset(_READ)
        if self.workers:
            if not flags.FLAGS.is_parsed():  # Grain's workers read absl flags, which only absl's own main parses.
                flags.FLAGS.mark_as_parsed()
            _kill_workers_at_exit()
            options = grain.MultiprocessingOptions(self.workers, per_worker_buffer_size=2)
            ahead = ahead.mp_prefetch(options, worker_init_fn=_depend)
        return iter(ahead)

    def _stop(self) -> None:
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None


def _depend(index: int, count: int) -> None:
    """Makes a worker end only with its parent, which handles the signals to a whole job."""
    del index, count
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


@functools.cache
def _kill_workers_at_exit() -> None:
    """Kills workers at exit, since `multiprocessing` would send a signal that they ignore, and wait for them."""
    atexit.register(lambda: [worker.kill() for worker in multiprocessing.active_children()])


@dataclasses.dataclass(frozen=True)
class Examples:
    """A split cut into examples, and their batches; `len` is how many an epoch of training has.

    Attributes:
      data: The section of the config: batch sizes and workers.
      split: The images or the tokenised rows, whose `content` identifies them.
    """

    data: Section
    split: Any

    def __len__(self) -> int:
        return len(self.split)

    @property
    def eval_length(self) -> int:
        """How many examples evaluation has."""
        return len(self)

    @property
    def content(self) -> str:
        """A text that identifies the data, such as a digest."""
        return self.split.content

    @property
    def example_bytes(self) -> int:
        """The bytes of an example in a batch."""
        return sum(np.asarray(value).nbytes for value in self.evaluate(0).values())

    def train(self, index: int, position: int, seed: int, rng: np.random.Generator) -> Example:
        """Returns a training example, which is that of evaluation unless a subclass has another.

        Args:
          index: The example's number in the epoch.
          position: The example's place in the endless stream of all epochs.
          seed: A seed for what is alike in a whole epoch.
          rng: The example's generator.
        """
        del position, seed, rng
        return self.evaluate(index)

    def evaluate(self, index: int) -> Example:
        """Returns the index-th of `eval_length` examples, with `index` and `weight`."""
        raise NotImplementedError

    def train_batches(self, seed: int, process_index: int = 0, process_count: int = 1) -> BatchIterator:
        """Returns endless batches of shuffled examples. An epoch has every example once; a batch may span two epochs.

        Args:
          seed: The seed of the order, of the examples' generators, and of whole epochs, which are independent.
          process_index: This process takes the `process_index`-th block of each global batch.
          process_count: How many processes share it.

        Returns:
          An iterator of dicts of arrays (B, ...) for B = data.batch_size / process_count. `get_state` and `set_state`
          (or Orbax) resume it exactly, in any process; `close` it when done.

        Raises:
          UsageError: the batch size is not a multiple of the processes.
        """
        share = per_process(self.data.batch_size, process_count, "data.batch_size")
        order, drawing, epochs = np.random.SeedSequence(seed).generate_state(3).tolist()
        placed = endless(len(self), order).map_with_index(_placed)
        stream = placed.random_map(functools.partial(self._drawn, epochs), seed=drawing)
        # Dropping a remainder that an endless stream has not keeps the length an integer that Python can take.
        batches = stream.batch(share, drop_remainder=True)
        return BatchIterator(batches[process_index::process_count], self.data.workers)

    def eval_batches(self, process_index: int = 0, process_count: int = 1, most: int = 0) -> BatchIterator:
        """Yields every example once, in order; every process gets equally many batches.

        Args:
          process_index: This process takes the `process_index`-th block of each global batch.
          process_count: How many processes share it.
          most: How many examples to take, from the first on; 0 is all.

        Returns:
          An iterator of dicts of arrays (B, ...). The last batch is filled up with zeros (so `weight` is 0 there)
          whose `index` is -1.

        Raises:
          UsageError: the evaluation batch size is not a multiple of the processes.
        """
        share = per_process(self.data.eval_batch_size, process_count, "data.eval_batch_size")
        count = min(self.eval_length, most or self.eval_length)
        filled = -(-count // self.data.eval_batch_size) * self.data.eval_batch_size
        nothing = {name: np.zeros_like(value) for name, value in self.evaluate(0).items()} | {"index": np.int64(-1)}
        stream = grain.MapDataset.range(filled).map(functools.partial(self._filled, nothing, count))
        return BatchIterator(stream.batch(share)[process_index::process_count], self.data.workers)

    def _drawn(self, seed: int, placed: tuple[int, int], rng: np.random.Generator) -> Example:
        return self.train(*placed, seed, rng)

    def _filled(self, nothing: Example, count: int, index: int) -> Example:
        """Returns an example of evaluation, or `nothing` beyond the last of `count`."""
        return self.evaluate(int(index)) if index < count else nothing


def _placed(position: int, index: int) -> tuple[int, int]:
    return int(index), position


@functools.lru_cache(maxsize=16)
def endless(length: int, seed: int) -> grain.MapDataset:
    """Returns an endless stream of 0 … length - 1, in a new order every epoch."""
    return grain.MapDataset.range(length).shuffle(seed=seed).repeat()


def stacked(iterators: Sequence[BatchIterator]) -> BatchIterator:
    """Stacks the batches of R iterators, which must have one shape, to (R, B, ...); the iterators advance together."""
    zipped = grain.experimental.ZipMapDataset([iterator.batches for iterator in iterators])
    return BatchIterator(zipped.map(_stack), iterators[0].workers)


def _stack(batches: tuple[Batch, ...]) -> Batch:
    return {name: np.stack([batch[name] for batch in batches]) for name in batches[0]}


def per_process(batch_size: int, process_count: int, field: str) -> int:
    """Returns how many examples of a batch each process has; raises UsageError where they do not divide."""
    if batch_size % process_count:
        raise UsageError(f"{field} = {batch_size} does not divide among {process_count} processes; use a multiple.")
    return batch_size // process_count
