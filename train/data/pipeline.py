"""Batches of images from a source: endless and shuffled for training, in order and whole for evaluation.

Every training example is a function of (seed, position) alone, position being its place in the endless stream over
all processes. So batch size, processes, threads and workers change how the stream is cut and who makes it, not what
it holds, and resuming is starting to read at a position.
"""

import dataclasses
from typing import Any

import grain
import numpy as np
from absl import flags

from attention.errors import UsageError
from train.data import chain
from train.data.images import ImageData
from train.data.sources import Source
from train.data.transforms import Transform

Batch = dict[str, np.ndarray]

# One thread is the fastest: decoding small images holds the interpreter, and more threads only contend for it.
_READ = grain.ReadOptions(num_threads=1, prefetch_buffer_size=4)

# Evaluation transforms draw nothing.
_UNUSED = np.random.default_rng(0)


def train_batches(
    source: Source, data: ImageData, seed: int, process_index: int = 0, process_count: int = 1
) -> "BatchIterator":
    """Shuffled, augmented batches without end. Each epoch shows every example once; epochs run into one another.

    Args:
      source: What to draw from.
      data: Batch size, transforms, mixup and workers.
      seed: Of the order, the augmentation and the mixing, which are independent of one another.
      process_index: This process takes the `process_index`-th block of each global batch.
      process_count: How many processes share it.

    Returns:
      An iterator of dicts with, for B = data.batch_size / process_count: `image` float32 (B, H, W, C), `label` int32
      (B,), and `index` int64 (B,), the example's place in `source`. With mixup also `other_label` int32 (B,) and `mix`
      float32 (B,): image = mix · image of label + (1 - mix) · image of other_label. `get_state` and `set_state` (or
      Orbax) resume it exactly, in any process; `close` it when done.

    Raises:
      UsageError: the batch size is not a multiple of the processes, or the images do not end up in one shape.
    """
    share = _share(data.batch_size, process_count, "data.batch_size")
    transforms = chain.parse(data.train_transforms)
    chain.output_shape(transforms, source.image_shape)
    order, augmentation, partners = np.random.SeedSequence(seed).generate_state(3).tolist()
    positions = _endless(len(source), order)
    if data.mixup:
        pairs = grain.experimental.ZipMapDataset([positions, _endless(len(source), partners)])
        examples = pairs.random_map(_Mixed(source, transforms, data.mixup), seed=augmentation)
    else:
        examples = positions.random_map(_Augmented(source, transforms), seed=augmentation)
    # Dropping a remainder that an endless stream has not keeps the length an integer that Python can take.
    batches = examples.batch(share, drop_remainder=True)
    return BatchIterator(batches[process_index::process_count], data.workers)


def eval_batches(source: Source, data: ImageData, process_index: int = 0, process_count: int = 1) -> "BatchIterator":
    """Every example once, in order; every process gets equally many batches.

    Args:
      source: What to go through.
      data: Evaluation batch size and transforms.
      process_index: This process takes the `process_index`-th block of each global batch.
      process_count: How many processes share it.

    Returns:
      An iterator of dicts with `image`, `label` and `index` as in `train_batches`, and `weight` float32 (B,): 1 for an
      example, 0 for the zeros that fill up the last batch, whose index is -1.

    Raises:
      UsageError: as `train_batches`.
    """
    share = _share(data.eval_batch_size, process_count, "data.eval_batch_size")
    transforms = chain.parse(data.eval_transforms)
    shape = chain.output_shape(transforms, source.image_shape)
    filled = -(-len(source) // data.eval_batch_size) * data.eval_batch_size
    examples = grain.MapDataset.range(filled).map(_Weighted(_Augmented(source, transforms), shape))
    return BatchIterator(examples.batch(share)[process_index::process_count], data.workers)


class BatchIterator(grain.DatasetIterator):
    """Batches from `batches[0]` on. Its state is how many were taken, whatever threads or workers make them."""

    def __init__(self, batches: grain.MapDataset, workers: int = 0):
        super().__init__()
        self._batches, self._workers = batches, workers
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
        """How many batches were taken."""
        return {"taken": self._taken}

    def set_state(self, state: dict[str, int]) -> None:
        """Goes to where `get_state` was called, on this iterator or another one of the same data and seed."""
        self._stop()
        self._taken = state["taken"]

    def close(self) -> None:
        """Stops threads and workers."""
        self._stop()
        super().close()

    def _prefetching(self) -> grain.DatasetIterator:
        ahead = self._batches[self._taken :].to_iter_dataset(_READ)
        if self._workers:
            if not flags.FLAGS.is_parsed():  # Grain's workers read absl flags, which only absl's own main parses.
                flags.FLAGS.mark_as_parsed()
            ahead = ahead.mp_prefetch(grain.MultiprocessingOptions(self._workers, per_worker_buffer_size=2))
        return iter(ahead)

    def _stop(self) -> None:
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None


@dataclasses.dataclass(frozen=True)
class _Augmented:
    """An example of the source by index, transformed."""

    source: Source
    transforms: tuple[Transform, ...]

    def __call__(self, index: int, rng: np.random.Generator) -> dict[str, Any]:
        record = self.source[int(index)]
        image = chain.apply(self.transforms, record["image"], rng)
        return {"image": image, "label": np.int32(record["label"]), "index": np.int64(index)}


@dataclasses.dataclass(frozen=True)
class _Mixed(_Augmented):
    """Two examples, each transformed on its own, mixed."""

    alpha: float

    def __call__(self, indices: tuple[int, int], rng: np.random.Generator) -> dict[str, Any]:
        example, other = (super(_Mixed, self).__call__(index, rng) for index in indices)
        mix = np.float32(rng.beta(self.alpha, self.alpha))
        image = mix * example["image"] + (1 - mix) * other["image"]
        return example | {"image": image, "other_label": other["label"], "mix": mix}


@dataclasses.dataclass(frozen=True)
class _Weighted:
    """Examples by index, weight 1; beyond the last one zeros, weight 0."""

    example: _Augmented
    shape: tuple[int, int, int]

    def __call__(self, index: int) -> dict[str, Any]:
        if index < len(self.example.source):
            return self.example(index, _UNUSED) | {"weight": np.float32(1)}
        nothing = {"image": np.zeros(self.shape, np.float32), "label": np.int32(0), "index": np.int64(-1)}
        return nothing | {"weight": np.float32(0)}


def _endless(length: int, seed: int) -> grain.MapDataset:
    """0 … length - 1 in a new order every epoch, for ever."""
    return grain.MapDataset.range(length).shuffle(seed=seed).repeat()


def _share(batch_size: int, process_count: int, field: str) -> int:
    if batch_size % process_count:
        raise UsageError(f"{field} = {batch_size} does not divide among {process_count} processes; use a multiple.")
    return batch_size // process_count
