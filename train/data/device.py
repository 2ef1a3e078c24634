"""Data resident on a device: arrays that are put there whole, and batches that are gathered from them there.

What each step takes is a few integers an example, which the host orders; everything else happens on the device. Batches
are those of `Examples.train_batches` and `Examples.eval_batches`, bit for bit, but that `index` has 32 bits.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from train.data.pipeline import Example, Examples, Row, Rows, TrainingStream, example_draws

_MOST = 2**31 - 1  # the greatest index

Arrays = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True, eq=False)
class _Resident:
    """The base of data on a device.

    Attributes:
      examples: What they are made of; `why_host` says which fit.
    """

    examples: Examples

    training = True

    @functools.cached_property
    def shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """The shapes and types of `arrays`, for which not all is read."""
        return self.examples.shapes(self.training)

    @property
    def nbytes(self) -> int:
        """The bytes of `arrays`."""
        return sum(shape.size * shape.dtype.itemsize for shape in self.shapes.values())

    @functools.cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """Everything that is put on the device, once; the same for all seeds and processes."""
        return self.examples.held(self.training)


class Resident(_Resident):
    """Training data on a device."""

    def feed(self, seed: int, first_step: int, count: int, process_index: int = 0, process_count: int = 1) -> Rows:
        """Describes a process's part of the batches of some steps of a seed, in arrays (count, B) of 32-bit integers.

        Raises:
          UsageError: the batch size is not a multiple of the processes.
        """
        return _narrow(self._stream(seed, process_index, process_count).rows(first_step, count))

    def batch(self, arrays: Arrays, rows: Rows, seed: jax.Array) -> Arrays:
        """Makes the batch of one step; pure, to be compiled, and to be mapped over `rows` and `seed` together.

        Args:
          arrays: `arrays`, on the device.
          rows: One step of a `feed`, (B,).
          seed: The seed of the feed, uint32.
        """
        examples = self.examples

        def example(row: Row) -> Example:
            return examples.training(examples.gather(arrays, row), row, example_draws(seed, row))

        return jax.vmap(example)(jax.tree.map(jnp.asarray, rows))

    @functools.cached_property
    def _stream(self) -> functools.partial:
        return functools.cache(functools.partial(TrainingStream, self.examples))


class ResidentEvaluation(_Resident):
    """The examples of an evaluation on a device."""

    training = False

    def feed(self, process_index: int = 0, process_count: int = 1) -> Rows:
        """Describes a process's part of all batches of an evaluation, in arrays (batches, B) of 32-bit integers.

        Rows that only fill the last batch have the index -1.

        Raises:
          UsageError: the evaluation batch size is not a multiple of the processes.
        """
        return _narrow(self.examples.eval_rows(process_index, process_count))

    def batch(self, arrays: Arrays, rows: Rows) -> Arrays:
        """Makes one batch, likewise; weights are 0 where the index is -1."""
        examples = self.examples

        def example(row: Row) -> Example:
            return examples.blank(examples.evaluated(examples.gather(arrays, row), row), row)

        return jax.vmap(example)(jax.tree.map(jnp.asarray, rows))


def why_host(examples: Examples, limit: int, training: bool = True) -> str:
    """Says why a split's data stay on the host, in words that follow "because"; '' where a device can hold them.

    Args:
      examples: The examples of the split.
      limit: The bytes that they may take there.
      training: Whether they are those of training, else those of evaluation.
    """
    if reason := examples.why_host(training):
        return reason
    resident = (Resident if training else ResidentEvaluation)(examples)
    if resident.nbytes > limit:
        return f"they take {resident.nbytes:,} bytes, more than the {limit:,} that may be held"
    if any(size > _MOST for shape in resident.shapes.values() for size in shape.shape):
        return f"they have more than {_MOST:,} elements"
    return ""


def _narrow(rows: Rows) -> Rows:
    return {name: of.astype(np.uint32 if name in ("high", "low") else np.int32) for name, of in rows.items()}
